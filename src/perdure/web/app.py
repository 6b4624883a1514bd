"""The ASGI app that `app.asgi()` returns: the API, and what else is served beside it.

It is one Starlette app, which may be served by itself or mounted below any prefix of another app.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias, TypedDict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from perdure.engine.caller import Caller
from perdure.web.access.tenant import Preparer
from perdure.web.body import LIMITS, RequestLimits
from perdure.web.changes import Changes
from perdure.web.dispatch import Backend, Gate, respond
from perdure.web.openapi import document_routes
from perdure.web.page import page_routes
from perdure.web.problem import problem_response
from perdure.web.request import Route
from perdure.web.routes import ROUTES, specific_first
from perdure.web.shutdown import Shutdown
from perdure.web.stream import Streams

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; font-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Closed:
    """Lets nobody in."""

    async def authenticate(self, _: Request, /) -> None:
        """Return None: nobody is known."""


class AsgiOptions(TypedDict, total=False):
    """The options of `App.asgi`, which explains them."""

    access: Gate | None
    limits: RequestLimits


def web_app(caller: Caller, prepare: Preparer, options: AsgiOptions) -> "WebApp":
    """Return the ASGI app of an app or a client: see `App.asgi`."""
    shutdown = Shutdown()
    backend = Backend(
        caller=caller,
        streams=Streams(Changes(caller), shutdown),
        gate=options.get("access") or Closed(),
        prepare=prepare,
        limits=options.get("limits", LIMITS),
    )
    return WebApp(backend, shutdown)


class WebApp:
    """The ASGI app."""

    def __init__(self, backend: Backend, shutdown: Shutdown) -> None:
        """Make the app.

        Args:
            backend: What answers requests.
            shutdown: Ends its streams.
        """
        self.backend = backend
        self.shutdown = shutdown
        self._inner = Starlette(
            routes=[*_http_routes(backend, ROUTES), *document_routes(), *page_routes()],
            exception_handlers={HTTPException: _refused},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None, None]:
        async with self.backend.caller:
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _with_headers(message.get("headers", ()))
            await send(message)

        await self._inner(scope, receive, guarded)


_RAW: Final = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


def _with_headers(given: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer with ours; a part may have stricter ones of its own."""
    listed = list(given)
    known = {name.lower() for name, _ in listed}
    return listed + [pair for pair in _RAW if pair[0] not in known]


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
