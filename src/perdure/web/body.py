"""The body of a request, read within limits: of size, of pieces, of time and of depth.

An endless body must not hold memory, a slow one must not hold a connection, and deep JSON must not
exhaust the stack. All of them together are limited by `intake`.
"""

import asyncio
import re
from itertools import accumulate
from typing import Final

from starlette.requests import Request

from perdure.base.checked import Checked
from perdure.base.errors import RequestRefused

# It matches wherever a string begins, also one without an end: a search that fails at each of many
# quotes takes quadratic time.
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
# Brackets as steps: 1 up, -1 (a signed byte) down.
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))


class RequestLimits(Checked, frozen=True, kw_only=True):
    """The limits of one request, and of what all requests hold together.

    Of what all hold together, one client has at most a quarter: an address whose sender is not
    known yet, or a tenant.

    Attributes:
        body: Bytes of the body.
        messages: Pieces in which it may come: an empty one costs time, too.
        body_timeout: Seconds until all of it must be there.
        deadline: Seconds until the answer must begin.
        depth: How deeply JSON may be nested.
        url: Characters of path and query.
        header: Characters of one header.
        bodies: Bytes of all bodies that are held at once: read, and not answered yet.
        at_once: Requests that are under way at once, without streams of events.
        search: Seconds that one search may take.
        searches: Searches of one tenant at once: one runs, and the others wait for it.
    """

    body: int = 1024 * 1024
    messages: int = 4096
    body_timeout: float = 15.0
    deadline: float = 30.0
    depth: int = 64
    url: int = 8 * 1024
    header: int = 16 * 1024
    bodies: int = 64 * 1024 * 1024
    at_once: int = 1000
    search: float = 5.0
    searches: int = 5


LIMITS: Final = RequestLimits()


async def read_body(request: Request, limits: RequestLimits) -> bytes:
    """Return the body.

    Raises:
        RequestRefused: It is too long or too slow, or too much is held by all bodies.
    """
    if request.method in ("GET", "HEAD"):
        return b""
    try:
        async with asyncio.timeout(limits.body_timeout):
            return await _read(request, limits)
    except TimeoutError:
        text = f"the body was not complete within {limits.body_timeout:g} seconds"
        raise RequestRefused(408, "body_too_slow", text) from None


def check_head(request: Request, limits: RequestLimits) -> None:
    """Refuse a request by its first lines.

    Raises:
        RequestRefused: The URL or a header is too long, or the body would be.
    """
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


def check_depth(body: bytes, most: int) -> None:
    """Refuse JSON that is nested more deeply than `most`; the first level too deep ends the look.

    Every part of it runs in C, in linear time.

    Raises:
        RequestRefused: It is.
    """
    if body.count(b"[") + body.count(b"{") <= most:
        return
    steps = memoryview(_STRING.sub(b"", body).translate(_STEPS, _NO_BRACKETS)).cast("b")
    if any(map(most.__lt__, accumulate(steps))):
        text = f"the JSON is nested more than {most} levels deep"
        raise RequestRefused(400, "too_deep", text)
