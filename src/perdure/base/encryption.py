"""Encryption of payloads: AES-256-GCM whose nonce is made from what is encrypted.

The store compares payloads (a result is written once, and the same again is ignored), so the same
text in the same place gives the same ciphertext, as long as the key is the same. The nonce is
therefore an HMAC of the place and the text, under a key of its own: it repeats only with both of
them. What that tells a reader of the database, and what it does not, is in
`docs/adr/0024-payload-encryption.md`.

A sealed text is JSON, so that SQL which looks into payloads finds a text and no error:

    <tab>"<id of the key>:<base64 of nonce, ciphertext and tag>"

What the codec writes never begins with a tab, so plain and sealed payloads can be told apart.
"""

import hmac
import os
import re
import secrets
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

from perdure.base.errors import EncryptionError
from perdure.base.extra import extra
from perdure.base.secret import Secret

VARIABLE: Final = "PERDURE_ENCRYPTION_KEYS"
PLAIN: Final = "plain"  # in the place of the first key: nothing is encrypted any more
PREFIX: Final = "pdk_"
MARK: Final = '\t"'
_BYTES_MARK: Final = b"\tpdk:"  # longer, since other bytes may be anything
_ID: Final = 8  # characters
_TEXT: Final = len(MARK) + _ID + 1  # where the base64 of a text begins
_BYTES: Final = len(_BYTES_MARK) + _ID
_NONCE: Final = 12  # bytes
_KEY: Final = 32
# They tell nothing, there are many of them, and SQL writes or compares some of them.
TRIVIAL: Final = frozenset({"", "{}", "[]", '""', "null", "(deleted)"})


def generate_key() -> str:
    """Return a new random key."""
    return PREFIX + urlsafe_b64encode(secrets.token_bytes(_KEY)).decode().rstrip("=")


def is_sealed(text: str) -> bool:
    """Whether a text of the store is encrypted."""
    return text.startswith(MARK)


def key_of(stored: str | bytes) -> str:
    """Return the id of the key by which a value of the store is encrypted; "" if it is plain."""
    if isinstance(stored, str):
        return stored[len(MARK) : _TEXT - 1] if stored.startswith(MARK) else ""
    mark = len(_BYTES_MARK)
    return stored[mark:_BYTES].decode("ascii", "replace") if stored[:mark] == _BYTES_MARK else ""


class Encryption:
    """The keys by which the payloads of a store are encrypted.

    Args:
        keys: Keys as `perdure keys generate` prints them. The first one encrypts, all of them
            decrypt. "plain" in the place of the first encrypts nothing: see "Switching on".

    Raises:
        EncryptionError: A key is not one, or is there twice.
        ModuleNotFoundError: The extra `encryption` is not installed.
    """

    def __init__(self, keys: Iterable[str | Secret[str]]) -> None:
        given = [each.reveal() if isinstance(each, Secret) else each for each in keys]
        self._writes_plain = given[:1] == [PLAIN]
        made = [_Key(text, place) for place, text in enumerate(given, 1) if text != PLAIN]
        self._keys: Mapping[str, _Key] = {each.id: each for each in made}
        if len(self._keys) < len(made) or PLAIN in given[1:]:
            raise EncryptionError("give each key once, and `plain` only in the first place")
        self._first = None if self._writes_plain or not made else made[0]

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Encryption | None":
        """Return what `PERDURE_ENCRYPTION_KEYS` says, or the file that …_FILE names; None: nothing.

        Raises:
            EncryptionError: A key is not one, or the file cannot be read.
        """
        text, path = environ.get(VARIABLE, ""), environ.get(f"{VARIABLE}_FILE", "")
        if not text and path:
            try:
                text = Path(path).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise EncryptionError(f"{VARIABLE}_FILE: {path} cannot be read: {error}") from None
        keys = tuple(re.split(r"[\s,]+", text.strip())) if text.strip() else ()
        return _made(keys) if keys else None

    def __repr__(self) -> str:
        return f"Encryption(<{', '.join(self._keys) or 'no keys'}>)"

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys; each is made from its key."""
        return tuple(self._keys)

    @property
    def writes(self) -> str:
        """The id of the key that encrypts; "" if nothing is encrypted."""
        return "" if self._first is None else self._first.id

    def seal(self, place: str, text: str) -> str:
        """Return a text as it is stored in this place: table, column and row."""
        if self._first is None or text in TRIVIAL:
            return text
        return _sealed(self._first, place, text)

    def sign(self, place: str, text: str) -> str:
        """Return a text sealed with the first key, even if nothing else is encrypted."""
        return _sealed(next(iter(self._keys.values())), place, text)

    def open(self, place: str, stored: str) -> str:
        """Return the text that is stored in this place; one that is not sealed as it is.

        Raises:
            EncryptionError: There is no key for it, or it was changed.
        """
        if not stored.startswith(MARK):
            return stored
        key = self._key(key_of(stored), place)
        try:
            return key.open(place, b64decode(stored[_TEXT:-1], validate=True)).decode()
        except (NotBase64, UnicodeDecodeError):
            raise _changed(place, key.id) from None

    def seal_bytes(self, place: str, data: bytes) -> bytes:
        """Return bytes as they are stored in this place."""
        if self._first is None:
            return data
        return _BYTES_MARK + self._first.id.encode() + self._first.seal(place, data)

    def open_bytes(self, place: str, stored: bytes) -> bytes:
        """Return the bytes that are stored in this place.

        Raises:
            EncryptionError: There is no key for them, or they were changed.
        """
        if not stored.startswith(_BYTES_MARK):
            return stored
        return self._key(key_of(stored), place).open(place, stored[_BYTES:])

    def name(self, job_id: str, digest: str) -> str:
        """Return the name by which a part of a large payload of a job is stored."""
        return digest if self._first is None else self._first.name(job_id, digest)

    def names(self, job_id: str, digest: str) -> list[str]:
        """Return all names by which it may be stored, plain or under any key."""
        return [digest, *(each.name(job_id, digest) for each in self._keys.values())]

    def _key(self, id: str, place: str) -> "_Key":
        found = self._keys.get(id)
        if found is None:
            raise EncryptionError(missing_text([id], self.ids, place), missing=(id,))
        return found


class Locked:
    """The keys of a program that lacks some of the store's: it reads what it can, seals nothing."""

    def __init__(self, keys: Encryption | None, missing: Sequence[str]) -> None:
        self._keys = keys or Encryption(())
        self._missing = tuple(missing)
        self.ids, self.writes = self._keys.ids, ""
        self.name, self.names = self._keys.name, self._keys.names
        self.open, self.open_bytes = self._keys.open, self._keys.open_bytes

    @property
    def problem(self) -> EncryptionError:
        """What to raise where a payload would be written."""
        return EncryptionError(missing_text(self._missing, self.ids), missing=self._missing)

    def seal(self, place: str, text: str) -> str:
        """Return a text that says nothing; refuse any other."""
        del place
        if text not in TRIVIAL:
            raise self.problem
        return text

    def seal_bytes(self, place: str, data: bytes) -> bytes:
        """Refuse."""
        del place, data
        raise self.problem


