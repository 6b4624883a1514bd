"""A receiver of effects on the loopback: it acts, remembers, forgets and fails as it is told."""

import asyncio
import json
from collections import Counter
from typing import Literal, Self

Manner = Literal["honours", "ignores", "errs", "forgets"]


class Gateway:
    """An HTTP server that acts once for each POST, as its manner says.

    honours   knows a key again, and gives the first answer
    ignores   acts at every call
    errs      acts, and then answers 500, the first time; knows keys
    forgets   knows no key of a call that was made before the last `forget()`
    """

    def __init__(self, manner: Manner = "honours") -> None:
        self.manner = manner
        self.calls: list[str] = []  # the key of each call
        self.acts: list[tuple[str, str]] = []  # what was really done: path and key
        self.known: dict[str, str] = {}
        self.refuses = 0  # so many calls are refused with 422
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def done(self) -> Counter[str]:
        """How often each thing was done, by path."""
        return Counter(path for path, _ in self.acts)

    def forget(self) -> None:
        self.known.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            method, path, _ = first.split()
            headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in lines)}
            await reader.readexactly(int(headers.get("content-length", 0)))
            key = headers.get("idempotency-key", "")
            status, body = self._ask(key) if method == "GET" else self._act(path, key)
            text = json.dumps(body).encode()
            reply = f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\nconnection: close\r\n"
            kind = "content-type: application/json\r\n\r\n"
            writer.write((reply + kind).encode() + text)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # whoever asked was killed
        finally:
            writer.close()

    def _ask(self, key: str) -> tuple[int, dict[str, str]]:
        for path, each in self.acts:
            if each == key:
                return 200, {"id": f"{path}-{key[:6]}"}
        return 404, {}

    def _act(self, path: str, key: str) -> tuple[int, dict[str, str]]:
        self.calls.append(key)
        if self.refuses:
            self.refuses -= 1
            return 422, {"error": "no"}
        if self.manner != "ignores" and key in self.known:
            return 200, {"id": self.known[key]}
        self.acts.append((path, key))
        self.known[key] = f"{path}-{key[:6]}"
        if self.manner == "errs" and self.calls.count(key) == 1:
            return 500, {"error": "after acting"}
        return 200, {"id": self.known[key]}
