"""Read HTTP responses within limits: of decoded bytes, of chunks, and of time.

A few hundred kilobytes of gzip can become gigabytes, and one byte per second can take for ever.
Needs httpx, so only modules that speak HTTP import this.
"""

import asyncio
import codecs
import zlib
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx

MOST_CHUNKS: Final = 65_536  # of one response: each costs time, however small it is
_GZIP, _ZLIB, _DEFLATE = 31, 15, -15  # window bits of zlib
# Charsets that decode in linear time; Python knows others, such as punycode.
_CHARSETS: Final = ("utf-8", "utf-16", "ascii", "iso8859-", "cp125", "koi8-", "gb", "big5", "euc_")


class _Unread(Exception):
    """The response cannot be read; the message says why."""


async def fetch(
    client: httpx.AsyncClient, request: httpx.Request, *, limit: int, within: float, **options: Any
) -> tuple[httpx.Response, str]:
    """Send a request and read the response; redirects are not followed.

    Args:
        client: Sends the request.
        request: The request.
        limit: The most bytes of the response, before and after decoding.
        within: Seconds for the whole exchange.
        options: For `client.send`.

    Returns:
        The response, and why its body could not be read, if so; an error's body may be cut.

    Raises:
        httpx.TransportError: There was no response, or not all of it in time.
    """
    request.headers["accept-encoding"] = "identity"  # not every server complies
    answer, body, unread = None, bytearray(), ""
    try:
        async with asyncio.timeout(within):
            answer = await client.send(request, stream=True, follow_redirects=False, **options)
            read = _already_read if answer.is_stream_consumed else _decoded
            async for part in read(answer, limit):
                body += part
    except _Unread as error:
        unread = str(error)
    except (TimeoutError, httpx.TransportError) as error:
        # For an error response, the status is enough.
        if answer is None or not answer.is_error:
            raise _as_httpx(error, request, within) from error
    finally:
        if answer is not None:
            await answer.aclose()
    assert answer is not None  # the errors that are swallowed come from reading it
    return _whole(answer, request, bytes(body)), unread


def _as_httpx(error: Exception, request: httpx.Request, within: float) -> httpx.TransportError:
    if isinstance(error, httpx.TransportError):
        return error
    return httpx.ReadTimeout(f"no complete response within {within:g} s", request=request)


def _whole(answer: httpx.Response, request: httpx.Request, body: bytes) -> httpx.Response:
    """Return a response with its decoded body."""
    about_body = ("content-encoding", "content-length", "transfer-encoding")
    kept = [each for each in answer.headers.multi_items() if each[0] not in about_body]
    whole = httpx.Response(answer.status_code, headers=kept, content=body, request=request)
    whole.encoding = _charset(answer)
    return whole


def _charset(answer: httpx.Response) -> str:
    try:
        name = codecs.lookup(answer.charset_encoding or "utf-8").name
    except LookupError:
        return "utf-8"
    return name if name.startswith(_CHARSETS) else "utf-8"


async def _decoded(answer: httpx.Response, limit: int) -> AsyncIterator[bytes]:
    """Yield the decoded body in parts, never more than the limit allows."""
    decoder = _Decoder(answer.headers.get("content-encoding", ""))
    taken = given = chunks = 0
    async for chunk in answer.aiter_raw():
        chunks, taken = chunks + 1, taken + len(chunk)
        part = decoder.decode(chunk, limit - given + 1)
        given += len(part)
        if max(taken, given) > limit:
            raise _Unread(_too_long(limit))
        if chunks > MOST_CHUNKS:
            raise _Unread(f"it comes in more than {MOST_CHUNKS:,} chunks")
        yield part
    decoder.end()


async def _already_read(answer: httpx.Response, limit: int) -> AsyncIterator[bytes]:
    """Yield a body that is in memory already: of a mock transport, or read by an event hook."""
    try:
        body = answer.content
    except httpx.ResponseNotRead:
        raise _Unread("an event hook has read it, and kept nothing") from None
    if len(body) > limit:
        raise _Unread(_too_long(limit))
    yield body


def _too_long(limit: int) -> str:
    return f"it has more than {limit:,} bytes"


class _Decoder:
    """Decodes one encoding; nested encodings, which only serve as bombs, are refused."""

    def __init__(self, encoding: str) -> None:
        name = encoding.strip().lower()
        formats = {"": None, "identity": None, "gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}
        if name not in formats:
            raise _Unread(f"it is encoded as {name[:40]!r}, which was not requested")
        self._format = formats[name]
        self._inflate: Any = None

    def decode(self, chunk: bytes, most: int) -> bytes:
        """Decode a chunk; return at most `most` bytes, whatever it holds."""
        if self._format is None:
            return chunk
        try:
            return self._inflated(chunk, most)
        except zlib.error as error:
            raise _Unread(f"it cannot be decoded: {error}") from error

    def end(self) -> None:
        """Raise _Unread if the body is incomplete."""
        if self._inflate is not None and not self._inflate.eof:
            raise _Unread("it is cut off")

    def _inflated(self, chunk: bytes, most: int) -> bytes:
        if self._inflate is not None:
            return self._inflate.decompress(chunk, most)
        self._inflate = zlib.decompressobj(self._format or _ZLIB)
        try:
            return self._inflate.decompress(chunk, most)
        except zlib.error:
            if self._format != _ZLIB:
                raise
        # Some servers send `deflate` without the zlib header.
        self._inflate = zlib.decompressobj(_DEFLATE)
        return self._inflate.decompress(chunk, most)
