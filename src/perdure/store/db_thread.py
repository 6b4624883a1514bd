"""The database thread: one connection, one thread, whole transactions.

Read this page before you change anything below: most of the store's promises are kept here.

**Why a thread.** Database calls block: a commit waits for a disk, or for a server that may be gone.
The event loop must not wait with it. And a coroutine can be cancelled at any `await`: if a
transaction were spread over several awaits, a cancellation between BEGIN and COMMIT would leave a
lock behind, or half of a change. So a transaction is an ordinary blocking function that a thread
runs from beginning to end. The caller that awaits it may be cancelled; the transaction still
happens as a whole or not at all.

**Group commit.** A commit costs a flush of the disk, however much is in it. So the thread takes
everything that was requested while it was busy, up to `_MAX_BATCH` requests, and commits it as one
transaction. A request that is refused (a lost lease, a conflict) must not take its neighbours with
it: the connection then rolls the batch back and runs its requests one by one to find the one at
fault. A failure of the database itself fails the whole batch.

**Who wakes whom.** Requests of one turn of a loop are collected in `_turns` and handed to the
thread when the turn is over (`_hand_over`). If the thread were woken for the first of a hundred
requests, it would fight with the other ninety-nine for the interpreter. Loops of several threads
may request at once, and any of them may end before it is answered. The thread waits on its
queue for `_LINGER` seconds, then sleeps in `poll` on its self-pipe, and with it on a descriptor by
which the connection learns of other processes' writes. It sets `_asleep` *before* it looks at the
queue for the last time, and a loop looks at `_asleep` *after* it has put something in: so one of
the two always notices the other. When a batch is done, each waiting loop is woken once, with all
its answers (`deliver`).

**Inline writes.** For a single small write, waking the thread and being woken by it costs more than
the write. If the caller knows that nothing else is under way in this process (`alone`), the loop
may therefore write by itself, if nothing is queued and the connection is free: the lock `_turn`
says who may use the connection. SQLite writes at once, and the loop waits for the disk (after one
slow disk write it does not try again for `_STALL_OVER` seconds). PostgreSQL only sends the
statement; the lock is then held until the answer has arrived, and the loop continues meanwhile.
Whatever is not a plain success goes to the thread, which repeats it and finds out what is wrong.

**Cancellation with a write in flight.** The write is not withdrawn. `done` is called with its
outcome all the same, so that the owner of a job knows what the store has even if the step that
asked for the write is dead.

**When an answer is lost** the connection must find out what happened before it tries again. SQLite
has no such case: it is in our process. How PostgreSQL does it is in `postgres/transaction.py`.
When a store is closed while a commit still hangs, the thread is left alone with it after
`_STOP_TIMEOUT` seconds: cancelling a commit would be wrong, and nobody was told that it happened.
"""

import asyncio
import logging
import os
import select
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from perdure.base import telemetry
from perdure.base.clock import SystemClock
from perdure.base.encryption import Encryption
from perdure.base.errors import StoreError, StoreUnreachable
from perdure.jobs.effect import Effect
from perdure.jobs.model import JournalEntry, Write
from perdure.jobs.state import ENDED
from perdure.store.rows import STAYS
from perdure.store.sealing import seal_effect, seal_entry
from perdure.store.statements import EncodedWrite, Session

BATCH: Final = ("perdure", "store", "batch")

_log = logging.getLogger("perdure.store")
_CLOCK: Final = SystemClock()
# The member of a `StrEnum` as plain text, which is all that a driver accepts: faster than `.value`.
_plain = str.__str__
_STOP_TIMEOUT: Final = 10.0  # how long closing a store waits for what is under way
_MAX_BATCH: Final = 1000  # requests in one transaction, so that no commit is delayed for long
_ANSWER_TIMEOUT: Final = 60.0  # how long a thread without a loop waits
_LINGER: Final = 0.002  # while requests follow each other, others' changes are not checked
_INLINE_REST: Final = 0.02  # while the loop writes inline, it looks this often
_YIELD_EVERY: Final = 16  # after this many inline writes in a row, one lets the loop turn
_ENDED_LOOP: Final = 0.25  # how often to check whether the loop that has the turn still runs
_STALL: Final = 0.02  # a disk that took this long …
_STALL_OVER: Final = 1.0  # … is left to the thread for a while

