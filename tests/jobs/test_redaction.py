import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr, field_serializer

from perdure.base.codec import digest, encode
from perdure.base.encryption import locked_text, missing_text
from perdure.base.errors import ArgumentError
from perdure.base.secret import REMOVED, Secret
from perdure.jobs.redaction import (
    Fingerprints,
    Redaction,
    for_people,
    refuse_markers,
    revealed,
)

REDACTION = Redaction()
KEY = b"k" * 32


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "Api-Key",
        "access_token",
        "clientSecret",
        "Authorization",
        "card_number",
        "IBAN",
        "aws_secret_access_key",
        "AWS_SECRET_ACCESS_KEY",
        "awsSecretAccessKey",
        "secret_key",
        "pwd",
        "DB_PWD",
        "jwt",
        "id_jwt",
        "Set-Cookie",
        "cookie",
        "dsn",
        "sentryDsn",
        "client-secret",
        "bearer",
        "x-api-key",
        "connection_string",
        "ConnectionString",
        "DATABASE_URL",
        "redis_url",
        "private-key",
        "sessionId",
        "refreshToken",
        "csrf",
        "otp",
        "userPin",
        "X-Amz-Signature",
        "passwordHash",
        "signing_key",
        "webhook_url",
        "passphrase",
        "credentials",
        "cvv2",
        "token_value",
        "auth_header",
        "mfa_code",
        "secret_value",
        "cookie_value",
        "jwt_raw",
        "authHeader",
        "jwt-raw",
        "TOKEN_VALUE_2",
        "authorization_code",
        "githubtoken",
        "dbpassword",
        "api_key_old",
        "refresh_tokens",
        "pin_code",
        "password_for_db",
    ],
)
def test_a_secret_is_removed_by_the_name_of_its_field(name: str) -> None:
    assert REDACTION.apply({name: "hunter2", "id": 7}, "acme", KEY) == {name: REMOVED, "id": 7}


@pytest.mark.parametrize(
    "name",
    [
        "tokens",
        "max_tokens",
        "maxTokens",
        "token_count",
        "password_length",
        "passwordChangedAt",
        "secret_name",
        "key",
        "mapping",
        "author",
        "authority",
        "secretary",
        "passenger",
        "compass",
        "tokenizer",
        "token_endpoint",
        "token_ids",
        "cookie_banner",
        "card_value",
        "card_type",
        "pass_rate",
        "session_count",
        "auth_method",
        "status_code",
        "country_code",
        "pinned",
        "spin",
        "signatures_needed",
        "header",
        "value",
    ],
)
def test_what_is_only_about_secrets_stays(name: str) -> None:
    assert REDACTION.apply({name: 7}, "acme", KEY) == {name: 7}


class Login(BaseModel):
    """A model whose serializer gives away what it was told to hide."""

    name: SecretStr
    word: Any = None

    @field_serializer("name")
    def reveal(self, value: SecretStr) -> str:
        return value.get_secret_value()


def test_a_secret_is_removed_from_a_model_whatever_its_serializer_does() -> None:
    given = {"login": Login(name=SecretStr("hunter2"), word=Secret("hunter3"))}
    assert REDACTION.apply(given, "acme", KEY) == {"login": {"name": REMOVED, "word": REMOVED}}


def test_a_secret_is_removed_from_texts() -> None:
    given = {"link": "https://u:hunter2@x.test/?q=hunter2", "note": "password=hunter2"}
    assert "hunter2" not in str(REDACTION.apply(given, "acme", KEY))


def test_a_fingerprint_cannot_be_guessed_without_the_key_of_the_store() -> None:
    mail = {"to": "kim@example.com"}
    kept = REDACTION.apply(mail, "acme", KEY)
    assert kept != REDACTION.apply(mail, "acme", b"another")
    guess = digest("redacted", "acme", "kim@example.com")
    assert kept["to"][1:] != guess[:16]
    own = Redaction(key=Secret(b"another"))
    assert own.apply(mail, "acme", KEY) == REDACTION.apply(mail, "acme", b"another")


def test_people_are_not_shown_arguments_whose_names_say_that_they_are_secrets() -> None:
    shown = b'{"to":"kim","password":"hunter2","deep":[{"apiKey":"hunter2","x":null}],"pin":null}'
    assert for_people(shown) == {
        "to": "kim",
        "password": REMOVED,
        "deep": [{"apiKey": REMOVED, "x": None}],
        "pin": None,
    }


def test_a_secret_is_removed_by_its_type() -> None:
    assert REDACTION.apply([Secret("hunter2")], "acme", KEY) == [REMOVED]


