"""What of the details of an effect may be kept: neither secrets nor people's data; pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from msgspec import Struct

from perdure.base.codec import digest
from perdure.base.secret import Secret

REMOVED: Final = "[removed]"

_SECRET: Final = frozenset(
    {
        "apikey", "auth", "authorization", "card", "cardnumber", "cookie", "credential",
        "credentials", "cvc", "cvv", "iban", "otp", "passphrase", "passwd", "password", "pin",
        "privatekey", "secret", "session", "signature", "ssn", "token",
    }
)  # fmt: skip
_PERSONAL: Final = frozenset(
    {
        "address", "bcc", "birthday", "body", "cc", "email", "firstname", "fullname", "lastname",
        "mail", "mobile", "phone", "recipient", "recipients", "subject", "to",
    }
)  # fmt: skip
# Joined words whose last says it: `access_token`, `client-secret`, `customerEmail`.
_SECRET_ENDS: Final = ("token", "secret", "password", "apikey", "privatekey", "credentials")
_PERSONAL_ENDS: Final = ("email", "phone", "address", "recipients")


class Redaction(Struct, frozen=True, kw_only=True):
    """Which fields are not kept as they are, by the names of fields.

    Attributes:
        secret: The value is removed.
        personal: The value is replaced by a fingerprint, by which equal ones can be told,
            but only within one tenant.
        open: These stay as they are, although the words above would hide them.
    """

    secret: frozenset[str] = _SECRET
    personal: frozenset[str] = _PERSONAL
    open: frozenset[str] = frozenset()

    def apply(self, value: Any, tenant: str) -> Any:
        """Give the value without what must not be kept."""
        match value:
            case Secret():
                return REMOVED
            case Mapping():
                fields = cast("Mapping[Any, Any]", value)
                return {key: self._field(str(key), part, tenant) for key, part in fields.items()}
            case list() | tuple():
                return [self.apply(part, tenant) for part in cast("Sequence[Any]", value)]
            case _:
                return value

    def _field(self, name: str, value: Any, tenant: str) -> Any:
        word = "".join(letter for letter in name.lower() if letter.isalnum())
        if word in self.open:
            return self.apply(value, tenant)
        if word in self.secret or word.endswith(_SECRET_ENDS):
            return REMOVED
        if word in self.personal or word.endswith(_PERSONAL_ENDS):
            return _fingerprints(value, tenant)
        return self.apply(value, tenant)


def _fingerprints(value: Any, tenant: str) -> Any:
    """Replace every text and number inside by its fingerprint, so that their count stays."""
    match value:
        case None | bool():
            return value
        case Mapping():
            fields = cast("Mapping[Any, Any]", value)
            return {str(key): _fingerprints(part, tenant) for key, part in fields.items()}
        case list() | tuple():
            return [_fingerprints(part, tenant) for part in cast("Sequence[Any]", value)]
        case _:
            return "#" + digest("redacted", tenant, str(value))[:16]