Done = Callable[[BaseException | None], None]
RowKey = tuple[str, int | str]  # job and place of an entry; tenant and key of an effect

# The result of an inline write: it is durable; the answer will come; the thread must do it.
Inline = Literal["durable", "inflight", "refused"]


class VerbCall(NamedTuple):
    """A verb with its arguments, to be run inside a transaction."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, session: Session) -> Any:
        return self.function(session, *self.args, **self.kwargs)


class StoreRequest:
    """Something to be done in a transaction: a fenced write, or the call of a verb."""

    __slots__ = (
        "announces",
        "apart",
        "call",
        "done",
        "effect_rows",
        "emits",
        "entry_rows",
        "error",
        "future",
        "is_plain",
        "loop",
        "result",
        "seconds",
        "write",
    )

    def __init__(  # noqa: PLR0913  a record has a parameter for each field
        self,
        write: Write | None = None,
        call: VerbCall | None = None,
        *,
        announces: bool = False,
        done: Done | None = None,
        awaited: bool = True,
        apart: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
        seconds: float | None = None,
    ) -> None:
        self.write = write
        self.seconds = seconds  # after which a search is given up
        self.call = call
        self.apart = apart  # it takes locks in its own order: never together with others
        self.announces = announces  # it may make a job due: watchers are notified
        self.emits = write is not None and write.output is not None  # readers of output are
        self.done = done  # called even if the caller that awaits the future is cancelled
        self.loop = loop or asyncio.get_running_loop()
        # Creating a future is measurable, and the results of steps only need `done`.
        self.future: asyncio.Future[Any] | None = self.loop.create_future() if awaited else None
        self.result: Any = None
        self.error: BaseException | None = None
        self.entry_rows: list[tuple[Any, ...]] = []
        self.effect_rows: list[dict[str, Any]] = []
        self.is_plain = False  # journal and ledger alone: many such writes go in one statement
        if write is not None:
            # Encoded here, not in the thread: what cannot be stored fails before it affects others.
            self.entry_rows = [_entry_row(write, entry) for entry in write.entries]
            more = write.job or write.events or write.taken or write.children or write.withdraws
            more = more or write.chunks or write.spending or self.emits or write.belongs_to
            more = more or write.reused or write.stalled is not None
            if write.effects:
                # PostgreSQL cannot write a row twice in one statement.
                more = more or len({each.key for each in write.effects}) < len(write.effects)
                self.effect_rows = [_effect_row(write, each) for each in write.effects]
            self.is_plain = not (more or write.approvals or write.notices) and bool(
                self.entry_rows or self.effect_rows
            )

    @property
    def is_given_up(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future is not None and self.future.cancelled()

    def seal(self, keys: Encryption) -> None:
        """Encrypt the payloads of a fenced write."""
        self.entry_rows = [seal_entry(keys, row) for row in self.entry_rows]
        self.effect_rows = [seal_effect(keys, line) for line in self.effect_rows]


class Connection:
    """A database connection, used by one thread at a time: the one that holds the turn."""

    def connect(self) -> int | None:
        """Connect; return a descriptor that is readable when `idle` should be called, if any."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Close the connection."""
        raise NotImplementedError

    def execute(self, requests: Sequence[StoreRequest]) -> None:
        """Run all requests, and set the result or the error of each."""
        raise NotImplementedError

    def after_batch(self) -> None:
        """Do the work that nothing waits for, after the answers were delivered. Never raises."""

    def idle(self) -> float | None:
        """Look for other processes' changes; return after how many seconds to look again."""
        return None

    def write_inline(self, request: StoreRequest, finished: Callable[[bool], None]) -> Inline:
        """Run a plain write on the loop, without waiting for anybody, if that is possible.

        `finished` is called on the loop when an inflight write was answered: with True if it is
        durable, with False if the thread must find out.
        """
        del request, finished
        return "refused"

    def stop_inline(self) -> None:
        """Release what inline writes hold on the loop."""

    def abandon_inline(self) -> None:
        """Give up an inflight write whose loop has ended; called in the thread."""


