"""The connections that write: one for the owners of jobs, one for everybody else.

**A writer** runs whatever its thread has gathered as one transaction. If it holds plain writes
alone (journal and ledger), that is a single statement, with the fences and the number of the
transaction in it. If fewer rows were written than expected, a fence did not hold, or something came
late: the leases are then locked and read to see whose (`_check_fences`). If the server refuses
anything else, everything is rolled back, and the requests run one by one, so that each gets its
own answer.

**Inline writes.** While nothing else is under way, the loop itself sends the result of a step, or a
checkpoint of LangGraph, and the socket tells it when the answer is there: it never waits. Only what
may be written twice goes this way (`_may_be_repeated`): a step that has succeeded has done so for
good. If the answer is lost, or is not a plain success, the thread writes it again and finds out
what is wrong.

**Notifying others.** After a commit that may make a job due, other processes are told by NOTIFY,
at most every `_NOTIFY_EVERY` seconds, since each notification takes a lock of the whole server.
Statements that may be lost (`Session.best_effort`) are sent along, when nothing waits any more.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg.pq.abc import PGconn

from perdure.base.clock import SystemClock
from perdure.base.encryption import Encryption
from perdure.base.errors import LeaseLost, StoreError
from perdure.jobs.state import StepState
from perdure.store.db_thread import (
    Connection,
    Inline,
    Round,
    RowKey,
    StoreRequest,
    VerbCall,
    rounds,
    row_keys,
    writes_of,
)
from perdure.store.postgres.connection import (
    PUT_GRAPH,
    STATEMENTS,
    WRITE,
    WRITE_BOTH,
    PgSession,
    Target,
    effects_json,
    entries_json,
    graph_texts,
    open_patiently,
    translate,
)
from perdure.store.postgres.schema import migrate
from perdure.store.postgres.transaction import (
    Inflight,
    Statement,
    Transactions,
    in_fewest_statements,
    single_statement,
)
from perdure.store.verbs.audit import append
from perdure.store.verbs.langgraph import put_graph
from perdure.store.verbs.write import progresses, write_all

_CLOCK: Final = SystemClock()
_NOTIFY_EVERY: Final = 0.01
_READ_ATTEMPTS: Final = 3
_CLOSE_TIMEOUT: Final = 2.0


class PgWriter(Connection):
    """A connection that writes, and notifies other processes of changes."""

    def __init__(
        self,
        target: Target,
        unproven_claims: set[tuple[str, int]],
        keys: Encryption | None = None,
    ) -> None:
        self._target = target
        self._unproven_claims = unproven_claims
        self._transactions = Transactions(target, unproven_claims, keys)
        self._postponed: list[Statement] = []
        self._announces = False
        self._emits = False
        self._announced_at = 0.0
        self._answers: _AnswerReader | None = None

    def connect(self) -> int | None:
        open_patiently(self._open, self._target)
        return None

    def _open(self) -> None:
        pg = self._target.connect()
        try:
            migrate(pg, self._target.schema)
            self._transactions.open(pg)
        except BaseException:
            pg.close()
            raise

    @property
    def backend(self) -> int | None:
        """The server's process at the other end."""
        return self._transactions.backend

    def disconnect(self) -> None:
        self._transactions.close()

    # On the loop

    def write_inline(self, request: StoreRequest, finished: Callable[[bool], None]) -> Inline:
        found = self._whole(request)
        if found is None:
            return "refused"
        if self._answers is not None and self._answers.loop is not request.loop:
            if not self._answers.loop.is_closed():
                return "refused"
            self.stop_inline()
        statement, texts, expected = found
        inflight = self._transactions.send(statement, texts)
        if inflight is None:
            return "refused"
        if self._answers is not None and self._answers.connection is not inflight.connection:
            self.stop_inline()
        if self._answers is None:
            self._answers = _AnswerReader(request.loop, inflight.connection, self.stop_inline)
        request.result = request.call is not None  # what `put_graph` returns, if it is stored
        self._answers.expect(inflight, lambda: finished(inflight.rows == expected))
        return "inflight"

    def _whole(self, request: StoreRequest) -> tuple[bytes, list[str], int] | None:
        """Return the one statement that does all of a request, its parameters, and its rows."""
        if request.call is not None:
            if not self._is_graph(request.call):
                return None
            return PUT_GRAPH, graph_texts(self._transactions.keys, *request.call.args), 1
        if not _may_be_repeated(request) or self._is_unproven(request):
            return None
        return *_plain_statement([request]), _row_count([request])

    def _is_graph(self, call: VerbCall) -> bool:
        """Whether this stores a checkpoint, and one statement can do that."""
        return call.function is put_graph and not self._target.pooled

    def stop_inline(self) -> None:
        if self._answers is not None:
            self._answers.close()
            self._answers = None

    def abandon_inline(self) -> None:
        self.stop_inline()
        self._transactions.disconnect()  # an answer may still come, and belongs to nobody

    def _is_unproven(self, request: StoreRequest) -> bool:
        write = request.write
        return write is not None and (write.job_id, write.epoch) in self._unproven_claims

    # In the thread

    def execute(self, requests: Sequence[StoreRequest]) -> None:
        together = [request for request in requests if not request.apart]
        if together:
            try:
                self._together(together)
            except (psycopg.OperationalError, StoreError) as error:
                self._fail(together, error)
            except Exception:  # noqa: BLE001  one of them is refused, and all are undone: see whose
                for request in together:
                    self._alone(request)
            self._announces |= any(request.announces for request in together)
            self._emits |= any(request.emits for request in together)
        for request in requests:
            if request.apart:
                self._alone(request)

    def _alone(self, request: StoreRequest) -> None:
        try:
            self._together([request])
        except Exception as error:  # noqa: BLE001  whoever asked gets it
            self._fail([request], error)

    def _together(self, requests: Sequence[StoreRequest]) -> None:
        if len(requests) == 1 and self._single_statement(requests[0]):
            return
        parts = rounds(requests, repeat=False)
        if len(parts) == 1 and not parts[0].full and not parts[0].calls:
            self._plain(parts[0].plain)
        else:
            self._transactions.run(lambda session: _run_all(session, parts))
            self._postponed += self._transactions.session.postponed

    def _single_statement(self, request: StoreRequest) -> bool:
        """Run a request as a single statement; return False if it has no such form."""
        if request.call is None:
            return False
        if self._is_graph(request.call):
            request.result = self._put_graph(request.call)
            return True
        verb = single_statement(request.call)
        if verb is None:
            return False
        result: Any = None
        if not self._target.pooled:  # a statement alone would be without our settings
            with suppress(psycopg.IntegrityError):  # another process did the same at the same time
                result = self._transactions.run_single(verb)
        request.result = self._transactions.run(verb.in_steps) if result is None else result
        self._postponed += self._transactions.session.postponed
        return True

    def _put_graph(self, call: VerbCall) -> bool:
        texts = graph_texts(self._transactions.session.keys, *call.args)
        rows = self._transactions.write(PUT_GRAPH, texts)
        # If the answer was lost, it is stored once more: that does no harm.
        return self._transactions.run(call) if rows is None else rows == 1

    def _plain(self, requests: Sequence[StoreRequest]) -> None:
        """Write journal and ledger in a single statement, which is the whole transaction."""
        if self._target.pooled:  # a statement alone would be without our settings
            written = self._transactions.run(lambda session: _write_both(session, requests))
        else:
            written = self._transactions.write(*_plain_statement(requests))
        if written != _row_count(requests) or any(map(self._is_unproven, requests)):
            # A fence did not hold, or something came late, or the answer was lost. A fence that
            # holds now did hold then.
            self._transactions.run(lambda session: _check_fences(session, requests, set()))

    def _fail(self, requests: Sequence[StoreRequest], error: Exception) -> None:
        for request in requests:
            request.result = None
            if isinstance(error, psycopg.Error):
                request.error = translate(error, self._target)
                request.error.__cause__ = error
            else:
                request.error = error

    def after_batch(self) -> None:
        now = _CLOCK.monotonic()
        tells = (self._announces or self._emits) and self._target.can_listen
        if tells and now > self._announced_at + _NOTIFY_EVERY:
            told = self._target.schema if self._announces else self._target.output_notice
            self._announces, self._emits, self._announced_at = False, False, now
            self._postponed.append((STATEMENTS["notify"], {"schema": told}))
        statements, self._postponed = self._postponed, []
        if statements:
            with suppress(psycopg.Error, StoreError):  # hints: they may be lost
                self._transactions.best_effort(statements)

    def idle(self) -> float | None:
        self.after_batch()
        return _NOTIFY_EVERY if self._announces or self._emits else None


