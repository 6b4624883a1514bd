"""A connection that changes things: what has gathered, in one transaction."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, cast

import psycopg

from perdure.base.clock import SystemClock
from perdure.base.errors import LeaseLost, StoreError
from perdure.store.postgres.connection import Target, translate
from perdure.store.postgres.flight import Flight
from perdure.store.postgres.schema import migrate
from perdure.store.postgres.session import STATEMENTS, PgSession, spell_entries, spell_lines
from perdure.store.postgres.transaction import Statement, Transactions
from perdure.store.postgres.whole import Whole
from perdure.store.request import Request, Round, RowKey, rounds, row_keys, writes_of
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
