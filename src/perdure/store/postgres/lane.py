"""The lane of the fenced writes, with a short way for the result of a single step.

To wake a thread and to be woken by it costs more than all the rest of a step. So, while nothing
else is under way, the loop itself sends a result, and the socket tells it when the answer is there:
it never waits.
Only what may be written twice goes this way. If the answer is lost, or is no plain yes,
the thread writes it again, and finds out what is the matter.
"""

import asyncio
import os
from collections.abc import Callable

from psycopg.pq.abc import PGconn

from perdure.base import telemetry
from perdure.base.errors import StoreError
from perdure.jobs.model import Write
from perdure.jobs.state import StepState
from perdure.store.lane import BATCH, CLOCK, Lane
from perdure.store.postgres.flight import Flight
from perdure.store.postgres.writer import PgWriter
from perdure.store.request import Done, Request, resolve


class PgLane(Lane):
    """A lane whose connection is used by the thread, or for one statement by the loop."""

    def __init__(self, name: str, writer: PgWriter) -> None:
        super().__init__(name, writer)
        self._sender = writer
        self._under_way: tuple[Request, Flight] | None = None
        self._ear: _Ear | None = None

    def write(
        self,
        write: Write,
        *,
        announces: bool = False,
        alone: bool = False,
        done: Done | None = None,
    ) -> asyncio.Future[None]:
        request = Request(write, announces=announces, done=done)
        if alone and self._sends(request):
            assert request.future is not None
            return request.future
        return self._put(request)

    def write_soon(self, write: Write, done: Done, *, alone: bool = False) -> bool:
        request = Request(write, done=done, awaited=False)
        if not (alone and self._sends(request)):
            self._enqueue(request)
        return False

    async def stop(self) -> None:
        try:
            await super().stop()
        finally:
            self._hush()

    def _sends(self, request: Request) -> bool:
        if not self._is_open or self._pid != os.getpid():
            return False
        if self._turns or not self._queue.empty():  # others come first
            return False
        if not _may_be_repeated(request) or not self._turn.acquire(blocking=False):
            return False
        flight = self._sender.send(request) if self._can_hear(request.loop) else None
        if flight is None:
            self._turn.release()
            return False
        self._listen(request.loop, flight.connection)
        flight.since = request.loop.time()
        self._under_way = request, flight  # the turn is given back when it has landed
        self.busy_since = CLOCK.monotonic()
        return True

    def _can_hear(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._ear is None or self._ear.loop is loop

    def _listen(self, loop: asyncio.AbstractEventLoop, connection: PGconn) -> None:
        if self._ear is not None and self._ear.connection is not connection:
            self._hush()
        if self._ear is None:
            self._ear = _Ear(loop, connection, self._heard)

    def _hush(self) -> None:
        if self._ear is not None:
            self._ear.close()
            self._ear = None

    def _heard(self) -> None:
        if self._under_way is None:  # it is the thread that talks with the server
            self._hush()
            return
        request, flight = self._under_way
        if not flight.has_landed():
            return
        self._under_way = self.busy_since = None
        self._turn.release()
        if telemetry.has_handlers(BATCH):
            self.tell([request], request.loop.time() - flight.since)
        if flight.rows == len(request.rows) + len(request.lines):
            resolve([request])
            return
        try:
            self._enqueue(request)
        except StoreError as error:
            request.error = error
            resolve([request])


class _Ear:
    """Tells the loop that a connection has something to read.

    It has a copy of the descriptor, since the thread may close its own at any moment.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: PGconn, heard: Callable[[], None]
    ) -> None:
        self.loop = loop
        self.connection = connection
        self._copy = os.dup(connection.socket)
        loop.add_reader(self._copy, heard)

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.remove_reader(self._copy)
        os.close(self._copy)


def _may_be_repeated(request: Request) -> bool:
    """Tell whether it does no harm to write this again: what succeeded has done so for good."""
    return request.is_plain and all(row[5] == StepState.SUCCEEDED for row in request.rows)
