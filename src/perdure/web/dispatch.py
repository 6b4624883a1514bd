"""From a request to an answer: every check, in one order, for every route.

1. Before all routes (`intake`): how often the address asks, and what it holds already.
2. Authentication, then the permission that the route names. Nothing of the body is read until then.
3. The body, within limits of size, time and depth; it and the parameters are decoded strictly into
   the types of the route.
4. The handler, within a deadline.
5. The answer as JSON, with an ETag where it is one thing; an error as a problem.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from perdure.base.codec import write_plain
from perdure.base.errors import AccessDenied, RequestRefused
from perdure.engine.caller import Caller
from perdure.web.access.audit_trail import KeyedRequest
from perdure.web.access.gate import CSRF_SCOPE
from perdure.web.access.principal import Principal
from perdure.web.access.searches import Searches
from perdure.web.access.sessions import mark_unattended
from perdure.web.access.tenant import RECENT, Preparer, TenantHandle
from perdure.web.body import LIMITS, RequestLimits, check_depth, read_body
from perdure.web.idempotency import once
from perdure.web.intake import held_by
from perdure.web.problem import problem_response
from perdure.web.request import EVENTS, Answer, ApiRequest, Follower, Query, Route

_JSON: Final = "application/json"


class AccessGate(Protocol):
    """Who asks: see `perdure.web.access`."""

    async def authenticate(self, request: Request, /) -> Principal | None:
        """Return who asks; None if nobody is signed in."""
        ...


class Backend(Struct, frozen=True, kw_only=True):
    """What answers requests: an app or a client, who may use it, and the limits.

    Attributes:
        caller: The app or client.
        gate: Who asks.
        prepare: How jobs are made from names and plain arguments.
        streams: How changes are followed.
        limits: The limits of one request.
        recent: Seconds after a sign-in within which a person may decide about HIGH risks.
        searches: The searches of all tenants that are under way.
    """

    caller: Caller
    gate: AccessGate
    prepare: Preparer
    streams: Follower
    limits: RequestLimits = LIMITS
    recent: float = RECENT
    searches: Searches | None = None


async def respond(backend: Backend, route: Route, request: Request) -> Response:
    """Answer a request to a route; never raises, except if the client has hung up."""
    try:
        async with asyncio.timeout(backend.limits.deadline):
            return await _answer(backend, route, request)
    except (ClientDisconnect, asyncio.CancelledError):
        raise
    except Exception as error:  # noqa: BLE001  every error becomes an answer
        return problem_response(error)


async def _answer(backend: Backend, route: Route, request: Request) -> Response:
    if route.media == EVENTS:
        mark_unattended(request)
    principal = await authenticated(backend, request)
    held_by(request).belongs_to(principal)
    if route.permission is not None and not principal.may(route.permission):
        raise AccessDenied("forbidden", f"this needs the permission {route.permission}")
    body = await read_body(request, backend.limits)
    check_depth(body, backend.limits.depth)
    asked = ApiRequest(
        principal=principal,
        store=_handle(backend, principal),
        query=_query(request, route.query),
        path=_path(request),
        body=None if route.request is None else _decoded(request, body, route.request),
        http=request,
        prepare=backend.prepare,
        streams=backend.streams,
        csrf=request.scope.get(CSRF_SCOPE),
        still_allowed=partial(_still_allowed, backend, request, principal),
    )

    async def answer(keyed: KeyedRequest | None) -> Response:
        handle = (
            asked if keyed is None else replace(asked, store=_handle(backend, principal, keyed))
        )
        found = await route.handler(handle)
        return found if isinstance(found, Response) else _response(request, route, found)

    if route.shown_once:
        return await answer(None)
    return await once(backend.caller.verbs, request, principal, body, answer)


def _handle(
    backend: Backend, principal: Principal, keyed: KeyedRequest | None = None
) -> TenantHandle:
    return TenantHandle(
        backend.caller,
        principal,
        prepare=backend.prepare,
        recent=backend.recent,
        keyed=keyed,
        searches=backend.searches,
    )


async def authenticated(backend: Backend, request: Request) -> Principal:
    """Return who asks.

    Raises:
        AccessDenied: Nobody is signed in.
    """
    principal = await backend.gate.authenticate(request)
    if principal is None:
        raise AccessDenied("unauthenticated", "sign in, or send a token of a program")
    return principal


async def _still_allowed(backend: Backend, request: Request, principal: Principal) -> bool:
    try:
        found = await backend.gate.authenticate(request)
    except RequestRefused:  # too often: a stream ends rather than to go on unchecked
        return False
    return found is not None and found.permissions >= principal.permissions


def _path(request: Request) -> Mapping[str, str]:
    found: dict[str, str] = dict(request.path_params)
    if any("\0" in part for part in found.values()):
        raise RequestRefused(400, "bad_path", "the path has a NUL")
    return found


def _query(request: Request, kind: type[Query]) -> Query:
    """Return the parameters of the URL; those that come more than once are joined by commas."""
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        given[name] = f"{given[name]},{value}" if name in given else value
    if any("\0" in text for text in given.values()):
        raise RequestRefused(400, "bad_query", "a parameter has a NUL")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        text = f"the parameters do not fit: {error}{_known_fields(error, kind)}"
        raise RequestRefused(400, "bad_query", text) from None


def _decoded(request: Request, body: bytes, kind: Any) -> Any:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != _JSON:
        text = f"the body must be JSON: send `Content-Type: {_JSON}`"
        raise RequestRefused(415, "not_json", text)
    try:
        return msgspec.json.decode(body, type=kind, strict=True)
    except msgspec.ValidationError as error:
        text = f"the body does not fit: {error}{_known_fields(error, kind)}"
        raise RequestRefused(422, "invalid_body", text) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRefused(400, "malformed_json", f"the body is not JSON: {error}") from None


def _known_fields(error: msgspec.ValidationError, kind: Any) -> str:
    """Return the fields that there are, if an unknown one was given."""
    if "unknown field" not in str(error) or " - at " in str(error):
        return ""
    names = (field.encode_name for field in msgspec.structs.fields(kind))
    return f"; there are {', '.join(names) or 'none'}"


def _response(request: Request, route: Route, answer: Answer) -> Response:
    headers = {"cache-control": "no-store", **answer.headers}
    if answer.value is None:
        return Response(None, answer.status, headers)
    body = encoded(answer.value)
    if route.cached:
        tag = f'"{blake2b(body, digest_size=16).hexdigest()}"'
        headers |= {"etag": tag, "cache-control": "private, no-cache"}
        if _knows(request.headers.get("if-none-match", ""), tag):
            return Response(None, 304, headers)
    return Response(body, answer.status, headers, route.media)


def _knows(given: str, tag: str) -> bool:
    known = {each.strip().removeprefix("W/") for each in given.split(",")}
    return tag in known or known == {"*"}


def encoded(value: Any) -> bytes:
    """Return an answer as JSON; also if a text has lone surrogates."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return write_plain(msgspec.to_builtins(value))
