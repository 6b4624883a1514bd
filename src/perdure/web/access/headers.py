"""The headers that every answer has, so that a browser does only what our own pages need.

Nothing inline runs, nothing is loaded from elsewhere, no other site may show our pages in a frame,
and no other site learns our addresses, which may hold secrets.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

RawHeaders: TypeAlias = list[tuple[bytes, bytes]]

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; font-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not `no-referrer`: with that, a browser sends the origin of our own forms as `null`.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
HSTS: Final = ("strict-transport-security", "max-age=31536000")

_RAW: Final[RawHeaders] = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_RAW_TLS: Final[RawHeaders] = [*_RAW, (HSTS[0].encode(), HSTS[1].encode())]


def with_headers(given: Iterable[tuple[bytes, bytes]], scheme: str) -> RawHeaders:
    """Return the headers of an answer with ours; a part may have stricter ones of its own.

    Args:
        given: The headers so far.
        scheme: "https", or "http", over which a browser must not be made to insist on TLS.
    """
    listed = list(given)
    known = {name.lower() for name, _ in listed}
    ours = _RAW_TLS if scheme == "https" else _RAW
    return listed + [pair for pair in ours if pair[0] not in known]
