"""The ASGI app that `app.asgi()` returns: the API, and what else is served beside it.

It is one Starlette app, which may be served by itself or mounted below any prefix of another app.
Every answer has headers by which a browser does only what our own pages need: nothing inline runs,
nothing is loaded from elsewhere, no other site may show our pages in a frame, and no other site
learns our addresses, which may hold secrets.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as HttpRoute

from perdure.base.errors import RequestRefused
from perdure.engine.caller import Caller
from perdure.notify.people import People
from perdure.observe.prometheus import Metrics
from perdure.web.access.gate import Access
from perdure.web.access.searches import Searches
from perdure.web.access.tenant import RECENT, Preparer
from perdure.web.body import LIMITS, RequestLimits
from perdure.web.changes import Changes
from perdure.web.dispatch import AccessGate, Backend, respond
from perdure.web.intake import Intake
from perdure.web.login import login_routes
from perdure.web.openapi import document_routes
from perdure.web.page import page_routes
from perdure.web.probes import probe_routes
from perdure.web.problem import problem_response
from perdure.web.request import Route
from perdure.web.routes import ROUTES, specific_first
from perdure.web.shutdown import ServerShutdown
from perdure.web.stream import Streams

if TYPE_CHECKING:
    from perdure.notify.links import LinkTokens
    from perdure.notify.slack import SlackSettings

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
RawHeaders: TypeAlias = list[tuple[bytes, bytes]]

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; font-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Final = {
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
_RAW: Final[RawHeaders] = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
_RAW_TLS: Final[RawHeaders] = [*_RAW, (b"strict-transport-security", b"max-age=31536000")]


class AsgiOptions(TypedDict, total=False):
    """The options of `App.asgi`, which explains them."""

    access: AccessGate | None
    limits: RequestLimits
    people: People | None
    links: "LinkTokens | None"
    slack: "SlackSettings | None"
    origin: str | None


def web_app(caller: Caller, prepare: Preparer, options: AsgiOptions) -> "WebApp":
    """Return the ASGI app of an app or a client: see `App.asgi`."""
    shutdown, gate = ServerShutdown(), options.get("access") or Access()
    streams = Streams(Changes(caller), shutdown)
    if isinstance(gate, Access):
        gate.bind(caller, streams.recheck)
    limits = options.get("limits", LIMITS)
    backend = Backend(
        caller=caller,
        streams=streams,
        gate=gate,
        recent=gate.settings.recent if isinstance(gate, Access) else RECENT,
        prepare=prepare,
        limits=limits,
        searches=Searches(limits.searches, limits.search),
    )
    return WebApp(backend, shutdown, _approval_routes(backend, options))


def _approval_routes(backend: Backend, options: AsgiOptions) -> list[HttpRoute]:
    links, slack = options.get("links"), options.get("slack")
    if links is None and slack is None:
        return []
    pages = import_module("perdure.web.approval_pages")  # it needs extras
    people, origin = options.get("people"), options.get("origin")
    return pages.approval_routes(backend, people, links, slack, origin)


class WebApp:
    """The ASGI app."""

    def __init__(
        self, backend: Backend, shutdown: ServerShutdown, more: Sequence[HttpRoute] = ()
    ) -> None:
        """Make the app.

        Args:
            backend: What answers requests.
            shutdown: Ends its streams.
            more: Other routes beside the API.
        """
        self.backend = backend
        self.shutdown = shutdown
        self.metrics = Metrics()
        probes = probe_routes(backend.caller, backend.gate, self.metrics)
        self._inner = Starlette(
            routes=[
                *_http_routes(backend, ROUTES),
                *document_routes(),
                *_login_routes(backend),
                *probes,
                *more,
                *page_routes(),
            ],
            exception_handlers={HTTPException: _refused, RequestRefused: _refused},
            lifespan=self.lifespan,
        )
        self._intake = Intake(self._inner, backend.limits, _counter(backend.gate))

    @property
    def routes(self) -> list[BaseRoute]:
        """Everything that is served."""
        return self._inner.routes

    @asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncGenerator[None, None]:
        """Use the store, and count for `/metrics`, inside the block.

        Servers do it by themselves. An app that this one is mounted in does it in its own lifespan:
        `FastAPI(lifespan=pages.lifespan)`.
        """
        with self.metrics.listening():
            async with self.backend.caller:
                yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _with_headers(
                    message.get("headers", ()), scope.get("scheme", "http")
                )
            await send(message)

        await self._intake(scope, receive, guarded)


def _with_headers(given: Iterable[tuple[bytes, bytes]], scheme: str) -> RawHeaders:
    """Return the headers of an answer with ours; a part may have stricter ones of its own.

    Args:
        given: The headers so far.
        scheme: "https", or "http", over which a browser must not be made to insist on TLS.
    """
    listed = list(given)
    known = {name.lower() for name, _ in listed}
    ours = _RAW_TLS if scheme == "https" else _RAW
    return listed + [pair for pair in ours if pair[0] not in known]


def _login_routes(backend: Backend) -> list[HttpRoute]:
    gate = backend.gate
    return login_routes(gate, backend.limits) if isinstance(gate, Access) else []


def _counter(gate: AccessGate) -> Callable[[Request], None]:
    """Return what counts how often an address asks; a gate of another kind counts by itself."""
    return gate.count if isinstance(gate, Access) else lambda _: None


async def _refused(_: Request, error: Exception) -> Response:
    return problem_response(error)


def _http_routes(backend: Backend, table: Sequence[Route]) -> list[HttpRoute]:
    """Return one route of Starlette for each path, which knows all methods of it."""
    by_path: dict[str, dict[str, Route]] = {}
    for route in specific_first(tuple(table)):
        by_path.setdefault(route.path, {})[route.method] = route
    return [_http_route(backend, path, methods) for path, methods in by_path.items()]


def _http_route(backend: Backend, path: str, methods: dict[str, Route]) -> HttpRoute:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await respond(backend, methods[method], request)

    return HttpRoute(path, endpoint, methods=list(methods))