Keys: TypeAlias = Encryption | Locked


@lru_cache(maxsize=4)  # each program opens several connections with the same keys
def _made(keys: tuple[str, ...]) -> Encryption:
    return Encryption(keys)


def default_encryption() -> Encryption | None:
    """Return the keys of the environment of this program; None if it has none."""
    return Encryption.from_env(os.environ)


def missing_text(missing: Sequence[str], ours: Sequence[str], place: str = "") -> str:
    """Return what to say where keys are missing."""
    what = f"{place} is" if place else "the payloads of this store are"
    has = f"the keys {', '.join(ours)}" if ours else "no key"
    return (
        f"{what} encrypted with the key {', '.join(missing)}, and this program has {has}: "
        f"add that key to {VARIABLE}, or to the file that {VARIABLE}_FILE names"
    )


def locked_text(why: object = "") -> str:
    """Return what people see in the place of a payload for which this program has no key."""
    return f"(encrypted: {why})" if why else "(encrypted)"


def is_locked_text(text: str) -> bool:
    """Whether a text is what `locked_text` returns, and no payload."""
    return text == locked_text() or (text.startswith("(encrypted: ") and VARIABLE in text)


def _changed(place: str, key: str) -> EncryptionError:
    return EncryptionError(
        f"{place} cannot be decrypted with its key {key}: it was changed, or moved here from "
        "another row; restore it from a backup"
    )


class _Key:
    """One key: what encrypts, what makes nonces and what makes names, each derived from it."""

    __slots__ = ("_aead", "_invalid", "_namer", "_noncer", "id")

    def __init__(self, text: str, place: int) -> None:
        with extra("encryption", "Encryption"):
            aead = import_module("cryptography.hazmat.primitives.ciphers.aead")
            hashes = import_module("cryptography.hazmat.primitives.hashes")
            hkdf = import_module("cryptography.hazmat.primitives.kdf.hkdf")
            self._invalid: Any = import_module("cryptography.exceptions").InvalidTag
        secret = _read(text, place)

        def derived(purpose: str) -> bytes:
            info = f"perdure payload 1 {purpose}".encode()
            return hkdf.HKDF(hashes.SHA256(), _KEY, salt=None, info=info).derive(secret)

        self.id: str = derived("id").hex()[:_ID]
        self._noncer, self._namer = derived("nonce"), derived("name")
        self._aead: Any = aead.AESGCM(derived("encryption"))

    def seal(self, place: str, data: bytes) -> bytes:
        where = place.encode()
        # The length of the place comes first, so that no place and data read as another pair.
        made = hmac.digest(self._noncer, len(where).to_bytes(4) + where + data, "sha256")[:_NONCE]
        return made + self._aead.encrypt(made, data, where)

    def open(self, place: str, sealed: bytes) -> bytes:
        try:
            return self._aead.decrypt(sealed[:_NONCE], sealed[_NONCE:], place.encode())
        except (self._invalid, ValueError):
            raise _changed(place, self.id) from None

    def name(self, job_id: str, digest: str) -> str:
        made = hmac.digest(self._namer, f"{job_id}/{digest}".encode(), "sha256")
        return f"{self.id}-{made.hex()[:32]}"


def _sealed(key: _Key, place: str, text: str) -> str:
    return f'{MARK}{key.id}:{b64encode(key.seal(place, text.encode())).decode()}"'


def _read(text: str, place: int) -> bytes:
    encoded = text.removeprefix(PREFIX)
    try:
        secret = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except (NotBase64, ValueError):
        secret = b""
    if encoded == text or len(secret) != _KEY:
        # Not shown: it may be a key with a typing mistake.
        raise EncryptionError(
            f"encryption key {place} is not a key: it begins with {PREFIX} and has 32 bytes; "
            "`perdure keys generate` makes one"
        )
    return secret