class DbThread:
    """A thread with a connection, and the queue in front of it."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        *,
        announce: Callable[[], None] = lambda: None,
        announce_output: Callable[[], None] = lambda: None,
        is_watched: Callable[[], bool] = lambda: True,
        keys: Encryption | None = None,
    ) -> None:
        """Prepare the thread; nothing is opened yet.

        Args:
            name: Of the thread.
            connection: Used by the thread, and for inline writes by the loop.
            announce: Called in the thread when a job may have fallen due.
            announce_output: Called in the thread when a job has only emitted something.
            is_watched: Whether anybody here wants to know what others do to the database.
            keys: The keys that encrypt the payloads of fenced writes.
        """
        self._keys = keys
        self._connection = connection
        self._announce = announce
        self._announce_output = announce_output
        self._is_watched = is_watched
        self._turn = threading.Lock()  # its holder may use the connection
        self._inline_writes = 0  # how many the loop has made …
        self._inline_seen = 0  # … and the thread has noticed
        self._inline_in_a_row = 0
        self._no_inline_before = 0.0  # by the loop's clock: the disk has stalled
        self._look_at = 0.0
        self._inflight: tuple[StoreRequest, float] | None = None  # with when it was sent
        # What loops have requested in this turn of theirs. The lock is for a close on another loop.
        self._turns: dict[asyncio.AbstractEventLoop, list[StoreRequest]] = {}
        self._turns_lock = threading.Lock()
        self._queue: SimpleQueue[list[StoreRequest]] = SimpleQueue()  # an empty list: look up
        self._self_pipe = SelfPipe()
        self._asleep = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._pid = os.getpid()
        self._is_open = False
        self._closing: StoreRequest | None = None
        self.busy_since: float | None = None  # by the monotonic clock: a transaction is under way

    # Called on the loop

    async def start(self) -> None:
        """Connect.

        Raises:
            StoreError: One of its subclasses: the connection failed.
        """
        self._is_open = True
        opening = StoreRequest()
        self._enqueue(opening)
        assert opening.future is not None
        self._thread.start()
        try:
            await opening.future
        except BaseException:
            self._end()
            self._release_thread(is_over=opening.future.done() and not opening.future.cancelled())
            raise

    async def stop(self) -> None:
        """Finish what was requested, and disconnect; if that takes too long, abandon the thread."""
        if not self._is_open:
            return
        self._closing = closing = StoreRequest()
        with self._turns_lock:  # nothing is requested from now on
            self._is_open = False
        for loop in tuple(self._turns):
            self._hand_over(loop)
        self._end()
        assert closing.future is not None
        is_over = False
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                await closing.future
            is_over = True
        except TimeoutError:
            _log.warning(
                "%s still waits for the database to finish a transaction and is left alone with "
                "it: the transaction may or may not happen, and nobody was told that it did",
                self._thread.name,
            )
        finally:
            self._release_thread(is_over=is_over)
            self._connection.stop_inline()

    def _end(self) -> None:
        self._is_open = False
        self._queue.put([])
        self._self_pipe.wake()

    def _release_thread(self, *, is_over: bool) -> None:
        """Join the thread if it is over: the loop never waits for one that may be in a commit."""
        if is_over:
            self._thread.join()
            self._self_pipe.close()  # by the one who wakes it, never before

    def look_up(self) -> None:
        """Make the thread notice that changes by other processes are watched."""
        if self._is_open:
            self._self_pipe.wake()

    def call(
        self, call: VerbCall, *, announces: bool = False, apart: bool = False, inline: bool = False
    ) -> asyncio.Future[Any]:
        """Queue a verb, return its future.

        Args:
            call: The verb.
            announces: It may make a job due.
            apart: It gets its own transaction, after all before it.
            inline: It may be done twice, so the loop may send it, if the connection knows how.
        """
        request = StoreRequest(call=call, announces=announces, apart=apart)
        if not inline or self._write_inline(request) == "refused":
            self._enqueue(request)
        assert request.future is not None
        return request.future

    def call_blocking(self, call: VerbCall) -> Any:
        """Run a verb in its own transaction and return its result; for threads without a loop.

        Raises:
            StoreError: It failed, or the database does not answer.
        """
        answered = threading.Event()
        request = StoreRequest(
            call=call,
            done=lambda _: answered.set(),
            awaited=False,
            apart=True,
            loop=cast("asyncio.AbstractEventLoop", _NoLoop()),
        )
        if not self._is_open or self._pid != os.getpid():
            raise StoreError("the store is not open")
        self._queue.put([request])
        if self._asleep:
            self._self_pipe.wake()
        if not answered.wait(_ANSWER_TIMEOUT):
            raise StoreUnreachable(f"the database has not answered within {_ANSWER_TIMEOUT:g} s")
        if request.error is not None:
            raise request.error
        return request.result

    async def write(self, write: Write, *, alone: bool = False, done: Done | None = None) -> None:
        """Make a fenced write, and return when it is durable.

        Concurrent writes share one commit. `alone` and `done` are those of `write_soon`.

        Raises:
            LeaseLost: The owner or the epoch is not that of the lease; nothing was written.
            JournalConflict: Another entry has the place of one of these; nothing was written.
        """
        # A parent, a child, or the job itself may be due.
        announces = write.job is not None or bool(write.children)
        request = StoreRequest(write, announces=announces, done=done)
        if self._keys is not None:
            request.seal(self._keys)
        outcome = self._write_inline(request) if alone else "refused"
        if outcome == "refused":
            self._enqueue(request)
        elif outcome == "durable":
            self._inline_in_a_row += 1
            # Awaiting a future that is done does not yield: a chain of such writes would never
            # let the loop turn.
            if self._inline_in_a_row % _YIELD_EVERY:
                resolve([request])
            else:
                request.loop.call_soon(resolve, [request])
        assert request.future is not None
        await request.future

    def write_soon(self, write: Write, done: Done, *, alone: bool = False) -> bool:
        """Make a fenced write of journal and ledger alone, without waiting for it.

        Args:
            write: What is written.
            done: Called on the loop when it is durable, or with what `write` would raise;
                even if the caller is cancelled, but not if the store is closed.
            alone: Nothing else is under way in this process, so the loop may wait for the disk.

        Returns:
            True if it is durable already: then `done` is not called.
        """
        request = StoreRequest(write, done=done, awaited=False)
        if self._keys is not None:
            request.seal(self._keys)
        outcome = self._write_inline(request) if alone else "refused"
        if outcome == "refused":
            self._enqueue(request)
        return outcome == "durable"

    def _write_inline(self, request: StoreRequest) -> Inline:
        since = request.loop.time()
        may_write = self._is_open and since >= self._no_inline_before and self._pid == os.getpid()
        others_wait = self._turns or not self._queue.empty()
        if not may_write or others_wait or not self._turn.acquire(blocking=False):
            return "refused"
        outcome: Inline = "refused"
        try:
            outcome = self._connection.write_inline(request, self._finish_inline)
            if outcome == "inflight":  # the turn is released when the answer has arrived
                self._inflight = request, since
                self.busy_since = _CLOCK.monotonic()
            elif outcome == "durable":
                self._inline_writes += 1
                now = request.loop.time()
                if telemetry.has_handlers(BATCH):
                    self._report([request], now - since)
                if now - since > _STALL:
                    self._no_inline_before = now + _STALL_OVER
                if now >= self._look_at:
                    self._look_at = now + _INLINE_REST
                    self._connection.idle()
        finally:
            if outcome != "inflight":
                self._turn.release()
        return outcome

    def _finish_inline(self, is_durable: bool) -> None:  # noqa: FBT001  a callback
        assert self._inflight is not None
        request, since = self._inflight
        self._inflight = self.busy_since = None
        self._turn.release()
        if telemetry.has_handlers(BATCH):
            self._report([request], request.loop.time() - since)
        if not is_durable:
            try:
                self._enqueue(request)
            except StoreError as error:  # it was closed meanwhile
                request.error = error
            else:
                return
        resolve([request])

    def _enqueue(self, request: StoreRequest) -> None:
        if self._pid != os.getpid():
            raise StoreError("the store was opened before a fork: open it again in the new process")
        with self._turns_lock:
            if not self._is_open:
                raise StoreError("the store is not open: call `await store.open()` first")
            turn = self._turns.get(request.loop)
            if turn is not None:
                turn.append(request)
                return
            for ended in [loop for loop in self._turns if loop.is_closed()]:
                self._queue.put(self._turns.pop(ended))  # it ended before its turn was over
            self._turns[request.loop] = [request]
        request.loop.call_soon(self._hand_over, request.loop)

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._turns_lock:
            requests = self._turns.pop(loop, None)
        if requests:
            self._queue.put(requests)
            if self._asleep:
                self._self_pipe.wake()

    # Called in the thread

    def _serve(self) -> None:
        (opening,) = self._queue.get()
        self.busy_since = _CLOCK.monotonic()
        try:
            changes = self._connection.connect()
        except BaseException as error:  # noqa: BLE001  whoever opens the store gets it
            opening.error = error
            self._is_open = False
            deliver([opening])
            return
        self.busy_since = None
        if changes is not None:
            self._self_pipe.watch(changes)
        deliver([opening])
        while requests := self._gather():
            with self._taken_turn():
                self._execute(requests)
            # First the watchers: one that starts to watch after its answer knows this change.
            if any(request.announces and request.error is None for request in requests):
                self._announce()
            elif any(request.emits and request.error is None for request in requests):
                self._announce_output()
            deliver(requests)
            del requests  # else the last ones would be kept until there are others
            with self._taken_turn():
                self._connection.after_batch()
        with self._taken_turn():
            self.busy_since = _CLOCK.monotonic()
            self._connection.disconnect()
            self.busy_since = None
        # Reported from here, since disconnecting may need the very loop that waits for it.
        if self._closing is not None:
            deliver([self._closing])

    @contextmanager
    def _taken_turn(self) -> Generator[None]:
        """Have the connection; it is taken from a loop that has ended with a write in flight."""
        while not self._turn.acquire(timeout=_ENDED_LOOP):
            inflight = self._inflight
            if inflight is not None and inflight[0].loop.is_closed():
                self._inflight = self.busy_since = None
                self._connection.abandon_inline()
                self._queue.put([inflight[0]])  # it may have happened, and may be repeated
                break
        try:
            yield
        finally:
            self._turn.release()

    def _execute(self, requests: Sequence[StoreRequest]) -> None:
        self.busy_since = since = _CLOCK.monotonic()
        try:
            self._connection.execute(requests)
        except BaseException as error:  # noqa: BLE001  those who wait get it; the thread goes on
            for request in requests:
                request.error = error
        self.busy_since = None
        if telemetry.has_handlers(BATCH):
            self._report(requests, _CLOCK.monotonic() - since)

    def _report(self, requests: Sequence[StoreRequest], duration: float) -> None:
        failed = sum(request.error is not None for request in requests)
        measured = {"requests": len(requests), "failed": failed, "duration": duration}
        telemetry.execute(BATCH, measured, {"thread": self._thread.name})

    def _gather(self) -> list[StoreRequest]:
        """Wait for requests and return them; none at all means that the store is closed."""
        queue, requests = self._queue, list[StoreRequest]()
        while not requests and (self._is_open or not queue.empty()):
            try:
                requests = queue.get(timeout=_LINGER)
            except Empty:
                self._sleep()
                requests = queue.get()
            while len(requests) < _MAX_BATCH and not queue.empty():
                requests += queue.get_nowait()
        return requests

    def _sleep(self) -> None:
        """Wait until something is queued, and meanwhile look for others' changes."""
        self._asleep = True  # before the queue is looked at: see `_hand_over`
        while self._queue.empty():
            if self._inline_seen != self._inline_writes:
                # The file was touched by our own loop. The turn is left to it: looking for others
                # now would only be in its way.
                self._inline_seen = self._inline_writes
                self._self_pipe.wait_for_wake(_INLINE_REST)
            elif not self._is_watched():  # else each commit of a busy worker would cost a look
                self._self_pipe.wait_for_wake(None)
            else:
                with self._taken_turn():
                    pause = self._connection.idle()
                self._self_pipe.wait(pause)
        self._asleep = False


