"""Answers of hostile servers, on the loopback: bombs, drips and floods."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import httpx
import pytest

from perdure.base.http_response import MOST_CHUNKS, fetch
from tests.support.servers import http, speaking

LIMIT = 100_000
ZEROS = b"0" * 2_000_000


async def get(url: str, limit: int = LIMIT, within: float = 30.0) -> tuple[httpx.Response, str]:
    async with httpx.AsyncClient() as client:
        return await fetch(client, client.build_request("GET", url), limit=limit, within=within)


async def answer_with(body: bytes, status: int = 200, **headers: str) -> tuple[httpx.Response, str]:
    async with http((status, body)) as site:
        site.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return await get(f"http://{site.address}/")


def deflated(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


BOMBS = [
    ("gzip", gzip.compress(ZEROS, mtime=0)),
    ("x-gzip", gzip.compress(ZEROS, mtime=0)),
    ("GZIP", gzip.compress(ZEROS, mtime=0)),
    ("deflate", zlib.compress(ZEROS)),
    ("deflate", deflated(ZEROS)),
    ("gzip, gzip", gzip.compress(gzip.compress(ZEROS, mtime=0), mtime=0)),
    ("br", b"\x5b\xff\xff"),
    ("zstd", b"x"),
    ("gzip", b"this is no gzip"),
    ("gzip", gzip.compress(bytes(1000), mtime=0)[:-9]),
    ("identity", ZEROS[: LIMIT + 1]),
    ("", ZEROS[: LIMIT + 1]),
]


@pytest.mark.parametrize(("encoding", "body"), BOMBS, ids=range(len(BOMBS)))
async def test_an_answer_is_read_no_further_than_to_its_decoded_limit(
    encoding: str, body: bytes
) -> None:
    answer, unread = await answer_with(body, content_encoding=encoding)
    assert unread
    assert answer.status_code == 200
    assert len(answer.content) <= LIMIT


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("", bytes),
        ("identity", bytes),
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", deflated),
    ],
)
async def test_an_answer_within_its_limit_is_whole(encoding: str, pack: type[bytes]) -> None:
    body = bytes(range(256)) * 300
    answer, unread = await answer_with(pack(body), content_encoding=encoding)
    assert (answer.content, unread) == (body, "")


async def test_we_ask_for_answers_that_are_not_compressed() -> None:
    async with http() as site:
        await get(f"http://{site.address}/")
        assert (await site.requests.get()).headers["accept-encoding"] == "identity"


async def test_a_stream_that_decodes_to_nothing_has_an_end() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 X\r\ncontent-encoding: deflate\r\n\r\n"
        empty = zlib.compressobj(wbits=-15)
        while True:
            yield empty.flush(zlib.Z_FULL_FLUSH) + b"\x00\x00\x00\xff\xff" * 1000

    async with speaking(nothing()) as address:
        _, unread = await get(f"http://{address}")
        assert "100,000" in unread


async def test_a_flood_of_tiny_chunks_has_an_end() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n"
        while True:
            yield b"1\r\nx\r\n" * 10_000

    async with speaking(chunks()) as address:
        _, unread = await get(f"http://{address}", limit=1_000_000_000)
        assert f"{MOST_CHUNKS:,}" in unread


async def test_an_answer_that_drips_ends_at_the_deadline() -> None:
    async def drip() -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 X\r\ncontent-length: 1000000\r\n\r\nx"
        await asyncio.Event().wait()

    async with speaking(drip()) as address:
        with pytest.raises(httpx.ReadTimeout, match=r"0\.2 s"):
            await get(f"http://{address}", within=0.2)


async def test_headers_that_do_not_come_end_at_the_deadline() -> None:
    async def silence() -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 X\r\nx: "
        await asyncio.Event().wait()

    async with speaking(silence()) as address:
        with pytest.raises(httpx.ReadTimeout, match=r"0\.2 s"):
            await get(f"http://{address}", within=0.2)


async def test_a_refusal_is_one_although_its_text_is_cut_off() -> None:
    async def cut_off() -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 400 X\r\ncontent-length: 1000000\r\n\r\nx"

    async with speaking(cut_off()) as address:
        answer, _ = await get(f"http://{address}")
        assert answer.status_code == 400
        with pytest.raises(httpx.HTTPStatusError):
            answer.raise_for_status()


async def test_a_redirect_is_not_followed() -> None:
    async with http() as inner, http((303, b"")) as outer:
        outer.headers["location"] = f"http://{inner.address}/"
        async with httpx.AsyncClient(follow_redirects=True) as client:
            request = client.build_request("POST", f"http://{outer.address}/")
            answer, _ = await fetch(client, request, limit=LIMIT, within=30.0)
        assert answer.status_code == 303
        assert inner.requests.empty()


@pytest.mark.parametrize("charset", ["punycode", "idna", "zlib", "rot13", "nonsense", "utf-8"])
async def test_a_charset_that_is_no_plain_one_is_read_as_utf_8(charset: str) -> None:
    answer, _ = await answer_with("grün".encode(), content_type=f"text/plain; charset={charset}")
    assert answer.text == "grün"


async def test_a_usual_charset_is_obeyed() -> None:
    answer, _ = await answer_with(b"gr\xfcn", content_type="text/plain; charset=ISO-8859-1")
    assert answer.text == "grün"


async def mocked(body: bytes, **headers: str) -> tuple[httpx.Response, str]:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=headers, content=body)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        request = client.build_request("GET", "http://mock.test/")
        return await fetch(client, request, limit=LIMIT, within=30.0)


async def test_a_body_that_is_in_memory_already_is_not_decoded_again() -> None:
    answer, unread = await mocked(gzip.compress(b"hello", mtime=0), **{"content-encoding": "gzip"})
    assert (answer.text, unread) == ("hello", "")


async def test_a_body_that_is_in_memory_already_has_the_same_limit() -> None:
    _, unread = await mocked(b"0" * (LIMIT + 1))
    assert unread == "it has more than 100,000 bytes"


async def test_an_event_hook_may_read_the_answer() -> None:
    async def read(answer: httpx.Response) -> None:
        await answer.aread()

    async with http((200, b"hello")) as site, httpx.AsyncClient() as client:
        client.event_hooks = {"response": [read]}
        request = client.build_request("GET", f"http://{site.address}/")
        answer, unread = await fetch(client, request, limit=LIMIT, within=30.0)
    assert (answer.text, unread) == ("hello", "")


async def test_a_body_that_an_event_hook_has_used_up_cannot_be_read() -> None:
    async def use_up(answer: httpx.Response) -> None:
        async for _ in answer.aiter_raw():
            pass

    async with http((200, b"hello")) as site, httpx.AsyncClient() as client:
        client.event_hooks = {"response": [use_up]}
        request = client.build_request("GET", f"http://{site.address}/")
        answer, unread = await fetch(client, request, limit=LIMIT, within=30.0)
    assert (answer.status_code, unread) == (200, "an event hook has read it, and kept nothing")
