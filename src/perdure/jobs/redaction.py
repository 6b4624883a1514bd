"""What of the details of an effect may be kept: neither secrets nor people's data; pure."""

import hmac
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec import Struct

from perdure.base.codec import digest
from perdure.base.schema import fields_of, is_model, is_secret
from perdure.base.secret import REMOVED, Secret, is_secret_name, without_secrets

_PERSONAL: Final = frozenset(
    {
        "address", "bcc", "birthday", "body", "cc", "email", "firstname", "fullname", "lastname",
        "mail", "mobile", "phone", "recipient", "recipients", "subject", "to",
    }
)  # fmt: skip
# Joined words whose last says it: `customerEmail`.
_PERSONAL_ENDS: Final = ("email", "phone", "address", "recipients")


class Redaction(Struct, frozen=True, kw_only=True):
    """Which fields are not kept as they are, by the names of fields.

    Attributes:
        secret: More names (letters and digits, in lower case) whose values are removed,
            besides those that `is_secret_name` knows.
        personal: The value is replaced by a fingerprint, by which equal ones can be told,
            but only within one tenant.
        open: These stay as they are, although the words above would hide them.
        key: By which fingerprints are made; None: by a key that the store has drawn for itself.
    """

    secret: frozenset[str] = frozenset()
    personal: frozenset[str] = _PERSONAL
    open: frozenset[str] = frozenset()
    key: Secret[bytes] | None = None

    def apply(self, value: Any, tenant: str, key: bytes) -> Any:
        """Give the value without what must not be kept.

        Args:
            value: Anything that JSON knows, with secrets, Structs, dataclasses and models inside.
            tenant: Whose it is.
            key: By which fingerprints are made, unless this redaction has its own.
        """
        own = key if self.key is None else self.key.reveal()
        return self._kept(plain(value), _Mark(own, tenant))

    def _kept(self, value: Any, mark: "_Mark") -> Any:
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

    def _field(self, name: str, value: Any, mark: "_Mark") -> Any:
        word = "".join(letter for letter in name.lower() if letter.isalnum())
        if word in self.open:
            return self._kept(value, mark)
        if word in self.secret or is_secret_name(name):
            return REMOVED
        if word in self.personal or word.endswith(_PERSONAL_ENDS):
            return _fingerprints(value, mark)
        return self._kept(value, mark)


def plain(value: Any) -> Any:
    """Give a value as plain JSON ones; a secret in it is removed, whatever model it stands in."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_as_plain)


def _as_plain(value: Any) -> Any:
    if is_secret(type(value)):
        return REMOVED
    if is_model(type(value)):
        return fields_of(value)  # not by its own serializers, which may reveal anything
    raise NotImplementedError(f"{type(value).__name__} cannot be stored")


def for_people(shown: bytes) -> Any:
    """Give the arguments of an action without those whose names say that they are secrets."""
    return _shown(msgspec.json.decode(shown))


def field_for_people(name: str, value: Any) -> Any:
    """Give one of them, likewise."""
    return REMOVED if is_secret_name(name) and value is not None else _shown(value)


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: field_for_people(name, part) for name, part in fields.items()}
    if isinstance(value, list):
        return [_shown(part) for part in cast("list[Any]", value)]
    return value


class _Mark(NamedTuple):
    """By which fingerprints are made: nobody without the key can try values out."""

    key: bytes
    tenant: str

    def of(self, text: str) -> str:
        given = digest("redacted", self.tenant, text)
        return "#" + hmac.new(self.key, given.encode(), "sha256").hexdigest()[:16]


def _fingerprints(value: Any, mark: _Mark) -> Any:
    """Replace every text and number inside by its fingerprint, so that their count stays."""
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