class Search:
    """A read that may take long: for how long, and who hears that its thread is done with it."""

    __slots__ = ("is_begun", "over", "seconds")

    def __init__(self, seconds: float, over: Callable[[], None]) -> None:
        self.seconds = seconds
        self.over = over  # called on the loop, also if the caller was cancelled
        self.is_begun = False  # `over` will be called


class SearchThread(DbThread):
    """A database thread for searches: nothing else waits for it.

    Its connection is opened by the first one, so that most programs have none.
    """

    _unanswered = 0

    @property
    def unanswered(self) -> int:
        """How many searches it has, also those that nobody waits for."""
        return self._unanswered

    def search(self, call: VerbCall, search: Search) -> asyncio.Future[Any]:
        """Queue a verb that reads, return its future."""
        request = StoreRequest(call=call, seconds=search.seconds, done=lambda _: search.over())
        self._enqueue(request)
        search.is_begun = True
        self._change(1)
        assert request.future is not None
        return request.future

    def _execute(self, requests: Sequence[StoreRequest]) -> None:
        super()._execute(requests)
        self._change(-len(requests))

    def _change(self, number: int) -> None:
        with self._turns_lock:
            self._unanswered += number


# Answers


class _NoLoop:
    """Stands for the loop of a caller that has none: it is called back in our thread."""

    def call_soon_threadsafe(self, callback: Callable[..., None], *args: Any) -> None:
        callback(*args)


