"""A proxy in front of PostgreSQL that can lose an answer: the server did it, nobody was told.

It can also hold a question back, and deliver it when nobody waits for it any more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self
from urllib.parse import parse_qs, urlsplit

import psycopg

_SYNC = (b"S\0\0\0\x04", b"S\0\0\0\x04H\0\0\0\x04")  # how a question of several messages ends
_WHOLE = (b"Q", b"X", b"\0")  # how one begins that is a single message
_TERMINATE = b"X\0\0\0\x04"
_WAITING = b"""
SELECT 1 FROM pg_locks AS wanted JOIN pg_locks AS held USING (pid)
JOIN pg_class ON pg_class.oid = held.relation
JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE NOT wanted.granted AND nspname = %s LIMIT 1
"""


def is_whole(data: bytes) -> bool:
    """Tell whether a question has come to its end: the client waits for the answer."""
    return data.endswith(_SYNC) or data[:1] in _WHOLE


async def whole(data: bytes, reader: asyncio.StreamReader) -> bytes:
    """Read a question to its end."""
    while not is_whole(data) and (more := await reader.read(65536)):
        data += more
    return data


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
        self.refusals = asyncio.Semaphore(0)  # acquired once for each that is waited for
        self._questions_left: int | None = None
        self._mark = b""
        self._held: tuple[bytes, asyncio.StreamWriter] | None = None
        self._holds = asyncio.Event()
        self._answered = asyncio.Event()  # what was held back has come to its end
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
        self._left = self._questions_left = None

    def hold(self, questions: int = 0, mark: bytes = b"") -> None:
        """Let so many questions with this mark pass, hold the next, and cut off who asked it."""
        self._questions_left, self._held, self._mark = questions, None, mark
        self._holds.clear()
        self._answered.clear()

    async def holds(self, trying: asyncio.Future[None]) -> bool:
        """Wait until a question is held back, or until whoever tries has come to an end."""
        held = asyncio.ensure_future(self._holds.wait())
        await asyncio.wait([held, trying], return_when=asyncio.FIRST_COMPLETED)
        held.cancel()
        return self._holds.is_set()

    async def deliver(self) -> None:
        """Deliver what is held back, and wait until the server has done with it."""
        assert self._held is not None
        data, to = self._held
        to.write(data)
        to.write(_TERMINATE)
        await self._answered.wait()
        self._held = None

    def cut_all(self) -> None:
        """Cut every connection now."""
        for writer in list(self._open):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            self.refusals.release()
            writer.close()
            return
        up_reader, up_writer = await asyncio.open_unix_connection(self._socket)
        self._open |= {writer, up_writer}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._questions(reader, writer, up_writer))
                group.create_task(self._answers(up_reader, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            if self._held is not None and self._held[1] is up_writer:
                self._answered.set()
            self._open -= {writer, up_writer}
            for each in (writer, up_writer):
                with suppress(Exception):
                    each.close()

    async def _questions(
        self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, to: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65536):
            is_meant = self._questions_left is not None and self._mark in data
            if is_meant and self._questions_left == 0:
                data = await whole(data, reader)
                self._questions_left, self._held = None, (data, to)
                self._holds.set()
                back.close()
                return
            if is_meant and self._questions_left is not None:
                self._questions_left -= 1
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


async def delay_each_question(
    proxy: Proxy, url: str, attempt: Callable[[int], Awaitable[None]]
) -> int:
    """Make the attempt again and again; each time another question comes when it is too late.

    Too late: whoever asked is content with another answer, or waits for locks of the old question.
    """
    for number in range(60):
        proxy.hold(number)
        trying = asyncio.ensure_future(attempt(number))
        if not await proxy.holds(trying):
            proxy.disarm()
            await trying
            return number
        while not trying.done() and not await asyncio.to_thread(somebody_waits, url):
            pass
        await proxy.deliver()
        await trying
    raise AssertionError("the attempt has no end")


def somebody_waits(url: str) -> bool:
    """Tell whether somebody waits for a lock on the tables of this schema."""
    base, _, schema = url.rpartition("&schema=")
    with psycopg.connect(base, autocommit=True) as pg:
        return bool(pg.execute(_WAITING, (schema,)).fetchall())


async def lose_each_answer(proxy: Proxy, attempt: Callable[[int], Awaitable[None]]) -> int:
    """Make the attempt again and again; each time another answer of the server is lost."""
    for number in range(60):
        proxy.arm(number)
        await attempt(number)
        proxy.disarm()
        if not proxy.cuts:
            return number
    raise AssertionError("the attempt has no end")
