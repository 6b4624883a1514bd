"""Transactions that happen exactly once, over connections that may break at any moment.

Each one sets its number in the row that this object has in the table `op`.
If the answer to a commit is lost, the row of the new connection tells whether it happened.
To read is not enough: a commit that is still on its way, in the network or in a proxy, may arrive
after the look, and after the second try. So whoever looks also closes all numbers up to now:
a trigger refuses them from then on. A commit that is under way in the server holds the row's lock,
and is waited for.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Final, TypeVar
from uuid import uuid4

import psycopg
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from perdure.base.backoff import Retry
from perdure.base.errors import StoreUnreachable
from perdure.store.postgres.connection import Pg, Target, is_lost, is_passing, translate
from perdure.store.postgres.flight import Flight
from perdure.store.postgres.session import STATEMENTS, WHOLE, WRITE, WRITE_BOTH, PgSession
from perdure.store.postgres.whole import Whole

T = TypeVar("T")
_PLANS: Final = {WRITE: b"perdure_write", WRITE_BOTH: b"perdure_write_both"}
Statement = tuple[bytes, Mapping[str, Any]]

# How long a server that has gone is waited for: it may be starting anew.
_OUTAGE: Final = Retry(attempts=40, first="50ms", most="1s", jitter=0.5)
# How often to try again when others were in the way.
_OTHERS: Final = Retry(attempts=10, first="5ms", most="200ms", jitter=0.5)


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
