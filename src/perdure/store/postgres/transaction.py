"""Transactions that happen exactly once, over connections that may break at any moment.

**When an answer is lost.** A client sends COMMIT and the connection breaks. Did it happen? A guess
would either lose a write or make it twice. So each writer (an object of `Transactions`) has a row
in the table `last_commit`, and sets its own number there as a part of every transaction. After a
lost answer a new connection reads the row: if it has the number, the transaction happened.

**Reading alone is not enough.** The COMMIT may still be on its way, held up in the network or in a
proxy, and arrive after we have looked and tried again. So each look also *closes* all numbers
up to now in the same update, and a trigger refuses a transaction with a closed number. A commit
that is under way in the server holds the row's lock, and is waited for.

**What is known afterwards.** `run` and its siblings return only when the transaction has happened,
and raise what the server refused. `StoreUnreachable` means that the server did not come back: only
if it went away during the commit itself is it unknown whether that happened, and the number is
closed by the next connection.

**Single statements.** A submission and a claim stand between a person and the start of a job, and
the result of a step is written for each step: each is one statement that records its own number,
so each waits for only one answer of the server. Their answers are needed, so when one is lost it
is looked up (`look_up`).

**Commits that wait for a standby.** Where `synchronous_standby_names` asks for a standby that does
not answer, a commit waits for ever, and no timeout of the server ends that. We do not cancel it
either: a commit whose wait is cancelled counts as done although no standby has it. `CommitWatch`
warns of it.
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
from perdure.base.encryption import Encryption, Keys
from perdure.base.errors import StoreError, StoreUnreachable
from perdure.base.retry import Retry
from perdure.jobs.fleet import Known
from perdure.jobs.model import NewJob, QueueLimit, Submitted
from perdure.store import rows
from perdure.store.db_thread import VerbCall
from perdure.store.postgres.connection import (
    PUT_GRAPH,
    STATEMENTS,
    WRITE,
    WRITE_BOTH,
    Pg,
    PgSession,
    Target,
    is_lost,
    is_transient,
    translate,
    with_keys,
)
from perdure.store.sealing import register
from perdure.store.statements import Row, Session
from perdure.store.verbs.audit import audited
from perdure.store.verbs.claim import Grant, claim, note_unproven
from perdure.store.verbs.submit import kind_row, submit, submitted

T = TypeVar("T")
Statement = tuple[bytes, Mapping[str, Any]]

_log = logging.getLogger("perdure.store")
_encode = msgspec.json.Encoder().encode

# How long to wait for a server that went away: it may be restarting.
_OUTAGE: Final = Retry(attempts=40, initial_delay="50ms", max_delay="1s", jitter=0.5)
# How often to retry when other transactions interfered.
_CONTENTION: Final = Retry(attempts=10, initial_delay="5ms", max_delay="200ms", jitter=0.5)
_PLANS: Final = {
    WRITE: b"perdure_write",
    WRITE_BOTH: b"perdure_write_both",
    PUT_GRAPH: b"perdure_put_graph",
}


class Transactions:
    """A connection, and its recovery when it is lost."""

    def __init__(
        self,
        target: Target,
        unproven_claims: set[tuple[str, int]],
        keys: Encryption | None = None,
    ) -> None:
        self._target = target
        self._unproven_claims = unproven_claims
        self._keys = keys
        self._writer = uuid4().hex
        self._number = 0
        self._last_happened = 0  # the last number that happened before this connection
        self._session: PgSession | None = None

    def open(self, pg: Pg) -> None:
        """Use this connection from now on; nothing that was sent over an earlier one happens now.

        Raises:
            psycopg.Error: It cannot be used, or something of an earlier one is still under way.
        """
        session = PgSession(pg, self._unproven_claims)
        with pg.transaction():
            self._localise(pg)
            # Lost only with the server, and with it everything that was on its way to it.
            pg.execute(b"SET LOCAL synchronous_commit = off")
            session.run("forget_writers")
            session.run("register_writer", writer=self._writer)
            found = session.one("close_commits", writer=self._writer, no=self._number)
            session = with_keys(session, self._keys)
        if session.keys is not None:
            with pg.transaction():  # durable before the first payload is
                self._localise(pg)
                register(session)
        assert found is not None
        self._last_happened, self._session = found[0], session

    def close(self) -> None:
        """Disconnect, and leave nothing behind."""
        if self._session is not None and not self._session.pg.closed:
            with suppress(psycopg.Error):  # if not now, the row is deleted later
                self.best_effort([(STATEMENTS["unregister_writer"], {"writer": self._writer})])
            self._session.pg.close()

    def disconnect(self) -> None:
        """Drop the connection; it is opened again when it is needed."""
        if self._session is not None:
            self._session.pg.close()

    @property
    def backend(self) -> int | None:
        """The server's process at the other end; may be read by any thread."""
        session = self._session
        if session is None or session.pg.closed or self._target.pooled:
            return None
        return session.pg.info.backend_pid

    @property
    def keys(self) -> Keys | None:
        """What encrypts payloads on the connection; None: nothing, or there is none yet."""
        return None if self._session is None else self._session.keys

    @property
    def session(self) -> PgSession:
        """The connection, opened again if it was lost.

        Raises:
            StoreUnreachable: The server does not come back.
        """
        if self._session is None or self._session.pg.closed or self._session.pg.broken:
            self._reconnect()
        assert self._session is not None
        return self._session

    def run(self, work: Callable[[PgSession], T]) -> T:
        """Do some work in one transaction, exactly once, and return its result.

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
                if self._has_happened(error, failures):
                    return results[0]
            else:
                return results[0]

    def run_single(self, verb: "SingleStatement[T]") -> T | None:
        """Run a verb as a single-statement transaction; None if nothing was done that way."""
        failures = 0
        while True:
            session = self.session
            session.postponed.clear()
            self._number += 1
            numbered = {"writer": self._writer, "no": self._number}
            try:
                given = {**verb.values, **numbered, "keys": session.readable}
                return verb.read(session, session.single(verb.statement, given))
            except psycopg.Error as error:
                failures += 1
                if self._has_happened(error, failures):
                    return self.run(lambda session: verb.look_up(session, self._writer))

    def write(self, statement: bytes, texts: Sequence[str]) -> int | None:
        """Run one of the statements that are a whole transaction; never behind a pooler.

        Returns:
            How many rows came back; None if it happened, but its answer was lost.
        """
        failures = 0
        while True:
            session = self.session
            self._number += 1
            try:
                return self._write_prepared(session, statement, texts)
            except psycopg.Error as error:
                failures += 1
                if self._has_happened(error, failures):
                    return None

    def _write_prepared(self, session: PgSession, statement: bytes, texts: Sequence[str]) -> int:
        # Past the cursor, for a third of the work: this is done once for every step.
        connection = session.pg.pgconn
        values = self._values(texts)
        plan = _PLANS[statement]
        if plan in session.prepared:
            with suppress(InvalidSqlStatementName):  # the driver forgets all after a rollback
                return _checked(connection.exec_prepared(plan, values)).ntuples
        _checked(connection.prepare(plan, statement))
        session.prepared.add(plan)
        return _checked(connection.exec_prepared(plan, values)).ntuples

    def _values(self, texts: Sequence[str]) -> list[bytes]:
        return [text.encode() for text in (self._writer, str(self._number), *texts)]

    def send(self, statement: bytes, texts: Sequence[str]) -> "Inflight | None":
        """Send what `write` writes, and return at once; None if that is not possible."""
        session, plan = self._session, _PLANS[statement]
        if session is None or plan not in session.prepared or session.pg.closed:
            return None
        inflight = Inflight(session.pg.pgconn)
        self._number += 1
        values = self._values(texts)
        if not inflight.may_send(values):
            return None
        if inflight.send(plan, values):
            return inflight
        session.pg.close()  # it is unknown how much of it was sent
        return None

    def best_effort(self, statements: Sequence[Statement]) -> None:
        """Run statements whose loss does no harm, without waiting for the disk or a lost server."""
        assert self._session is not None
        pg = self._session.pg
        with self._pipeline(pg):
            pg.execute(b"BEGIN")
            self._localise(pg)
            pg.execute(b"SET LOCAL synchronous_commit = off")
            for text, values in statements:
                pg.execute(text, values)
            pg.execute(b"COMMIT")

    def _attempt(self, work: Callable[[PgSession], T], results: list[T]) -> None:
        session = self.session
        session.moment = None
        session.postponed.clear()
        session.notes.clear()
        self._number += 1
        session.pg.execute(b"BEGIN")
        try:
            self._localise(session.pg)
            results.append(work(session))
            with self._pipeline(session.pg):
                session.run("number_commit", writer=self._writer, no=self._number)
                session.pg.execute(b"COMMIT")
        except BaseException:
            with suppress(psycopg.Error):  # a lost connection has nothing to roll back
                session.pg.execute(b"ROLLBACK")
            raise

    def _localise(self, pg: Pg) -> None:
        for setting in self._target.local_settings():
            pg.execute(setting)

    def _pipeline(self, pg: Pg) -> Any:
        """Send statements without waiting for the answer to each; their row counts are unknown."""
        if self._target.pooled or not psycopg.Pipeline.is_supported():
            return nullcontext()
        return pg.pipeline()

    def _has_happened(self, error: psycopg.Error, failures: int) -> bool:
        """Whether the transaction happened in spite of the error; if not, it can be retried.

        Raises:
            psycopg.Error: The server refuses it.
            StoreUnreachable: The server does not come back.
        """
        assert self._session is not None
        if is_lost(error, self._session.pg):
            self._session.pg.close()
            self._reconnect()
            if self._last_happened == self._number:
                return True
        elif not is_transient(error):
            raise error
        if failures >= _CONTENTION.attempts:
            raise error
        threading.Event().wait(_CONTENTION.delay(failures))
        return False

    def _reconnect(self) -> None:
        failures = 0
        while True:
            try:
                self._connect()
            except (StoreUnreachable, psycopg.OperationalError) as error:
                failures += 1
                if failures >= _OUTAGE.attempts:
                    if isinstance(error, psycopg.Error):
                        raise translate(error, self._target) from error
                    raise
                threading.Event().wait(_OUTAGE.delay(failures))
            except psycopg.Error as error:  # it answers, but is of no use: it may be read-only
                raise translate(error, self._target) from error
            else:
                return

    def _connect(self) -> None:
        pg = self._target.connect()
        try:
            self.open(pg)
        except BaseException:
            pg.close()
            raise


def _checked(result: PGresult) -> PGresult:
    if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return result
    raise error_from_result(result)


# A statement in flight

# This many bytes always fit into the buffer of an idle socket, so sending them never blocks.
_MAX_SENT = 8_192


class Inflight:
    """A statement that was sent without waiting, and what has come back so far."""

    __slots__ = ("_last", "connection")

    def __init__(self, connection: PGconn) -> None:
        self.connection = connection
        self._last: PGresult | None = None

    def may_send(self, values: Sequence[bytes]) -> bool:
        """Whether the connection is idle, and has room for the values."""
        is_idle = self.connection.transaction_status == TransactionStatus.IDLE
        return is_idle and sum(map(len, values)) <= _MAX_SENT

    def send(self, plan: bytes, values: Sequence[bytes]) -> bool:
        """Send a prepared statement; return False if the connection does not accept it."""
        try:
            self.connection.send_query_prepared(plan, values)
            return self.connection.flush() == 0
        except psycopg.OperationalError:
            return False

    def is_answered(self) -> bool:
        """Read what has come back; return whether it is complete."""
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
        """How many rows came back; None if it failed, or the answer was lost."""
        last = self._last
        return last.ntuples if last is not None and last.status == ExecStatus.TUPLES_OK else None


# Verbs as single statements


class SingleStatement(ABC, Generic[T]):
    """A verb that one statement can do in most cases, with the values of that statement."""

    statement: str
    values: Mapping[str, Any]

    def __call__(self, session: Session) -> T:
        """Run it as a part of a larger transaction."""
        found = session.all(self.statement, **self.values, keys=session.readable)
        result = self.read(session, found)
        return self.in_steps(session) if result is None else result

    @abstractmethod
    def read(self, session: Session, found: Sequence[Row]) -> T | None:
        """Return the result from the rows of the answer; None if nothing was done that way."""

    @abstractmethod
    def look_up(self, session: Session, writer: str) -> T | None:
        """Return what was done, because the answer was lost; None like `read`."""

    @abstractmethod
    def in_steps(self, session: Session) -> T:
        """Run the ordinary verb, which has several statements."""


class ClaimUnlimited(SingleStatement[list[Grant]]):
    """A claim from queues without limits."""

    statement = "claim_unlimited"

    def __init__(
        self,
        owner: str,
        queues: Mapping[str, QueueLimit],
        free: int,
        lease: float,
        known: Known | None = None,
    ) -> None:
        self._args = owner, queues, free, lease, known
        self.is_unlimited = all(limit == QueueLimit() for limit in queues.values())
        self.values = {
            "owner": owner,
            "queues": list(queues),
            "free": free,
            "lease": lease,
            "kinds": None if known is None else known.kinds,
            "steps": None if known is None else known.steps,
        }

    def read(self, session: Session, found: Sequence[Row]) -> list[Grant]:
        # In the order of the claim, so the last tag of a queue is not always its highest.
        for queue in {each[6] for each in found}:
            tag = max(each[-2] for each in found if each[6] == queue)
            session.best_effort("set_served", queue=queue, tag=tag)
        grants = [_grant(each) for each in found]
        note_unproven(session, grants)
        return grants

    def look_up(self, session: Session, writer: str) -> list[Grant]:
        owner, lease = self.values["owner"], self.values["lease"]
        found = session.all("claimed_before", writer=writer, owner=owner, lease=lease)
        grants = [Grant(*each) for each in found]
        note_unproven(session, grants)
        return grants

    def in_steps(self, session: Session) -> list[Grant]:
        return claim(session, *self._args)


def _grant(found: Row) -> Grant:
    """Return a grant; with its job if that has neither journal nor messages to be loaded."""
    news, now, _, is_fresh = found[-4:]
    return Grant(found[0], found[24], found[25], news, now, rows.job(found) if is_fresh else None)


class SubmitNew(SingleStatement[list[Submitted]]):
    """A submission of jobs that are all new, without budgets, traces and further requesters."""

    statement = "submit_new"

    def __init__(self, jobs: Sequence[NewJob], actor: str = "") -> None:
        self._jobs = jobs
        self._actor = actor
        self.needs_more = any(job.budget is not None or job.trace or job.requesters for job in jobs)
        given = [_job_row(place, job, actor) for place, job in enumerate(jobs)]
        self.values = {"jobs": _encode(given).decode()}

    def read(self, session: Session, found: Sequence[Row]) -> list[Submitted] | None:  # noqa: ARG002
        if len(found) < len(self._jobs):
            return None
        return [Submitted(job.id, True) for job in self._jobs]

    def look_up(self, session: Session, writer: str) -> list[Submitted] | None:
        ids = session.array([job.id for job in self._jobs])
        return self.read(session, session.all("submitted_before", writer=writer, ids=ids))

    def in_steps(self, session: Session) -> list[Submitted]:
        return submit(session, self._jobs, self._actor)


def _job_row(place: int, job: NewJob, actor: str) -> dict[str, Any]:
    note = rows.event_row(job.id, submitted(job, actor), 0.0)
    given = rows.job_row(job, 0.0) | {"place": place, "delay": job.delay, "deadline": job.deadline}
    return given | {"data": note["data"], "actor": note["actor"]} | kind_row(job)


def in_fewest_statements(call: VerbCall) -> Callable[[Session], Any]:
    """Return a verb in its single-statement form, if it has one, for a larger transaction."""
    if call.function is audited:
        function, args, kwargs, *more = call.args
        inner = single_statement(VerbCall(function, tuple(args), dict(kwargs)))
        if inner is not None:
            return call._replace(args=(inner, (), {}, *more))
    return single_statement(call) or call


def single_statement(call: VerbCall) -> SingleStatement[Any] | None:
    """Return the single-statement form of a verb; None if it has none."""
    if call.function is submit:
        submission = SubmitNew(*call.args, **call.kwargs)
        return None if submission.needs_more else submission
    if call.function is claim:
        found = ClaimUnlimited(*call.args, **call.kwargs)
        return found if found.is_unlimited else None
    return None


# Slow commits

_CHECK_EVERY: Final = 2.0
_WARN_AFTER: Final = 10.0
_WARN_AGAIN_AFTER: Final = 60.0
_CLOCK: Final = SystemClock()
_WAIT_EVENT: Final = b"SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = %s"
_NO_STANDBY: Final = (
    "a commit has waited for %d s at %s for a synchronous standby that is missing or does not "
    "answer. It is not cancelled, as it would then count as done without the standby. Bring the "
    "standby back, or change synchronous_standby_names"
)
_SLOW: Final = "a transaction has been running for %d s at %s: it waits for %s"


class PendingTransaction(NamedTuple):
    """What is under way on a connection."""

    since: float  # by the monotonic clock
    backend: int | None  # the server's process, if it is known


class CommitWatch:
    """A thread that warns of slow transactions on the connections of a store."""

    def __init__(
        self,
        target: Target,
        connections: Mapping[str, Callable[[], PendingTransaction | None]],
    ) -> None:
        self._target = target
        self._connections = connections
        self._warned: dict[str, tuple[float, float]] = {}  # since when it is pending, and when
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="perdure-commits", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self._ends.set()

    def _serve(self) -> None:
        while not self._ends.wait(_CHECK_EVERY):
            for name, pending in self._connections.items():
                found = pending()
                if found is not None:
                    self._check(name, found, _CLOCK.monotonic())

    def _check(self, name: str, pending: PendingTransaction, now: float) -> None:
        since, at = self._warned.get(name, (0.0, 0.0))
        is_known = since == pending.since
        if now - pending.since < _WARN_AFTER or (is_known and now - at < _WARN_AGAIN_AFTER):
            return
        self._warned[name] = pending.since, now
        reason = self._reason(pending.backend)
        if reason == "SyncRep":
            _log.warning(_NO_STANDBY, now - pending.since, self._target)
        else:
            _log.warning(_SLOW, now - pending.since, self._target, reason)

    def _reason(self, backend: int | None) -> str:
        """Ask the server, over another connection, what one of its processes waits for."""
        try:
            with self._target.connect() as pg:
                found = pg.execute(_WAIT_EVENT, (backend,)).fetchone() if backend else None
        except (psycopg.Error, StoreError):
            return "the server, which cannot be asked why"
        if found is None or found[1] is None:
            return "the server"
        return found[1] if found[1] == "SyncRep" else f"{found[0]} {found[1]}"