def _run_all(session: PgSession, parts: Sequence[Round]) -> None:
    for plain, full, calls in parts:
        if plain:
            entries, effects = _rows(plain)
            written = session.all("upsert_entries", entries=entries_json(entries))
            kept = session.all("upsert_effects", effects=effects_json(effects)) if effects else ()
            _check_fences(session, plain, {(row[0], row[1]) for row in (*written, *kept)})
        if full:
            write_all(session, writes_of(full))
        for request in calls:
            if request.call is not None:
                request.result = in_fewest_statements(request.call)(session)
    append(session, session.notes)


def _plain_statement(requests: Sequence[StoreRequest]) -> tuple[bytes, list[str]]:
    """Return the statement that makes plain writes, and its parameters."""
    entries, effects = _rows(requests)
    if effects:
        return WRITE_BOTH, [entries_json(entries), effects_json(effects)]
    return WRITE, [entries_json(entries)]


def _write_both(session: PgSession, requests: Sequence[StoreRequest]) -> int:
    entries, effects = _rows(requests)
    written = session.write_entries(entries)
    return written + (session.write_effects(effects) if effects else 0)


def _row_count(requests: Sequence[StoreRequest]) -> int:
    return sum(len(each.entry_rows) + len(each.effect_rows) for each in requests)


