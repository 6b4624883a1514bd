"""Servers on the loopback interface: HTTP with answers in a row, an ASGI app, and SMTP."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from functools import partial
from typing import Any, NamedTuple

from aiosmtpd.smtp import SMTP, Envelope

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


async def read_request(reader: StreamReader) -> Request:
    method, path, _ = (await reader.readline()).decode().split()
    headers: dict[str, str] = {}
    while line := (await reader.readline()).decode().strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body)


class HttpSite:
    """Answers requests with `answers`, one after the other; the last one again and again."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers = list(answers or [(200, b"{}")])
        self.requests: asyncio.Queue[Request] = asyncio.Queue()
        self.headers: dict[str, str] = {"content-type": "application/json"}
        self.address = ""

    async def handle(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            self.requests.put_nowait(await read_request(reader))
            status, text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\n{more}"
            writer.write(f"{head}connection: close\r\n\r\n".encode() + text)
            await writer.drain()
        except (ValueError, ConnectionError, asyncio.IncompleteReadError):
            pass  # the client thought better of it
        finally:
            writer.close()


@asynccontextmanager
async def http(*answers: tuple[int, bytes]) -> AsyncGenerator[HttpSite]:
    site = HttpSite(*answers)
    server = await asyncio.start_server(site.handle, "127.0.0.1", 0)
    async with server:
        site.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield site


@asynccontextmanager
async def speaking(parts: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """Answer one request with bytes that come as they like; gives the address."""
    talks: list[asyncio.Task[None]] = []

    async def talk(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            async for part in parts:
                writer.write(part)
                await writer.drain()
        except ConnectionError:
            pass  # the client has had enough
        finally:
            writer.close()

    def handle(reader: StreamReader, writer: StreamWriter) -> None:
        talks.append(asyncio.ensure_future(talk(reader, writer)))

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for each in talks:
            each.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


@asynccontextmanager
async def asgi(app: ASGIApp) -> AsyncGenerator[str]:
    """Serve an app to real browsers: one request for each connection; gives its address."""

    async def handle(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            asked = await read_request(reader)
            await app(_scope(asked), _receiver(asked.body), partial(_send, writer))
            await writer.drain()
        except (ValueError, ConnectionError, asyncio.IncompleteReadError):
            pass  # browsers open connections that they do not use
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _scope(asked: Request) -> dict[str, Any]:
    path, _, query = asked.path.partition("?")
    headers = [(name.encode(), value.encode()) for name, value in asked.headers.items()]
    told = {"method": asked.method, "path": path, "query_string": query.encode()}
    return {"type": "http", "headers": headers, **told}


def _receiver(body: bytes) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    return receive


async def _send(writer: StreamWriter, message: MutableMapping[str, Any]) -> None:
    if message["type"] == "http.response.start":
        lines = [b"%s: %s\r\n" % header for header in message["headers"]]
        head = b"HTTP/1.1 %d X\r\n" % message["status"]
        writer.write(head + b"".join(lines) + b"connection: close\r\n\r\n")
    else:
        writer.write(message.get("body", b""))


class Mailbox:
    """Takes mails; `refuse` says what to answer instead, and `bounces` who is not known."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.refuse: str | None = None
        self.bounces: set[str] = set()
        self.port = 0

    async def handle_RCPT(  # noqa: N802
        self, server: Any, session: Any, envelope: Envelope, address: str, options: Any
    ) -> str:
        if address in self.bounces:
            return "550 nobody of that name"
        envelope.rcpt_tos.append(address)
        return "250 fine"

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802
        if self.refuse is not None:
            return self.refuse
        assert isinstance(envelope.content, bytes)
        self.mails.append(BytesParser(EmailMessage, policy=default).parsebytes(envelope.content))
        return "250 taken"


@asynccontextmanager
async def smtp() -> AsyncGenerator[Mailbox]:
    box = Mailbox()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: SMTP(box, loop=loop, hostname="localhost"), "127.0.0.1", 0
    )
    async with server:
        box.port = server.sockets[0].getsockname()[1]
        yield box
