"""Transactions that happen exactly once, over connections that may break at any moment.

Each one sets its number in the row that this object has in the table `op`.
If the answer to a commit is lost, the row of the new connection tells whether it happened.
To read is not enough: a commit that is still on its way, in the network or in a proxy, may arrive
after the look, and after the second try. So whoever looks also closes all numbers up to now:
a trigger refuses them from then on. A commit that is under way in the server holds the row's lock,
and is waited for.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import uuid4

import msgspec
import psycopg
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from perdure.base.clock import SystemClock
from perdure.base.errors import StoreError, StoreUnreachable
from perdure.base.retry import Retry
from perdure.jobs.model import NewJob, Submitted
from perdure.store import rows
from perdure.store.postgres.connection import (
    STATEMENTS,
    WHOLE,
    WRITE,
    WRITE_BOTH,
    Pg,
    PgSession,
    Target,
    is_lost,
    is_passing,
    translate,
)
from perdure.store.statements import Row, Session
from perdure.store.verbs.claim import Grant
from perdure.store.verbs.submit import submit, submitted

# Warn of slow transactions, above all of commits that wait for a missing standby.
#
# Where `synchronous_standby_names` asks for a standby that does not answer, a commit waits for
# ever,
# and no timeout of the server ends that. We do not cancel it either: a commit whose wait is
# cancelled counts as done, although no standby has it.

_log = logging.getLogger("perdure.store")

_LOOK_EVERY: Final = 2.0
_WARN_AFTER: Final = 10.0
_AGAIN_AFTER: Final = 60.0
_CLOCK: Final = SystemClock()
_ASK: Final = b"SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = %s"
_STANDBY: Final = (
    "a commit has waited for %d s at %s for a synchronous standby that is missing or does not "
    "answer. It is not cancelled, as it would then count as done without the standby. Bring the "
    "standby back, or change synchronous_standby_names"
)
_OTHER: Final = "a transaction has been running for %d s at %s: it waits for %s"


class Wait(NamedTuple):
    """What is under way on a connection."""

    since: float  # by the monotonic clock
    backend: int | None  # the server's process, if it can be known


Waiting = Callable[[], Wait | None]


class CommitWatch:
    """A thread that checks the connections of a store every two seconds."""

    def __init__(self, target: Target, connections: Mapping[str, Waiting]) -> None:
        self._target = target
        self._connections = connections
        self._told: dict[str, tuple[float, float]] = {}  # of which wait, and when
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="perdure-commits", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self._ends.set()

    def _serve(self) -> None:
        while not self._ends.wait(_LOOK_EVERY):
            for name, waiting in self._connections.items():
                wait = waiting()
                if wait is not None:
                    self._look(name, wait, _CLOCK.monotonic())

    def _look(self, name: str, wait: Wait, now: float) -> None:
        since, at = self._told.get(name, (0.0, 0.0))
        is_known = since == wait.since
        if now - wait.since < _WARN_AFTER or (is_known and now - at < _AGAIN_AFTER):
            return
        self._told[name] = wait.since, now
        reason = self._reason(wait.backend)
        if reason == "SyncRep":
            _log.warning(_STANDBY, now - wait.since, self._target)
        else:
            _log.warning(_OTHER, now - wait.since, self._target, reason)

    def _reason(self, backend: int | None) -> str:
        """Ask the server, over another connection, what a process of it waits for."""
        try:
            with self._target.connect() as pg:
                found = pg.execute(_ASK, (backend,)).fetchone() if backend else None
        except (psycopg.Error, StoreError):
            return "the server, which cannot be asked why"
        if found is None or found[1] is None:
            return "the server"
        return found[1] if found[1] == "SyncRep" else f"{found[0]} {found[1]}"


# Verbs that are one statement each: such a statement is a whole transaction.
#
# A submission and a claim lie between whoever submits a job and its start, so nobody waits for more
# than one answer of the server to each.

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class Whole(ABC, Generic[T]):
    """A named statement with its values."""

    statement: str
    values: Mapping[str, Any]

    def __call__(self, session: Session) -> T:
        """Do it as a part of a larger transaction."""
        result = self.read(session, session.all(self.statement, **self.values))
        return self.by_parts(session) if result is None else result

    @abstractmethod
    def read(self, session: Session, rows: Sequence[Row]) -> T | None:
        """Read the answer; None: nothing was done that way."""

    @abstractmethod
    def look_up(self, session: Session, lane: str) -> T | None:
        """Find out what was done, since the answer was lost; None as above."""

    def by_parts(self, session: Session) -> T:
        """Do it in another way, if there is one."""
        return self(session)


class Take(Whole[list[Grant]]):
    """A claim from queues that have no limits."""

    statement = "take"

    def __init__(self, owner: str, queues: Sequence[str], free: int, lease: float) -> None:
        self.values = {"owner": owner, "queues": list(queues), "free": free, "lease": lease}

    def read(self, session: Session, rows: Sequence[Row]) -> list[Grant]:
        # In their order, so the last tag of a queue is not always its highest.
        for queue in {each[6] for each in rows}:
            tag = max(each[30] for each in rows if each[6] == queue)
            session.aside("set_served", queue=queue, tag=tag)
        return [_trusted(session, _grant(each)) for each in rows]

    def look_up(self, session: Session, lane: str) -> list[Grant]:
        owner, lease = self.values["owner"], self.values["lease"]
        rows = session.all("taken", lane=lane, owner=owner, lease=lease)
        return [_trusted(session, Grant(*each)) for each in rows]


def _grant(found: Row) -> Grant:
    """Read a grant; what has neither journal nor messages need not be asked for again."""
    job = rows.job(found) if found[31] else None
    return Grant(found[0], found[25], found[26], found[28], found[29], job)


def _trusted(session: Session, grant: Grant) -> Grant:
    if grant.claims > 1:
        session.suspects.add((grant.job_id, grant.epoch))
    return grant


class SubmitAll(Whole[list[Submitted]]):
    """A submission of jobs of which none is known, as most are."""

    statement = "submit_all"

    def __init__(self, jobs: Sequence[NewJob], actor: str) -> None:
        self._jobs = jobs
        self._actor = actor
        rows = [_job_row(place, job, actor) for place, job in enumerate(jobs)]
        self.values = {"jobs": _encode(rows).decode()}

    def read(self, session: Session, rows: Sequence[Row]) -> list[Submitted] | None:  # noqa: ARG002
        if len(rows) < len(self._jobs):
            return None
        return [Submitted(job.id, True) for job in self._jobs]

    def look_up(self, session: Session, lane: str) -> list[Submitted] | None:
        ids = session.array([job.id for job in self._jobs])
        return self.read(session, session.all("submitted", lane=lane, ids=ids))

    def by_parts(self, session: Session) -> list[Submitted]:
        return submit(session, self._jobs, self._actor)


def _job_row(place: int, job: NewJob, actor: str) -> dict[str, Any]:
    note = rows.event_row(job.id, submitted(job, actor), 0.0)
    given = rows.job_row(job, 0.0) | {"place": place, "delay": job.delay, "deadline": job.deadline}
    return given | {"data": note["data"], "actor": note["actor"]}


# A statement on its way to the server, for which nobody waits.

# So few bytes always find room in an idle socket: to send them holds up nobody.
_MOST = 8_192


class Flight:
    """What was sent, and what has come back of it."""

    __slots__ = ("_last", "connection", "since")

    def __init__(self, connection: PGconn) -> None:
        self.connection = connection
        self.since = 0.0  # by the loop's clock
        self._last: PGresult | None = None

    def may_start(self, values: Sequence[bytes]) -> bool:
        """Tell whether the connection has nothing else to do, and room for the values."""
        is_idle = self.connection.transaction_status == TransactionStatus.IDLE
        return is_idle and sum(map(len, values)) <= _MOST

    def start(self, statement: bytes, values: Sequence[bytes]) -> bool:
        """Send a prepared statement; False if the connection does not take it."""
        try:
            self.connection.send_query_prepared(statement, values)
            return self.connection.flush() == 0
        except psycopg.OperationalError:
            return False

    def has_landed(self) -> bool:
        """Take what has come back; True when that is all."""
        try:
            self.connection.consume_input()
            while not self.connection.is_busy():
                result = self.connection.get_result()
                if result is None:
                    return True
                self._last = result
        except psycopg.OperationalError:  # the connection is lost
            self._last = None
            return True
        return False

    @property
    def rows(self) -> int | None:
        """How many rows came back; None if it failed, or nobody knows."""
        last = self._last
        return last.ntuples if last is not None and last.status == ExecStatus.TUPLES_OK else None


_PLANS: Final = {WRITE: b"perdure_write", WRITE_BOTH: b"perdure_write_both"}
Statement = tuple[bytes, Mapping[str, Any]]

# How long a server that has gone is waited for: it may be starting anew.
_OUTAGE: Final = Retry(attempts=40, initial_delay="50ms", max_delay="1s", jitter=0.5)
# How often to try again when others were in the way.
_OTHERS: Final = Retry(attempts=10, initial_delay="5ms", max_delay="200ms", jitter=0.5)


class Transactions:
    """A connection, and the way back when it is lost."""

    def __init__(self, target: Target, suspects: set[tuple[str, int]]) -> None:
        self._target = target
        self._suspects = suspects
        self._lane = uuid4().hex
        self._number = 0
        self._happened = 0  # the last number that happened before this connection
        self._session: PgSession | None = None

    def open(self, pg: Pg) -> None:
        """Use this connection from now on; nothing that was sent over an earlier one happens now.

        Raises:
            psycopg.Error: It cannot be used, or something of an earlier one is still under way.
        """
        session = PgSession(pg, self._suspects)
        with pg.transaction():
            self._localise(pg)
            # Lost only with the server, and with it all that was on its way to it.
            pg.execute(b"SET LOCAL synchronous_commit = off")
            session.run("forget_ops")  # rows that are old are of the dead
            session.run("begin_op", lane=self._lane)
            found = session.one("close_ops", lane=self._lane, no=self._number)
        assert found is not None
        self._happened, self._session = found[0], session

    def close(self) -> None:
        """Leave nothing behind."""
        if self._session is not None and not self._session.pg.closed:
            with suppress(psycopg.Error):  # if not now, it is forgotten later
                self.aside([(STATEMENTS["end_op"], {"lane": self._lane})])
            self._session.pg.close()

    @property
    def backend(self) -> int | None:
        """The server's process at the other end; may be asked for by any thread."""
        session = self._session
        if session is None or session.pg.closed or self._target.pooled:
            return None
        return session.pg.info.backend_pid

    @property
    def session(self) -> PgSession:
        """The connection, opened again if it was lost.

        Raises:
            StoreUnreachable: The server does not come back.
        """
        if self._session is None or self._session.pg.closed or self._session.pg.broken:
            self._open_again()
        assert self._session is not None
        return self._session

    def run(self, work: Callable[[PgSession], T]) -> T:
        """Do some work in one transaction, exactly once.

        Raises:
            StoreUnreachable: The server does not come back; whether it happened is unknown
                only if it went away at the commit.
            psycopg.Error: The server refuses it; nothing was done.
        """
        failures = 0
        while True:
            results: list[T] = []
            try:
                self._attempt(work, results)
            except psycopg.Error as error:
                failures += 1
                if self._happened_after(error, failures):
                    return results[0]
            else:
                return results[0]

    def whole(self, verb: Whole[T]) -> T | None:
        """Do a verb as a transaction of a single statement; None: nothing was done that way."""
        failures = 0
        while True:
            session = self.session
            session.asides.clear()
            self._number += 1
            noted = {"lane": self._lane, "no": self._number}
            try:
                found = session.pg.execute(WHOLE[verb.statement], {**verb.values, **noted})
                return verb.read(session, found.fetchall())
            except psycopg.Error as error:
                failures += 1
                if self._happened_after(error, failures):
                    return self.run(lambda session: verb.look_up(session, self._lane))

    def write(self, entries: str, lines: str = "") -> int | None:
        """Write journal entries, and lines of the ledger, as a transaction of a single statement.

        Returns:
            How many were written; None if it happened, but its answer was lost.
        """
        if self._target.pooled:  # a statement alone would be without our settings
            return self.run(lambda session: _write_both(session, entries, lines))
        failures = 0
        while True:
            session = self.session
            self._number += 1
            try:
                return self._write_prepared(session, entries, lines)
            except psycopg.Error as error:
                failures += 1
                if self._happened_after(error, failures):
                    return None

    def _write_prepared(self, session: PgSession, entries: str, lines: str) -> int:
        # Past the cursor, for a third of the work: this is done once for every step.
        connection = session.pg.pgconn
        values = self._spelled(entries, lines)
        statement = WRITE_BOTH if lines else WRITE
        plan = _PLANS[statement]
        if plan in session.prepared:
            with suppress(InvalidSqlStatementName):  # the driver forgets all after a rollback
                return _checked(connection.exec_prepared(plan, values)).ntuples
        _checked(connection.prepare(plan, statement))
        session.prepared.add(plan)
        return _checked(connection.exec_prepared(plan, values)).ntuples

    def _spelled(self, entries: str, lines: str) -> list[bytes]:
        values = [self._lane.encode(), str(self._number).encode(), entries.encode()]
        return [*values, lines.encode()] if lines else values

    def send(self, entries: str, lines: str = "") -> Flight | None:
        """Send what `write` writes, and come back at once; None if that cannot be."""
        session, plan = self._session, _PLANS[WRITE_BOTH if lines else WRITE]
        if session is None or plan not in session.prepared or session.pg.closed:
            return None
        flight = Flight(session.pg.pgconn)
        self._number += 1
        values = self._spelled(entries, lines)
        if not flight.may_start(values):
            return None
        if flight.start(plan, values):
            return flight
        session.pg.close()  # nobody knows how much of it is on its way
        return None

    def aside(self, statements: Sequence[Statement]) -> None:
        """Do statements whose loss does no harm: nobody waits for a disk, or for a lost server."""
        assert self._session is not None
        pg = self._session.pg
        with self.in_one_go(pg):
            pg.execute(b"BEGIN")
            self._localise(pg)
            pg.execute(b"SET LOCAL synchronous_commit = off")
            for text, values in statements:
                pg.execute(text, values)
            pg.execute(b"COMMIT")

    def _attempt(self, work: Callable[[PgSession], T], results: list[T]) -> None:
        session = self.session
        session.moment = None
        session.asides.clear()
        self._number += 1
        session.pg.execute(b"BEGIN")
        try:
            self._localise(session.pg)
            results.append(work(session))
            with self.in_one_go(session.pg):
                session.run("set_op", lane=self._lane, no=self._number)
                session.pg.execute(b"COMMIT")
        except BaseException:
            with suppress(psycopg.Error):  # a lost connection has nothing to roll back
                session.pg.execute(b"ROLLBACK")
            raise

    def _localise(self, pg: Pg) -> None:
        for setting in self._target.local_settings():
            pg.execute(setting)

    def in_one_go(self, pg: Pg) -> Any:
        """Send statements without waiting for the answer to each; their row counts are unknown."""
        if self._target.pooled or not psycopg.Pipeline.is_supported():
            return nullcontext()
        return pg.pipeline()

    def _happened_after(self, error: psycopg.Error, failures: int) -> bool:
        """Tell whether the transaction happened in spite of the error; if not, try it again.

        Raises:
            psycopg.Error: The server refuses it.
            StoreUnreachable: The server does not come back.
        """
        assert self._session is not None
        if is_lost(error, self._session.pg):
            self._session.pg.close()
            self._open_again()
            if self._happened == self._number:
                return True
        elif not is_passing(error):
            raise error
        if failures >= _OTHERS.attempts:
            raise error
        threading.Event().wait(_OTHERS.delay(failures))
        return False

    def _open_again(self) -> None:
        failures = 0
        while True:
            try:
                self._open_once()
            except (StoreUnreachable, psycopg.OperationalError) as error:
                failures += 1
                if failures >= _OUTAGE.attempts:
                    raise _unreachable(error, self._target) from error
                threading.Event().wait(_OUTAGE.delay(failures))
            except psycopg.Error as error:  # it answers, but is of no use: it may be read-only
                raise translate(error, self._target) from error
            else:
                return

    def _open_once(self) -> None:
        pg = self._target.connect()
        try:
            self.open(pg)
        except BaseException:
            pg.close()
            raise


def _unreachable(error: Exception, target: Target) -> Exception:
    return translate(error, target) if isinstance(error, psycopg.Error) else error


def _write_both(session: PgSession, entries: str, lines: str) -> int:
    written = session.run("upsert_entries", entries=entries)
    return written + (session.run("keep_effects", lines=lines) if lines else 0)


def _checked(result: PGresult) -> PGresult:
    if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return result
    raise error_from_result(result)