def test_people_are_kept_as_fingerprints_that_only_their_tenant_can_compare() -> None:
    mail = {"to": ["kim@example.com", "lee@example.com"], "subject": "Hello"}
    kept = REDACTION.apply(mail, "acme", KEY)
    assert "example.com" not in str(kept)
    assert "Hello" not in str(kept)
    assert len(kept["to"]) == 2
    assert kept == REDACTION.apply(mail, "acme", KEY)
    assert kept["to"] != REDACTION.apply(mail, "other", KEY)["to"]


def test_a_field_can_be_left_open() -> None:
    open_ = Redaction(open=frozenset({"subject"}))
    assert open_.apply({"subject": "Hello"}, "acme", KEY) == {"subject": "Hello"}


words = st.text("abcdefgh", min_size=8, max_size=8)
places = st.sampled_from(["password", "to", "customer_email", "api_key"])
details = st.recursive(
    st.dictionaries(places, words, min_size=1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("part"), inner),
)


@given(details)
def test_no_secret_is_left_however_deep_it_stands(value: Any) -> None:
    kept = encode(REDACTION.apply(value, "acme", KEY)).decode()
    for word in _texts(value):
        assert word not in kept


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts: Any = value
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value).values()
    return [text for part in parts for text in _texts(part)]


# Accounts

MARKS = Fingerprints(KEY, "acme")
IBAN = "DE02 1203 0000 0000 2020 51"


def test_of_an_account_people_see_the_last_characters_and_a_fingerprint() -> None:
    shown = for_people(encode({"iban": IBAN, "cardNumber": 4111111111111111}), MARKS)
    assert shown["iban"].startswith("[removed: …2051, fp ")
    assert shown["cardNumber"].startswith("[removed: …1111, fp ")
    assert "1203" not in str(shown)
    same = for_people(encode({"iban": "de02120300000000202051"}), MARKS)
    assert same["iban"] == shown["iban"]
    other = for_people(encode({"iban": IBAN}), Fingerprints(b"x" * 32, "acme"))
    assert other["iban"] != shown["iban"]
    assert for_people(encode({"iban": IBAN}))["iban"] == "[removed: …2051]"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("password", "correct horse battery staple"),
        ("api_key", "sk-1234567890123456"),
        ("token", "1234567890123456"),
        ("pin", "1234567890123456"),
        ("ssn", "123-45-6789-0123"),
        ("iban", "short"),
        ("card_number", {"number": "4111111111111111"}),
    ],
)
def test_of_secrets_and_of_short_numbers_people_see_nothing(name: str, value: Any) -> None:
    assert for_people(encode({name: value})) == {name: REMOVED}


def test_the_marker_of_a_short_account_has_no_characters_of_it() -> None:
    (shown,) = for_people(encode({"account_number": "12345678"}), MARKS).values()
    assert re.fullmatch(r"\[removed: fp [0-9a-f]{8}\]", shown)


def test_what_is_shown_stays_the_same_when_it_is_shown_again() -> None:
    stored = {"iban": IBAN, "password": "x", "rows": [{"account_number": "12345678"}]}
    once = for_people(encode(stored), MARKS)
    assert for_people(encode(once)) == once


def test_an_argument_made_to_look_like_a_marker_is_marked_as_any_other() -> None:
    made = "[removed: …2051, fp 0123abcd]"
    assert for_people(encode({"iban": made}), MARKS)["iban"] != made


def test_accounts_are_revealed_and_secrets_are_not() -> None:
    stored = {"iban": IBAN, "password": "x", "rows": [{"account_number": "1", "token": "t"}]}
    assert revealed(encode(stored)) == {
        "iban": IBAN,
        "password": REMOVED,
        "rows": [{"account_number": "1", "token": REMOVED}],
    }


@pytest.mark.parametrize(
    "value",
    [
        {"iban": "[removed: …2051, fp 0123abcd]"},
        {"note": "[removed: …2051]"},
        {"note": "[removed: fp 0123abcd]"},
        {"password": REMOVED},
        {"deep": [{"card": {"number": REMOVED}}]},
        "[removed: …2051]",
        locked_text(missing_text(["k1"], ())),
    ],
)
def test_every_marker_is_refused_and_its_place_named(value: Any) -> None:
    with pytest.raises(ArgumentError, match="only stands for a value"):
        refuse_markers(encode(value), "the arguments")


@pytest.mark.parametrize(
    "value",
    [
        {"comment": REMOVED},
        {"text": "they said [removed: …2051] and [removed]"},
        {"log": "password=[removed]"},
        {"iban": IBAN},
        {"note": "[removed: yesterday]"},
        {"note": "(encrypted: with rot13)"},
    ],
)
def test_what_only_mentions_a_marker_is_a_value(value: Any) -> None:
    refuse_markers(encode(value), "the arguments")
