"""How deeply JSON is nested, against a slow and simple reading of it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base.errors import RequestRefused
from perdure.web.body import LIMITS, check_depth

MOST = 4


def is_too_deep(body: bytes, most: int = MOST) -> bool:
    try:
        check_depth(body, most)
    except RequestRefused:
        return True
    return False


def depth_of(value: Any) -> int:
    if isinstance(value, str | int):
        return 0
    inner = value.values() if hasattr(value, "values") else value
    return 1 + max(map(depth_of, inner), default=0)


TEXTS = st.text('[]{}"\\a,:', max_size=6)
VALUES = st.recursive(
    TEXTS | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=30,
)


@given(VALUES)
def test_json_is_refused_exactly_if_it_is_too_deep(value: Any) -> None:
    assert is_too_deep(json.dumps(value).encode()) == (depth_of(value) > MOST)


@given(st.binary(max_size=40) | st.text('[]{}"\\', max_size=40).map(str.encode))
def test_whatever_is_sent_is_looked_through_once(body: bytes) -> None:
    is_too_deep(body)


@pytest.mark.parametrize(
    ("part", "deep"),
    [
        (b"[", True),
        (b"{", True),
        (b"[]", False),
        (b"{}[", True),
        (b'"[', True),
        (b'[""', True),
        (b"[" * 64 + b"]" * 64, False),
        (b"[" * 65 + b"]" * 65, True),
        (b'"\\"', False),
        (b']"', False),
        (b'\\"[', False),
    ],
    ids=repr,
)
def test_a_megabyte_of_anything_is_looked_through(part: bytes, deep: bool) -> None:
    assert is_too_deep(part * (LIMITS.body // len(part)), LIMITS.depth) is deep
