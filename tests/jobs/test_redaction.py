from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base.codec import encode
from perdure.base.secret import Secret
from perdure.jobs.redaction import REMOVED, Redaction

REDACTION = Redaction()


@pytest.mark.parametrize(
    "name",
    ["password", "Api-Key", "access_token", "clientSecret", "Authorization", "card_number", "IBAN"],
)
def test_a_secret_is_removed_by_the_name_of_its_field(name: str) -> None:
    assert REDACTION.apply({name: "hunter2", "id": 7}, "acme") == {name: REMOVED, "id": 7}


def test_a_secret_is_removed_by_its_type() -> None:
    assert REDACTION.apply([Secret("hunter2")], "acme") == [REMOVED]


def test_people_are_kept_as_fingerprints_that_only_their_tenant_can_compare() -> None:
    mail = {"to": ["kim@example.com", "lee@example.com"], "subject": "Hello"}
    kept = REDACTION.apply(mail, "acme")
    assert "example.com" not in str(kept)
    assert "Hello" not in str(kept)
    assert len(kept["to"]) == 2
    assert kept == REDACTION.apply(mail, "acme")
    assert kept["to"] != REDACTION.apply(mail, "other")["to"]


def test_a_field_can_be_left_open() -> None:
    open_ = Redaction(open=frozenset({"subject"}))
    assert open_.apply({"subject": "Hello"}, "acme") == {"subject": "Hello"}


words = st.text("abcdefgh", min_size=8, max_size=8)
places = st.sampled_from(["password", "to", "customer_email", "api_key"])
details = st.recursive(
    st.dictionaries(places, words, min_size=1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("part"), inner),
)


@given(details)
def test_no_secret_is_left_however_deep_it_stands(value: Any) -> None:
    kept = encode(REDACTION.apply(value, "acme")).decode()
    for word in _texts(value):
        assert word not in kept


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts: Any = value
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value).values()
    return [text for part in parts for text in _texts(part)]