def _rows(requests: Sequence[StoreRequest]) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """Return the rows of entries and effects of many requests."""
    entries = [row for request in requests for row in request.entry_rows]
    return entries, [row for request in requests for row in request.effect_rows]


def _check_fences(
    session: PgSession, requests: Sequence[StoreRequest], written: set[RowKey]
) -> None:
    """Fail the requests whose fence did not hold. A late entry is not written, but is no error."""
    for request in requests:
        write = request.write
        assert write is not None
        claim = write.job_id, write.epoch
        progress = claim in session.unproven_claims and progresses(write.entries)
        if not progress and row_keys(request) <= written:
            continue
        lease = session.one("fences", ids=[write.job_id])
        if lease is None or (lease[1], lease[2]) != (write.owner, write.epoch):
            request.error = LeaseLost(write.job_id, write.epoch)
        elif progress:
            session.unproven_claims.discard(claim)
            session.run("progressed", id=write.job_id)


def _may_be_repeated(request: StoreRequest) -> bool:
    """Whether this can safely be written again: a step that succeeded has done so for good."""
    return request.is_plain and all(row[5] == StepState.SUCCEEDED for row in request.entry_rows)


class _AnswerReader:
    """Calls back on the loop when the answer to an inflight write has arrived.

    It reads a copy of the descriptor, since the thread may close its own at any moment. It stays
    registered between inline writes, and ends when it sees an answer that is for the thread.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: PGconn, not_ours: Callable[[], None]
    ) -> None:
        self.loop = loop
        self.connection = connection
        self._not_ours = not_ours
        self._expected: tuple[Inflight, Callable[[], None]] | None = None
        self._descriptor = os.dup(connection.socket)
        loop.add_reader(self._descriptor, self._readable)

    def expect(self, inflight: Inflight, answered: Callable[[], None]) -> None:
        """Call back when this one is answered."""
        self._expected = inflight, answered

    def _readable(self) -> None:
        if self._expected is None:
            self._not_ours()
            return
        inflight, answered = self._expected
        if inflight.is_answered():
            self._expected = None
            answered()

    def close(self) -> None:
        """Stop listening; may be called on any loop, and in any thread."""
        with suppress(RuntimeError):  # that loop has ended, and with it what it listened to
            if self.loop is _running_loop():
                self.loop.remove_reader(self._descriptor)
            else:
                self.loop.call_soon_threadsafe(self.close)
                return
        os.close(self._descriptor)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
