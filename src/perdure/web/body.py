"""The body of a request, read within limits before anything else is done with it.

Anybody may send requests, so nothing here depends on who sent them: an endless body must not hold
memory, a slow one must not hold a connection, and deep JSON must not exhaust the stack.
"""

import asyncio
import re
from typing import Final

from msgspec import Struct
from starlette.requests import Request

from perdure.base.errors import RequestRefused

# It matches wherever a string begins, also one without an end: a search that fails at each of many
# quotes takes quadratic time.
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]{}]")
_OPENING: Final = (b"[", b"{")


class RequestLimits(Struct, frozen=True, kw_only=True):
    """The limits of one request; what is beyond them is refused before authentication.

    Attributes:
        body: Bytes of the body.
        messages: Pieces in which it may come: an empty one costs time, too.
        body_timeout: Seconds until all of it must be there.
        deadline: Seconds until the answer must begin.
        depth: How deeply JSON may be nested.
        url: Characters of path and query.
        header: Characters of one header.
    """

    body: int = 1024 * 1024
    messages: int = 4096
    body_timeout: float = 15.0
    deadline: float = 30.0
    depth: int = 64
    url: int = 8 * 1024
    header: int = 16 * 1024


LIMITS: Final = RequestLimits()


async def read_body(request: Request, limits: RequestLimits) -> bytes:
    """Return the body.

    Raises:
        RequestRefused: It, the URL or a header is too long, too slow, or nested too deeply.
    """
    _check_head(request, limits)
    if request.method in ("GET", "HEAD"):
        return b""
    try:
        async with asyncio.timeout(limits.body_timeout):
            body = await _read(request, limits)
    except TimeoutError:
        text = f"the body was not complete within {limits.body_timeout:g} seconds"
        raise RequestRefused(408, "body_too_slow", text) from None
    if _depth(body, limits.depth) > limits.depth:
        text = f"the JSON is nested more than {limits.depth} levels deep"
        raise RequestRefused(400, "too_deep", text)
    return body


def _check_head(request: Request, limits: RequestLimits) -> None:
    url = len(request.scope["path"]) + len(request.scope.get("query_string", b""))
    if url > limits.url:
        raise RequestRefused(414, "url_too_long", f"the URL is longer than {limits.url:,} bytes")
    for name, value in request.scope["headers"]:
        if len(name) + len(value) > limits.header:
            text = f"a header is longer than {limits.header:,} bytes"
            raise RequestRefused(431, "header_too_long", text)
    length = request.headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit():
        raise RequestRefused(400, "bad_length", "Content-Length is not a number")
    # Long rows of digits are never converted to a number: that takes time, too.
    if len(length) > len(str(limits.body)) or int(length) > limits.body:
        raise _too_large(limits)


async def _read(request: Request, limits: RequestLimits) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > limits.body or len(parts) > limits.messages:
            raise _too_large(limits)
    return b"".join(parts)


def _too_large(limits: RequestLimits) -> RequestRefused:
    text = f"the body has more than {limits.body:,} bytes, or comes in too many pieces"
    return RequestRefused(413, "body_too_large", text)


def _depth(body: bytes, most: int) -> int:
    """Return how deeply JSON is nested, as far as that may be more than `most`."""
    if sum(body.count(bracket) for bracket in _OPENING) <= most:
        return 0
    depth = deepest = 0
    for found in _BRACKET.finditer(_STRING.sub(b"", body)):
        depth += 1 if found[0] in _OPENING else -1
        deepest = max(deepest, depth)
    return deepest
