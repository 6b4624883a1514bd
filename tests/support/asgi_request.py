"""One request to an ASGI app, by hand: it counts what the app reads of its body."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.types import ASGIApp, Message

PIECE = 16 * 1024  # bytes of a piece of a body
_CLIENT = ("198.51.100.7", 40_000)


class SentRequest:
    """A request whose body comes in pieces; behind the last one, the client is silent.

    Attributes:
        status: The status of the answer; None: there is none yet.
        headers: Its headers.
        body: What was answered.
        largest: Bytes of the largest piece of the answer.
        read: Bytes of the body that the app has read.
        waits: Set while the app waits for more of the body.
    """

    def __init__(
        self,
        method: str,
        path: str,
        pieces: Iterator[bytes],
        headers: Mapping[str, str] | None = None,
        client: tuple[str, int] = _CLIENT,
    ) -> None:
        self._pieces = pieces
        given = {"host": "jobs.test", "transfer-encoding": "chunked"} | dict(headers or {})
        path, _, query = path.partition("?")
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "https",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": client,
            "server": ("jobs.test", 443),
        }
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.largest = 0
        self.read = 0
        self.waits = asyncio.Event()
        self._gone = asyncio.Event()

    async def sent_to(self, app: ASGIApp) -> None:
        """Send it, and wait for the end of its answer."""
        await app(self._scope, self._receive, self._send)

    def hang_up(self) -> None:
        """Close the connection."""
        self._gone.set()

    @property
    def is_closed(self) -> bool:
        """Whether the connection ends with the answer, so that nobody goes on sending."""
        return self.headers.get("connection") == "close"

    async def _receive(self) -> Message:
        piece = next(self._pieces, None)
        if piece is None:
            self.waits.set()
            await self._gone.wait()
            return {"type": "http.disconnect"}
        await asyncio.sleep(0)
        self.read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": True}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            piece = message.get("body", b"")
            self.body += piece
            self.largest = max(self.largest, len(piece))
