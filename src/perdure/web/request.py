"""What a handler gets and gives, and how a route is declared.

A route is a line in a table: the method and path, the handler, the permission that it needs, and
the types of its query, body and answer. Everything else is derived from the table: how a request is
checked and decoded, the OpenAPI document, the matrix of tests, and the page of the documentation.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from perdure.web.access.principal import Permission, Principal
from perdure.web.access.tenant import Preparer, TenantHandle

Priority: TypeAlias = Annotated[int, Meta(ge=-(2**53), le=2**53)]  # every database has these
EVENTS: Final = "text/event-stream"
Method: TypeAlias = Literal["GET", "POST", "PUT", "DELETE"]


class Query(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a URL, none by default; those of a route are the fields of a subclass."""


class Follower(Protocol):
    """Sends those who ask a stream of what changes."""

    async def respond(self, request: "ApiRequest", /) -> Response: ...

    def recheck(self) -> None:
        """Check soon whether those who follow still may."""
        ...


class ApiRequest(Struct, frozen=True, kw_only=True):
    """A request that has passed every check.

    Attributes:
        principal: Who asks.
        store: The jobs of their tenant, and nothing else.
        query: The parameters of the URL, of the type that the route declares.
        path: The parts of the path that the route names.
        body: The body, of the type that the route declares; None without one.
        http: The request itself, for headers.
        prepare: Returns a job that could be submitted, for a schedule.
        streams: Answers with a stream of what changes.
        still_allowed: Whether its credential still counts: a stream may be open for long.
        csrf: The token that a browser sends with what it changes; None with a bearer token.
    """

    principal: Principal
    store: TenantHandle
    query: Any
    path: Mapping[str, str]
    body: Any
    http: Request
    prepare: Preparer
    streams: Follower
    still_allowed: Callable[[], Awaitable[bool]]
    csrf: str | None = None

    def href(self, path: str) -> str:
        """Return the path of something below the prefix that this app is mounted at."""
        return f"{self.http.scope.get('root_path', '')}{path}"


class Answer(Struct, frozen=True):
    """What a handler answers: a value of the route's type, which becomes JSON."""

    value: Any = None
    status: int = 200
    headers: Mapping[str, str] = {}


Handler: TypeAlias = Callable[[ApiRequest], Awaitable[Answer | Response]]


class Route(Struct, frozen=True, kw_only=True):
    """One line of the table.

    Attributes:
        method: The method.
        path: The path below the prefix; parts in braces are in `ApiRequest.path`.
        handler: Answers it.
        permission: What the principal must be allowed; None: whoever is signed in.
        query: The type of the parameters of the URL.
        request: The type of the body; None: there is none.
        response: The type of the answer.
        summary: What it does, in one line.
        media: The media type of the answer.
        status: The status of a success.
        tag: The group that it belongs to, in the documentation.
        cached: Whether the answer is one thing, with an ETag.
        shown_once: Whether the answer holds a secret: it is not kept for an idempotency key.
    """

    method: Method
    path: str
    handler: Handler
    permission: Permission | None
    summary: str
    query: type[Query] = Query
    request: Any = None
    response: Any = None
    media: str = "application/json"
    status: int = 200
    tag: str = "jobs"
    cached: bool = False
    shown_once: bool = False


class Page(Struct, frozen=True, kw_only=True):
    """A part of a list: pass `next` as `cursor` for the one after it; null: this is the last."""

    items: list[Any]
    next: str | None = None
    now: float


class Paged(Query, frozen=True, kw_only=True):
    """The parameters of a list."""

    limit: int = 50
    cursor: str | None = None
