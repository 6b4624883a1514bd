"""Answers of HTTP servers, read within limits: of decoded bytes, of pieces, and of time.

A few hundred kilobytes of gzip can become gigabytes, and a byte each second can take for ever.
Needs httpx; only what speaks HTTP imports this.
"""

import asyncio
import codecs
import zlib
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx

MOST_CHUNKS: Final = 65_536  # pieces of one answer: each costs time, however small it is
_GZIP, _ZLIB, _DEFLATE = 31, 15, -15  # what zlib calls them
# Charsets that take as long as the text does; Python knows others, such as punycode.
_CHARSETS: Final = ("utf-8", "utf-16", "ascii", "iso8859-", "cp125", "koi8-", "gb", "big5", "euc_")


class _Unread(Exception):
    """The answer cannot be read; the text says why."""


async def fetch(
    client: httpx.AsyncClient, request: httpx.Request, *, limit: int, within: float, **options: Any
) -> tuple[httpx.Response, str]:
    """Send a request, and read the answer; redirects are not followed.

    Args:
        client: Sends it.
        request: The request.
        limit: The most bytes of the answer, before and after decoding.
        within: Seconds for everything.
        options: For `client.send`.

    Returns:
        The answer, and why its body could not be read; the body of an error may be cut.

    Raises:
        httpx.TransportError: There was no answer, or not all of it in time.
    """
    request.headers["accept-encoding"] = "identity"  # not all servers obey
    answer, body, unread = None, bytearray(), ""
    try:
        async with asyncio.timeout(within):
            answer = await client.send(request, stream=True, follow_redirects=False, **options)
            async for part in _decoded(answer, limit):
                body += part
    except _Unread as error:
        unread = str(error)
    except (TimeoutError, httpx.TransportError) as error:
        # Of an error the status is enough.
        if answer is None or not answer.is_error:
            raise _as_httpx(error, request, within) from error
    finally:
        if answer is not None:
            await answer.aclose()
    assert answer is not None  # all that is passed over comes from reading it
    return _whole(answer, request, bytes(body)), unread


def _as_httpx(error: Exception, request: httpx.Request, within: float) -> httpx.TransportError:
    if isinstance(error, httpx.TransportError):
        return error
    return httpx.ReadTimeout(f"no whole answer within {within:g} s", request=request)


def _whole(answer: httpx.Response, request: httpx.Request, body: bytes) -> httpx.Response:
    """Give an answer whose body is there, decoded."""
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


# Decoding


async def _decoded(answer: httpx.Response, limit: int) -> AsyncIterator[bytes]:
    """Give the body of an answer in parts, never more than the limit allows."""
    decoder = _Decoder(answer.headers.get("content-encoding", ""))
    taken = given = chunks = 0
    async for chunk in answer.aiter_raw():
        chunks, taken = chunks + 1, taken + len(chunk)
        part = decoder.decode(chunk, limit - given + 1)
        given += len(part)
        if max(taken, given) > limit:
            raise _Unread(f"it has more than {limit:,} bytes")
        if chunks > MOST_CHUNKS:
            raise _Unread(f"it comes in more than {MOST_CHUNKS:,} pieces")
        yield part
    decoder.end()


class _Decoder:
    """Decodes one encoding; several of them, one in the other, are only good for bombs."""

    def __init__(self, encoding: str) -> None:
        name = encoding.strip().lower()
        formats = {"": None, "identity": None, "gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}
        if name not in formats:
            raise _Unread(f"it is encoded as {name[:40]!r}, which was not asked for")
        self._format = formats[name]
        self._inflate: Any = None

    def decode(self, chunk: bytes, most: int) -> bytes:
        """Decode a piece; give at most so many bytes, whatever it holds."""
        if self._format is None:
            return chunk
        try:
            return self._inflated(chunk, most)
        except zlib.error as error:
            raise _Unread(f"it cannot be decoded: {error}") from error

    def end(self) -> None:
        """Look whether what was decoded has come to its end."""
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
        # By `deflate` some mean it without the header that belongs to it.
        self._inflate = zlib.decompressobj(_DEFLATE)
        return self._inflate.decompress(chunk, most)
