"""Where a request comes from, as browsers say: only our own page may change something.

A browser sends the cookies of a site with requests that another site makes. It also says who makes
them: in `Origin`, and in `Sec-Fetch-Site`. What changes something by a cookie needs at least one of
the two, each that is there must say that it was our own page, and the page must know the token of
the session.
"""

from typing import Final

from starlette.requests import Request

from perdure.base.errors import AccessDenied, RequestRefused
from perdure.web.access.secret_text import csrf_token, same_secret

CSRF_HEADER: Final = "x-csrf-token"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

_OURS: Final = "same-origin"


def origin_of(request: Request, configured: str | None) -> str | None:
    """Return our own origin, as a browser would name it; None if the request does not say."""
    if configured is not None:
        return configured.rstrip("/").lower()
    host = request.headers.get("host", "").lower()
    return f"{request.scope['scheme']}://{host}" if host else None


def host_name(request: Request) -> str:
    """Return the name by which we were reached, without the port."""
    host = request.headers.get("host", "").lower()
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def check_host(request: Request, hosts: frozenset[str] | None) -> None:
    """Refuse a request that came by a name which is not ours.

    Raises:
        RequestRefused: It did.
    """
    if hosts is not None and host_name(request) not in hosts:
        raise RequestRefused(421, "unknown_host", "this server is not known by that name")


def check_site(request: Request, configured: str | None, *, needed: bool = True) -> None:
    """Refuse what another site makes a browser do.

    Args:
        request: What changes something.
        configured: Our own origin, if it is configured.
        needed: Refuse it also if nothing says where it comes from.

    Raises:
        AccessDenied: It is, or may be, from elsewhere.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is None and origin is None:
        if needed:
            raise _elsewhere("nothing says that this request comes from our own page")
        return
    if site is not None and site != _OURS:
        raise _elsewhere("this request comes from another site")
    if origin is not None and origin.lower() != origin_of(request, configured):
        raise _elsewhere("this request comes from another origin")


def check_csrf(secret: str, given: str | None) -> None:
    """Refuse what does not have the token of a session.

    Raises:
        AccessDenied: It has none, or another one.
    """
    if given is None or not same_secret(given, csrf_token(secret)):
        raise _elsewhere("the token in X-CSRF-Token is missing or of another session")


def _elsewhere(text: str) -> AccessDenied:
    return AccessDenied("csrf", text)