def deliver(requests: Sequence[StoreRequest]) -> None:
    """Wake the waiting callers, from any thread: one call for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[StoreRequest]] = {}
    for request in requests:
        loops.setdefault(request.loop, []).append(request)
    for loop, theirs in loops.items():
        try:
            loop.call_soon_threadsafe(resolve, theirs)
        except RuntimeError:  # that loop has ended, and its callers with it
            continue


def resolve(requests: Sequence[StoreRequest]) -> None:
    """Set the results of requests for their callers; called on their loop."""
    for request in requests:
        future = request.future
        if request.done is not None:
            request.done(request.error)
        if future is None or future.done():  # cancelled in the meantime
            continue
        if request.error is None:
            future.set_result(request.result)
        else:
            future.set_exception(request.error)


# Rows of a write


def _entry_row(write: Write, entry: JournalEntry) -> tuple[Any, ...]:
    """Return an entry in the order of the journal's columns, owner and epoch before its key."""
    given, output, error, checkpoint = entry.input, entry.output, entry.error, entry.checkpoint
    return (
        write.job_id,
        entry.seq,
        entry.id,
        _plain(entry.kind),
        entry.name,
        _plain(entry.state),
        entry.attempt,
        None if given is None else given.decode(),
        None if output is None else output.decode(),
        None if error is None else error.decode(),
        None if checkpoint is None else checkpoint.decode(),
        entry.checkpoint_no,
        entry.wake_at,
        entry.started_at,
        entry.ended_at,
        write.owner,
        write.epoch,
        entry.key,
    )


