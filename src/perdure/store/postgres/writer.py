"""A connection that changes things: what has gathered, in one transaction."""

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from perdure.base.clock import SystemClock
from perdure.base.errors import LeaseLost, StoreError
from perdure.store.postgres.connection import Target, translate
from perdure.store.postgres.schema import migrate
from perdure.store.postgres.session import STATEMENTS, PgSession, spell_entries
from perdure.store.postgres.transaction import Statement, Transactions
from perdure.store.request import Request, Round, rounds, writes_of
from perdure.store.verb.write import progresses, write_all

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

    def disconnect(self) -> None:
        self._transactions.close()

    def idle(self) -> float | None:
        self.afterwards()
        return _SELDOM if self._announces else None

    def execute(self, requests: Sequence[Request]) -> None:
        try:
            self._together(requests)
        except (psycopg.OperationalError, StoreError) as error:
            self._fail(requests, error)
        except Exception:  # noqa: BLE001  one of them is refused, and all are undone: see whose
            for request in requests:
                self._single(request)
        self._announces |= any(request.announces for request in requests)

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
        parts = list(rounds(requests, repeat=False))
        if len(parts) == 1 and not parts[0].full and not parts[0].calls:
            self._plain(parts[0].plain)
        else:
            self._transactions.run(lambda session: self._all(session, parts))
            self._afterwards += self._transactions.session.asides

    def _single(self, request: Request) -> None:
        try:
            self._together([request])
        except Exception as error:  # noqa: BLE001  whoever asked gets it
            self._fail([request], error)

    def _plain(self, requests: Sequence[Request]) -> None:
        """Write journal entries in a single statement, which is the whole transaction."""
        entries = [row for request in requests for row in request.rows]
        written = self._transactions.write(spell_entries(entries))
        if written != len(entries) or self._suspects:
            # A fence did not hold, or something came late, or the answer was lost:
            # a fence that holds now did hold then.
            self._transactions.run(lambda session: _check(session, requests, set()))

    def _all(self, session: PgSession, parts: Sequence[Round]) -> None:
        for plain, full, calls in parts:
            if plain:
                entries = spell_entries([row for request in plain for row in request.rows])
                rows = session.all("upsert_entries", entries=entries)
                _check(session, plain, _keys(rows))
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


def _keys(rows: Sequence[Any]) -> set[tuple[str, int]]:
    return {(row[0], row[1]) for row in rows}


def _check(session: PgSession, requests: Sequence[Request], written: set[tuple[str, int]]) -> None:
    """See whose fence did not hold. What came late is not written either, but is no fault."""
    for request in requests:
        write = request.write
        assert write is not None
        suspect = (write.job_id, write.epoch)
        progress = suspect in session.suspects and progresses(write.entries)
        if not progress and all((row[0], row[1]) in written for row in request.rows):
            continue
        lease = session.one("fences", ids=[write.job_id])
        if lease is None or (lease[1], lease[2]) != (write.owner, write.epoch):
            request.error = LeaseLost(write.job_id, write.epoch)
        elif progress:
            session.suspects.discard(suspect)
            session.run("progressed", id=write.job_id)
