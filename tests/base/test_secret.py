import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from perdure.base.secret import Secret


def test_only_reveal_gives_the_value() -> None:
    secret = Secret("hush")
    assert secret.reveal() == "hush"
    assert "hush" not in f"{secret} {secret!r} {[secret]} {vars(type(secret))}"


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy, hash])
def test_it_is_neither_pickled_nor_copied_nor_a_key(take: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        take(Secret("hush"))


def test_equal_secrets_are_equal() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
