"""What is not stored, or not shown: secrets, account numbers and personal data; pure.

The value of a secret field is removed. A personal one is replaced by a keyed fingerprint, so that
equal values can still be recognised within one tenant, and nobody without the key can guess them.
Of the number of an account or a card, people see the last characters and such a fingerprint.

What people are shown is never what is stored: `refuse_markers` looks at everything that comes in.
"""

import hmac
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec import Struct

from perdure.base.codec import digest, read_plain
from perdure.base.encryption import is_locked_text
from perdure.base.errors import ArgumentError
from perdure.base.schema import fields_of, is_model, is_secret
from perdure.base.secret import (
    REMOVED,
    Secret,
    is_account_name,
    is_secret_name,
    without_secrets,
)
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
        return self._kept(plain(value), Fingerprints(own, tenant))

    def _kept(self, value: Any, mark: "Fingerprints") -> Any:
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

    def _field(self, name: str, value: Any, mark: "Fingerprints") -> Any:
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


# For people


class Fingerprints(NamedTuple):
    """Makes fingerprints; without the key, nobody can try values out."""

    key: bytes
    tenant: str

    def of(self, text: str) -> str:
        """Return the fingerprint of a text, in hexadecimal digits."""
        given = digest("redacted", self.tenant, text)
        return hmac.new(self.key, given.encode(), "sha256").hexdigest()


def for_people(shown: bytes, marks: Fingerprints | None = None) -> Any:
    """Return stored JSON to show to people, without values of secret names.

    Of a large payload of a journal, which is elsewhere, these are its digest, size and preview.

    Args:
        shown: What is stored.
        marks: Makes the fingerprints of account numbers; None: there are none.
    """
    stand_in = stand_in_of(shown)
    return _shown(read_plain(shown), marks) if stand_in is None else stand_in.shown()


def revealed(stored: bytes) -> Any:
    """Return stored JSON with account and card numbers; passwords, tokens and keys are removed."""
    stand_in = stand_in_of(stored)
    return _revealed(read_plain(stored)) if stand_in is None else stand_in.shown()


def field_for_people(name: str, value: Any, marks: Fingerprints | None = None) -> Any:
    """Return one argument to show to people; of the value of a secret name a marker."""
    if value is None or not is_secret_name(name):
        return _shown(value, marks)
    return _account(value, marks) if is_account_name(name) else REMOVED


def _shown(value: Any, marks: Fingerprints | None) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: field_for_people(name, part, marks) for name, part in fields.items()}
    if isinstance(value, list):
        return [_shown(part, marks) for part in cast("list[Any]", value)]
    return value


def _revealed(value: Any) -> Any:
    if isinstance(value, list):
        return [_revealed(part) for part in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {name: _revealed_field(name, part) for name, part in fields.items()}


def _revealed_field(name: str, value: Any) -> Any:
    if value is None or not is_secret_name(name):
        return _revealed(value)
    return value if is_account_name(name) and isinstance(value, str | int) else REMOVED


_LONG_ENOUGH: Final = 12  # letters and digits: of a shorter number, four would tell too much
_LAST: Final = 4
_FINGERPRINT: Final = 8  # hexadecimal digits
_MARKER: Final = re.compile(
    rf"\[removed: (?:…\w{{{_LAST}}}|fp [0-9a-f]{{{_FINGERPRINT}}}"
    rf"|…\w{{{_LAST}}}, fp [0-9a-f]{{{_FINGERPRINT}}})\]"
)


def _account(value: Any, marks: Fingerprints | None) -> str:
    """Return what people see of an account number: `[removed: …4321, fp 9f3a77c1]`."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return REMOVED
    if marks is None and isinstance(value, str) and is_marker(value):
        return value  # of an approval, which is stored as people see it
    number = "".join(letter for letter in str(value).upper() if letter.isalnum())
    last = [f"…{number[-_LAST:]}"] if len(number) >= _LONG_ENOUGH else []
    mark = [] if marks is None else [f"fp {marks.of(number)[:_FINGERPRINT]}"]
    return f"[removed: {', '.join(last + mark)}]" if last or mark else REMOVED


def is_marker(text: str) -> bool:
    """Whether a text stands for a value that was removed, and is no value itself."""
    return text == REMOVED or _MARKER.fullmatch(text) is not None


def refuse_markers(stored: bytes, what: str) -> None:
    """Refuse what people were shown in the place of a value, wherever values come in.

    `[removed]` alone is a marker only under a secret name, where nothing else shows it: elsewhere
    it may be what somebody wrote.

    Args:
        stored: What would be stored.
        what: What it is, for the message: "the arguments of job 'pay'".

    Raises:
        ArgumentError: There is such a marker in it; every place is named.
    """
    if b"[removed" not in stored and b"(encrypted" not in stored:
        return
    problems = [
        f"`{'.'.join(path) or 'the value'}` is {text!r}, which only stands for a value that is "
        "not shown: leave it out where the stored one is to stay, or give the value itself"
        for path, text in _markers(read_plain(stored), (), is_secret=False)
    ]
    if problems:
        raise ArgumentError(what, problems)


def _markers(
    value: Any, path: tuple[str, ...], *, is_secret: bool
) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for name, part in cast("dict[str, Any]", value).items():
            yield from _markers(part, (*path, name), is_secret=is_secret or is_secret_name(name))
    elif isinstance(value, list):
        for index, part in enumerate(cast("list[Any]", value)):
            yield from _markers(part, (*path, str(index)), is_secret=is_secret)
    elif isinstance(value, str):
        text = value.strip()
        if is_locked_text(text) or (is_marker(text) and (is_secret or text != REMOVED)):
            yield path, text


def _fingerprints(value: Any, mark: Fingerprints) -> Any:
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
            return f"#{mark.of(str(value))[:16]}"