def _effect_row(write: Write, effect: Effect) -> dict[str, Any]:
    """Return a line of the ledger by the names of its columns, with owner and epoch."""
    details, result, error = effect.details, effect.result, effect.error
    undo = STAYS if effect.stays else None
    if effect.undo is not None:
        undo = msgspec.json.encode(effect.undo).decode()
    return {
        "id": effect.job_id,
        "tenant": effect.tenant,
        "key": effect.key,
        "step": effect.place.step,
        "part": effect.place.part,
        "ordinal": effect.place.ordinal,
        "generation": effect.generation,
        "kind": effect.kind,
        "target": effect.target,
        "state": effect.state.value,
        "in_doubt": effect.in_doubt,
        "key_ttl": effect.key_ttl,
        "details": None if details is None else details.decode(),
        "result": None if result is None else result.decode(),
        "problem": effect.problem,
        "error": None if error is None else error.decode(),
        "undo": undo,
        "proof": effect.proof,
        "called_at": effect.called_at,
        "ended_at": effect.ended_at,
        "business": effect.business,
        "kept_until": effect.kept_until,
        "last_called_at": effect.last_called_at,
        "owner": write.owner,
        "epoch": write.epoch,
    }


# Batches


class Round(NamedTuple):
    """Requests that may be done in any order, since none has been answered yet."""

    plain: list[StoreRequest]  # writes of journal and ledger alone
    full: list[StoreRequest]  # other writes, after those
    calls: list[StoreRequest]  # verbs, last


