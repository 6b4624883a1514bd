"""A connection that changes things: what has gathered, in one transaction."""

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import psycopg
from psycopg.pq.abc import PGconn

from perdure.base import telemetry
from perdure.base.clock import SystemClock
from perdure.base.errors import LeaseLost, StoreError
from perdure.jobs.model import Write
from perdure.jobs.state import StepState
from perdure.store.db_thread import (
    BATCH,
    CLOCK,
    Done,
    Lane,
    Request,
    Round,
    RowKey,
    resolve,
    rounds,
    row_keys,
    writes_of,
)
from perdure.store.postgres.connection import (
    STATEMENTS,
    Pg,
    PgSession,
    Target,
    is_lost,
    spell_entries,
    spell_lines,
    translate,
)
from perdure.store.postgres.schema import migrate
from perdure.store.postgres.transaction import Flight, Statement, Transactions, Wait, Whole
from perdure.store.verbs.claim import renew
from perdure.store.verbs.write import progresses, write_all

_CLOCK = SystemClock()
_SELDOM: Final = 0.01  # every notice takes a lock of the whole server, so they are few


class PgWriter:
    """Does requests, and tells other processes that there is news."""

    def __init__(self, target: Target, suspects: set[tuple[str, int]]) -> None:
        self._target = target
        self._suspects = suspects
        self._transactions = Transactions(target, suspects)
        self._afterwards: list[Statement] = []
        self._announces = False
        self._announced_at = 0.0

    def connect(self) -> int | None:
        pg = self._target.connect()
        try:
            migrate(pg, self._target.schema)
            self._transactions.open(pg)
        except psycopg.Error as error:
            pg.close()
            raise translate(error, self._target) from error
        except BaseException:
            pg.close()
            raise
        return None

    @property
    def backend(self) -> int | None:
        """The server's process at the other end."""
        return self._transactions.backend

    def disconnect(self) -> None:
        self._transactions.close()

    def idle(self) -> float | None:
        self.afterwards()
        return _SELDOM if self._announces else None

    def execute(self, requests: Sequence[Request]) -> None:
        if together := [request for request in requests if not request.apart]:
            self._execute(together)
        for request in requests:
            if request.apart:
                self._single(request)

    def _execute(self, requests: Sequence[Request]) -> None:
        try:
            self._together(requests)
        except (psycopg.OperationalError, StoreError) as error:
            self._fail(requests, error)
        except Exception:  # noqa: BLE001  one of them is refused, and all are undone: see whose
            for request in requests:
                self._single(request)
        self._announces |= any(request.announces for request in requests)

    def send(self, request: Request) -> Flight | None:
        """Send a plain write, and come back at once; None if that cannot be."""
        if self._is_suspect(request):
            return None
        spelled = spell_lines(request.lines) if request.lines else ""
        return self._transactions.send(spell_entries(request.rows), spelled)

    def afterwards(self) -> None:
        now = _CLOCK.monotonic()
        if self._announces and not self._target.pooled and now > self._announced_at + _SELDOM:
            self._announces, self._announced_at = False, now
            self._afterwards.append((STATEMENTS["notify"], {"schema": self._target.schema}))
        statements, self._afterwards = self._afterwards, []
        if statements:
            try:
                self._transactions.aside(statements)
            except (psycopg.Error, StoreError):
                return  # hints: they may be lost

    def _together(self, requests: Sequence[Request]) -> None:
        if len(requests) == 1 and self._whole(requests[0]):
            return
        parts = list(rounds(requests, repeat=False))
        if len(parts) == 1 and not parts[0].full and not parts[0].calls:
            self._plain(parts[0].plain)
        else:
            self._transactions.run(lambda session: self._all(session, parts))
            self._afterwards += self._transactions.session.asides

    def _whole(self, request: Request) -> bool:
        """Do a request that is a single statement; False if it is none."""
        if not isinstance(request.call, Whole):
            return False
        verb, result = cast("Whole[Any]", request.call), None
        if not self._target.pooled:  # a statement alone would be without our settings
            with suppress(psycopg.IntegrityError):  # somebody did the same at the same time
                result = self._transactions.whole(verb)
        request.result = self._transactions.run(verb.by_parts) if result is None else result
        self._afterwards += self._transactions.session.asides
        return True

    def _single(self, request: Request) -> None:
        try:
            self._together([request])
        except Exception as error:  # noqa: BLE001  whoever asked gets it
            self._fail([request], error)

    def _plain(self, requests: Sequence[Request]) -> None:
        """Write journal and ledger in a single statement, which is the whole transaction."""
        entries, lines = _rows(requests)
        spelled = spell_lines(lines) if lines else ""
        written = self._transactions.write(spell_entries(entries), spelled)
        if written != len(entries) + len(lines) or any(map(self._is_suspect, requests)):
            # A fence did not hold, or something came late, or the answer was lost:
            # a fence that holds now did hold then.
            self._transactions.run(lambda session: _check(session, requests, set()))

    def _is_suspect(self, request: Request) -> bool:
        write = request.write
        return write is not None and (write.job_id, write.epoch) in self._suspects

    def _all(self, session: PgSession, parts: Sequence[Round]) -> None:
        for plain, full, calls in parts:
            if plain:
                entries, lines = _rows(plain)
                rows = session.all("upsert_entries", entries=spell_entries(entries))
                kept = session.all("keep_effects", lines=spell_lines(lines)) if lines else ()
                _check(session, plain, {(row[0], row[1]) for row in (*rows, *kept)})
            if full:
                write_all(session, writes_of(full))
            for request in calls:
                request.result = request.call(session) if request.call is not None else None

    def _fail(self, requests: Sequence[Request], error: Exception) -> None:
        for request in requests:
            request.result = None
            if isinstance(error, psycopg.Error):
                request.error = translate(error, self._target)
                request.error.__cause__ = error
            else:
                request.error = error


