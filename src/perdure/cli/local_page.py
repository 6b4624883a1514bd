"""The page of one machine: `perdure dev` and `perdure demo` serve it to whoever has their link.

A link works once. It gives the browser a cookie that ends with the program, and whoever has the
cookie is the person who started the program. Only this machine reaches the page.
"""

import getpass
import secrets
from collections.abc import Callable
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from perdure.base.clock import SystemClock
from perdure.web.access.principal import Principal, Role
from perdure.web.app import Receive, Scope, Send, WebApp
from perdure.web.server import ServerSettings, serve

COOKIE: Final = "perdure-local"
_LINK: Final = "/local/"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_BYTES: Final = 32  # of a secret


class LocalGate:
    """Lets in who has the cookie that a link gave."""

    def __init__(self) -> None:
        name = getpass.getuser()
        self._links: set[str] = set()
        self._cookie = secrets.token_urlsafe(_BYTES)
        self._principal = Principal(
            id=name,
            name=name,
            tenant=None,
            roles=frozenset({Role.VIEWER, Role.OPERATOR, Role.APPROVER, Role.ADMIN}),
            signed_in_at=SystemClock().time(),
        )

    async def authenticate(self, request: Request, /) -> Principal | None:
        """Return the person who started the program; None without the cookie."""
        if request.method not in _SAFE and not _is_from_here(request):
            return None
        return self._principal if self._has_cookie(request) else None

    def _has_cookie(self, request: Request) -> bool:
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return found is not None and compare_digest(found.value.encode(), self._cookie.encode())

    def new_link(self) -> str:
        """Return the path of a link that works once."""
        secret = secrets.token_urlsafe(_BYTES)
        self._links.add(secret)
        return _LINK + secret

    def open(self, request: Request) -> Response:
        """Answer a visit of a link: the first one gets the cookie."""
        given = request.url.path.removeprefix(_LINK)
        known = [each for each in self._links if compare_digest(each.encode(), given.encode())]
        if not known:
            return PlainTextResponse("This link was used before, or is none of ours.\n", 403)
        self._links.difference_update(known)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, self._cookie, httponly=True, samesite="strict")
        return answer


def _is_from_here(request: Request) -> bool:
    """Whether a change was asked for by our own page, and not by another site in the browser."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


class LocalPage(WebApp):
    """The API and the page, with the link beside them."""

    def __init__(self, made: WebApp, gate: LocalGate) -> None:
        super().__init__(made.backend, made.shutdown)
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_LINK):
            await self._gate.open(Request(scope))(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


async def serve_locally(
    make: Callable[[LocalGate], WebApp],
    port: int,
    listening: Callable[[Callable[[], str]], Any],
    *,
    signals: bool = False,
) -> None:
    """Serve the page on this machine until it is cancelled.

    Args:
        make: Returns the app for a gate.
        port: 0 takes any that is free.
        listening: Called when it listens, with a function that returns a new link.
        signals: Whether SIGTERM and Ctrl-C stop it too.

    Raises:
        OSError: The port cannot be had.
    """
    gate = LocalGate()
    page = LocalPage(make(gate), gate)
    settings = ServerSettings(port=port, signals=signals)
    await serve(page, settings, lambda url: listening(lambda: url + gate.new_link()))