def rounds(requests: Iterable[StoreRequest], *, repeat: bool = True) -> list[Round]:
    """Group requests into rounds, each of which can be done statement by statement.

    What follows the release of a job goes into another round, so that its fence is checked.
    Without `repeat`, so does a row that is written again: PostgreSQL cannot write it twice in one
    statement.
    """
    current = Round([], [], [])
    found = [current]
    released: set[str] = set()
    seen: set[RowKey] = set()
    for request in requests:
        write = request.write
        if write is None:
            current.calls.append(request)
            continue
        keys = set[RowKey]() if repeat else row_keys(request)
        if write.job_id in released or keys & seen:
            current = Round([], [], [])
            found.append(current)
            released.clear()
            seen.clear()
        seen |= keys
        (current.plain if request.is_plain else current.full).append(request)
        if write.job is not None and (write.job.release or write.job.state in ENDED):
            released.add(write.job_id)
    return found


def row_keys(request: StoreRequest) -> set[RowKey]:
    """Return the keys of the rows of journal and ledger that a write touches."""
    entries = {(row[0], row[1]) for row in request.entry_rows}
    return entries | {(row["tenant"], row["key"]) for row in request.effect_rows}


def writes_of(requests: Iterable[StoreRequest]) -> list[EncodedWrite]:
    """Return the writes among requests, with their rows."""
    return [
        (each.write, each.entry_rows, each.effect_rows)
        for each in requests
        if each.write is not None
    ]


class SelfPipe:
    """Wakes a thread that sleeps in `poll`: it reads one end of a pipe, all others write."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        # Also for a store that is never opened, which nobody closes.
        self._close = weakref.finalize(self, _close_both, self._read, self._write)
        self._close.atexit = False  # a thread may still wait
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._all = select.poll()
        self._all.register(self._read, select.POLLIN)
        self._pipe_alone = select.poll()
        self._pipe_alone.register(self._read, select.POLLIN)

    def watch(self, descriptor: int) -> None:
        """Let a `wait` also end when another descriptor becomes readable."""
        self._all.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""
        self._all.unregister(descriptor)

    def wake(self) -> None:
        """End the wait of the other thread, now or as soon as it begins."""
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            return  # the pipe is full: it is woken already

    def wait(self, seconds: float | None) -> None:
        """Wait until it is woken, the watched descriptor is readable, or the time is over."""
        self._all.poll(None if seconds is None else seconds * 1000)
        self._drain()

    def wait_for_wake(self, seconds: float | None) -> None:
        """Wait until it is woken or the time is over, ignoring the watched descriptor."""
        self._pipe_alone.poll(None if seconds is None else seconds * 1000)
        self._drain()

    def _drain(self) -> None:
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close both ends."""
        self._close()


def _close_both(read: int, write: int) -> None:
    os.close(read)
    os.close(write)