def _rows(requests: Sequence[Request]) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """Put entries and lines of many requests together."""
    entries = [row for request in requests for row in request.rows]
    return entries, [line for request in requests for line in request.lines]


def _check(session: PgSession, requests: Sequence[Request], written: set[RowKey]) -> None:
    """See whose fence did not hold. What came late is not written either, but is no fault."""
    for request in requests:
        write = request.write
        assert write is not None
        suspect = (write.job_id, write.epoch)
        progress = suspect in session.suspects and progresses(write.entries)
        if not progress and row_keys(request) <= written:
            continue
        lease = session.one("fences", ids=[write.job_id])
        if lease is None or (lease[1], lease[2]) != (write.owner, write.epoch):
            request.error = LeaseLost(write.job_id, write.epoch)
        elif progress:
            session.suspects.discard(suspect)
            session.run("progressed", id=write.job_id)


# The lane of the fenced writes, with a short way for the result of a single step.
#
# To wake a thread and to be woken by it costs more than all the rest of a step. So, while nothing
# else is under way, the loop itself sends a result, and the socket tells it when the answer is
# there:
# it never waits.
# Only what may be written twice goes this way. If the answer is lost, or is no plain yes,
# the thread writes it again, and finds out what is the matter.


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


# The connection that only reads.

_TRIES = 3


class PgReader:
    """Answers questions."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._session: PgSession | None = None

    def connect(self) -> int | None:
        self._session = PgSession(self._target.connect(), set())
        return None

    def disconnect(self) -> None:
        if self._session is not None:
            self._session.pg.close()

    def afterwards(self) -> None:
        """Nothing is left to do."""

    def idle(self) -> float | None:
        return None

    def execute(self, requests: Sequence[Request]) -> None:
        for request in requests:
            try:
                self._answer(request)
            except psycopg.Error as error:
                request.error = translate(error, self._target)
                request.error.__cause__ = error
            except Exception as error:  # noqa: BLE001  whoever asked gets it
                request.error = error

    def _answer(self, request: Request) -> None:
        if request.call is None:
            return
        for left in reversed(range(_TRIES)):
            session = self._ready()
            try:
                session.moment = None
                with self._settings_of(session.pg):
                    request.result = request.call(session)
            except psycopg.Error as error:
                # To ask again does no harm.
                if not left or not is_lost(error, session.pg):
                    raise
                session.pg.close()
            else:
                return

    @contextmanager
    def _settings_of(self, pg: Pg) -> Generator[None]:
        """Have our settings. A session has them already, so each statement may stand alone."""
        if not self._target.pooled:
            yield
            return
        with pg.transaction():
            for setting in self._target.local_settings():
                pg.execute(setting)
            yield

    def _ready(self) -> PgSession:
        if self._session is None or self._session.pg.closed:
            self.connect()
        assert self._session is not None
        return self._session


# Renews leases from any thread, over a connection of its own: no queue can hold it up.

_CLOSE_PATIENCE: Final = 2.0


class PgRenewer:
    """Connects when it is first needed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._session: PgSession | None = None
        self._since: float | None = None

    def waiting(self) -> Wait | None:
        """Tell whether a renewal is under way."""
        since = self._since
        return None if since is None else Wait(since, None)

    def renew(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        """Prolong leases; waits for the server. To do it twice does no harm."""
        with self._lock:
            self._since = _CLOCK.monotonic()
            try:
                return self._renew_twice(owner, held, lease)
            finally:
                self._since = None

    def _renew_twice(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        try:
            return self._renew(owner, held, lease)
        except psycopg.OperationalError:  # perhaps only the connection was too old
            self._disconnect()
        try:
            return self._renew(owner, held, lease)
        except psycopg.Error as error:
            self._disconnect()
            raise translate(error, self._target) from error

    def _renew(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        if self._session is None:
            self._session = PgSession(self._target.connect(), set())
        session = self._session
        with session.pg.transaction():
            for setting in self._target.local_settings():
                session.pg.execute(setting)
            session.moment = None
            return renew(session, owner, held, lease)

    def close(self) -> None:
        """Disconnect, unless a renewal is under way that does not end."""
        if self._lock.acquire(timeout=_CLOSE_PATIENCE):
            try:
                self._disconnect()
            finally:
                self._lock.release()

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.pg.close()
            self._session = None
