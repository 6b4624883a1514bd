"""The codec of payloads: the same in the same place is the same, and nothing else opens it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base.encryption import MARK, PLAIN, Encryption, generate_key, is_sealed, key_of
from perdure.base.errors import EncryptionError
from perdure.base.secret import Secret, without_secrets

OLD, NEW = generate_key(), generate_key()
ONE, TWO, BOTH = Encryption([OLD]), Encryption([NEW]), Encryption([NEW, OLD])
PLACE = "job.input of a"


@given(text=st.text(), place=st.text())
def test_what_is_sealed_opens_in_its_place(text: str, place: str) -> None:
    assert ONE.open(place, ONE.seal(place, text)) == text
    assert ONE.open_bytes(place, ONE.seal_bytes(place, text.encode())) == text.encode()


def test_the_same_text_in_the_same_place_is_sealed_the_same() -> None:
    assert ONE.seal(PLACE, "secret") == ONE.seal(PLACE, "secret")
    others = {ONE.seal("job.input of b", "secret"), ONE.seal("job.error of a", "secret")}
    assert len(others | {ONE.seal(PLACE, "secret"), TWO.seal(PLACE, "secret")}) == 4


@given(first=st.text(min_size=5), second=st.text(min_size=5))
def test_nonces_differ_where_texts_differ(first: str, second: str) -> None:
    nonces = {ONE.seal_bytes(PLACE, each.encode())[13:25] for each in (first, second)}
    assert len(nonces) == len({first, second})


def test_a_sealed_text_is_a_json_string_and_names_its_key() -> None:
    sealed = ONE.seal(PLACE, '{"card": 4242}')
    assert sealed.startswith(MARK)
    assert sealed.endswith('"')
    assert is_sealed(sealed)
    assert "4242" not in sealed
    assert (key_of(sealed), key_of('{"card": 4242}')) == (ONE.writes, "")


@pytest.mark.parametrize("trivial", ["", "{}", "[]", '""', "null"])
def test_what_says_nothing_stays_as_it_is(trivial: str) -> None:
    assert ONE.seal(PLACE, trivial) == trivial


def test_what_is_plain_is_read_as_it_is() -> None:
    assert ONE.open(PLACE, '{"a": 1}') == '{"a": 1}'
    assert ONE.open_bytes(PLACE, b"x\x9c") == b"x\x9c"


def test_the_first_key_writes_and_all_read() -> None:
    assert BOTH.open(PLACE, ONE.seal(PLACE, "secret")) == "secret"
    assert BOTH.seal(PLACE, "secret") == TWO.seal(PLACE, "secret")
    assert (BOTH.writes, BOTH.ids) == (TWO.writes, (*TWO.ids, *ONE.ids))
    back = Encryption([PLAIN, OLD])
    assert back.seal(PLACE, "secret") == "secret"
    assert back.open(PLACE, ONE.seal(PLACE, "secret")) == "secret"


def test_without_its_key_the_message_says_which_is_missing_and_what_to_set() -> None:
    with pytest.raises(
        EncryptionError, match=f"the key {ONE.writes}, .*PERDURE_ENCRYPTION_KEYS"
    ) as it:
        TWO.open(PLACE, ONE.seal(PLACE, "secret"))
    assert it.value.missing == ONE.ids
    assert TWO.writes in str(it.value)


@pytest.mark.parametrize("moved_to", ["job.input of b", "job.result of a"])
def test_a_payload_that_was_moved_does_not_open(moved_to: str) -> None:
    with pytest.raises(EncryptionError, match="moved here from another row"):
        ONE.open(moved_to, ONE.seal(PLACE, "secret"))


@given(st.integers(0, 60), st.integers(1, 255))
def test_a_changed_byte_is_noticed(at: int, by: int) -> None:
    sealed = bytearray(ONE.seal_bytes(PLACE, b"a text of some length, to be changed"))
    at = 13 + at % (len(sealed) - 13)
    sealed[at] ^= by
    with pytest.raises(EncryptionError, match="it was changed"):
        ONE.open_bytes(PLACE, bytes(sealed))


@pytest.mark.parametrize("cut", ["", "A", "AAAA", "????", "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="])
def test_what_only_looks_sealed_is_refused(cut: str) -> None:
    with pytest.raises(EncryptionError, match="it was changed"):
        ONE.open(PLACE, f'{MARK}{ONE.writes}:{cut}"')


@pytest.mark.parametrize("keys", [["word"], ["pdk_short"], [OLD[:-3]], [OLD, OLD], [OLD, PLAIN]])
def test_what_is_no_key_is_refused_and_not_shown(keys: list[str]) -> None:
    with pytest.raises(EncryptionError) as refused:
        Encryption(keys)
    assert not any(each in str(refused.value) for each in keys if each != PLAIN)


def test_a_key_is_never_shown() -> None:
    made = Encryption([Secret(OLD)])
    assert OLD not in repr(made)
    assert without_secrets(f"it is {OLD}") == "it is [removed]"


def test_keys_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    assert Encryption.from_env({}) is None
    found = Encryption.from_env({"PERDURE_ENCRYPTION_KEYS": f"{NEW}, {OLD}"})
    assert found is not None
    assert found.ids == BOTH.ids
    file = tmp_path / "keys"
    with pytest.raises(EncryptionError, match="cannot be read"):
        Encryption.from_env({"PERDURE_ENCRYPTION_KEYS_FILE": str(file)})
    file.write_text(f"{OLD}\n{NEW}\n")
    found = Encryption.from_env({"PERDURE_ENCRYPTION_KEYS_FILE": str(file)})
    assert found is not None
    assert found.writes == ONE.writes


def test_parts_of_payloads_are_named_by_key_and_job() -> None:
    names = {keys.name(job, "digest") for keys in (ONE, TWO) for job in "ab"}
    assert len(names) == 4
    assert BOTH.names("a", "digest") == ["digest", TWO.name("a", "digest"), ONE.name("a", "digest")]
