"""Remove secrets and personal data from the details of an effect before they are stored; pure.

The value of a secret field is removed. A personal one is replaced by a keyed fingerprint, so that
equal values can still be recognised within one tenant, and nobody without the key can guess them.
"""

import hmac
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec import Struct

from perdure.base.codec import digest, read_plain
from perdure.base.schema import fields_of, is_model, is_secret
from perdure.base.secret import REMOVED, Secret, is_secret_name, without_secrets
from perdure.jobs.payload import stand_in_of

_PERSONAL: Final = frozenset(
    {
        "address", "bcc", "birthday", "body", "cc", "email", "firstname", "fullname", "lastname",
        "mail", "mobile", "phone", "recipient", "recipients", "subject", "to",
    }
)  # fmt: skip
# A compound is judged by its last word: `customerEmail`.
_PERSONAL_ENDS: Final = ("email", "phone", "address", "recipients")


class Redaction(Struct, frozen=True, kw_only=True):
    """Which fields are not stored as they are, by field name.

    Attributes:
        secret: More names (letters and digits, in lower case) whose values are removed,
            besides those that `is_secret_name` knows.
        personal: Names whose values are replaced by a fingerprint.
        open: Names that stay as they are, although the rules above would hide them.
        key: The key of the fingerprints; None: one that the store generated for itself.
    """

    secret: frozenset[str] = frozenset()
    personal: frozenset[str] = _PERSONAL
    open: frozenset[str] = frozenset()
    key: Secret[bytes] | None = None

    def apply(self, value: Any, tenant: str, key: bytes) -> Any:
        """Return the value without what must not be stored.

        Args:
            value: JSON values, with secrets, Structs, dataclasses and models inside.
            tenant: The tenant of the job.
            key: The key of the fingerprints, unless this redaction has its own.
        """
        own = key if self.key is None else self.key.reveal()
        return self._kept(plain(value), _Fingerprint(own, tenant))

    def _kept(self, value: Any, mark: "_Fingerprint") -> Any:
        match value:
            case dict():
                fields = cast("dict[str, Any]", value)
                return {
                    without_secrets(name): self._field(name, part, mark)
                    for name, part in fields.items()
                }
            case list():
                return [self._kept(part, mark) for part in cast("list[Any]", value)]
            case str():
                return without_secrets(value)
            case _:
                return value

    def _field(self, name: str, value: Any, mark: "_Fingerprint") -> Any:
        word = "".join(letter for letter in name.lower() if letter.isalnum())
        if word in self.open:
            return self._kept(value, mark)
        if word in self.secret or is_secret_name(name):
            return REMOVED
        if word in self.personal or word.endswith(_PERSONAL_ENDS):
            return _fingerprints(value, mark)
        return self._kept(value, mark)


def plain(value: Any) -> Any:
    """Return a value as plain JSON; secrets are removed, whatever model holds them."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_as_plain)


def _as_plain(value: Any) -> Any:
    if is_secret(type(value)):
        return REMOVED
    if is_model(type(value)):
        return fields_of(value)  # not its own serializer, which may reveal anything
    raise NotImplementedError(f"{type(value).__name__} cannot be stored")


def for_people(shown: bytes) -> Any:
    """Return stored JSON to show to people, without values of secret names.

    Of a large payload of a journal, which is elsewhere, these are its digest, size and preview.
    """
    stand_in = stand_in_of(shown)
    return _shown(read_plain(shown)) if stand_in is None else stand_in.shown()


def field_for_people(name: str, value: Any) -> Any:
    """Return one argument to show to people; the value of a secret name is removed."""
    return REMOVED if is_secret_name(name) and value is not None else _shown(value)


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: field_for_people(name, part) for name, part in fields.items()}
    if isinstance(value, list):
        return [_shown(part) for part in cast("list[Any]", value)]
    return value


class _Fingerprint(NamedTuple):
    """Makes fingerprints; without the key, nobody can try values out."""

    key: bytes
    tenant: str

    def of(self, text: str) -> str:
        given = digest("redacted", self.tenant, text)
        return "#" + hmac.new(self.key, given.encode(), "sha256").hexdigest()[:16]


def _fingerprints(value: Any, mark: _Fingerprint) -> Any:
    """Replace each text and number inside by its fingerprint; the structure stays."""
    match value:
        case None | bool():
            return value
        case dict():
            fields = cast("dict[str, Any]", value)
            return {name: _fingerprints(part, mark) for name, part in fields.items()}
        case list():
            return [_fingerprints(part, mark) for part in cast("list[Any]", value)]
        case _:
            return mark.of(str(value))
