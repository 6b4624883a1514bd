"""A proxy in front of PostgreSQL that can lose an answer: the server did it, nobody was told."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self
from urllib.parse import parse_qs, urlsplit


class Proxy:
    """Counts the answers of the server while armed, and cuts the connection instead of one."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        folder = query["host"][0]
        self._socket = f"{folder}/.s.PGSQL.{parts.port or 5432}"
        self._rest = f"/{parts.path.lstrip('/')}?schema={query['schema'][0]}"
        self._left: int | None = None
        self.cuts = 0
        self.refuses = False
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut_all()

    @property
    def url(self) -> str:
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://postgres@127.0.0.1:{port}{self._rest}"

    def arm(self, answers: int) -> None:
        """Let so many answers pass and cut the connection instead of the next."""
        self._left, self.cuts = answers, 0

    def disarm(self) -> None:
        self._left = None

    def cut_all(self) -> None:
        """Cut every connection now."""
        for writer in list(self._open):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.close()
            return
        up_reader, up_writer = await asyncio.open_unix_connection(self._socket)
        self._open |= {writer, up_writer}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._questions(reader, up_writer))
                group.create_task(self._answers(up_reader, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open -= {writer, up_writer}
            for each in (writer, up_writer):
                with suppress(Exception):
                    each.close()

    async def _questions(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            to.write(data)
        to.close()

    async def _answers(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self._left is not None:
                if self._left == 0:
                    self._left = None
                    self.cuts += 1
                    break
                self._left -= 1
            to.write(data)
        to.close()


async def lose_each_answer(proxy: Proxy, attempt: Callable[[int], Awaitable[None]]) -> int:
    """Make the attempt again and again; each time another answer of the server is lost."""
    for number in range(60):
        proxy.arm(number)
        await attempt(number)
        proxy.disarm()
        if not proxy.cuts:
            return number
    raise AssertionError("the attempt has no end")
