"""Where a stream is in the logs, spelled so that only the server can read it.

The logs of all tenants are numbered together, so a number, or the difference of two, would tell how
much other tenants do. A place is therefore masked with the key of the store, which all servers of a
store share, and differently each time. One of another tenant cannot be read, and counts as none.
"""

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

_BYTES: Final = 8  # of the salt, of the place, and of what tells whether it is ours


def spell_place(key: bytes, tenant: str | None, place: int) -> str:
    """Return a place in the logs, as a client of a tenant gets it."""
    salt = secrets.token_bytes(_BYTES)
    mask = _mask(key, tenant, salt)
    masked = place ^ int.from_bytes(mask[:_BYTES], "big")
    data = salt + masked.to_bytes(_BYTES, "big") + mask[_BYTES : 2 * _BYTES]
    return urlsafe_b64encode(data).decode()


def read_place(key: bytes, tenant: str | None, text: str) -> int | None:
    """Return the place that a client brings back; None: we did not give it to this tenant."""
    try:
        data = urlsafe_b64decode(text)
    except ValueError:
        return None
    salt, masked, sign = data[:_BYTES], data[_BYTES : 2 * _BYTES], data[2 * _BYTES :]
    mask = _mask(key, tenant, salt)
    if not hmac.compare_digest(sign, mask[_BYTES : 2 * _BYTES]):
        return None
    place = int.from_bytes(masked, "big") ^ int.from_bytes(mask[:_BYTES], "big")
    return place if place < 2**62 else None  # whoever changed a bit of it gets no fault of ours


def _mask(key: bytes, tenant: str | None, salt: bytes) -> bytes:
    whose = b"all" if tenant is None else b"one " + tenant.encode("utf-8", "surrogatepass")
    return hmac.digest(key, b"perdure stream " + salt + whose, "sha256")
