"""One run of a job, from its claim until it ends, waits or is lost: operations, replay, writes.

`Run` is the meeting point of three kinds of code, all on one event loop:

* the code of the job, in the process of the run (see the executor);
* the processes of its operations: an attempt of a step, a check on a child, … (`start_process`);
* callbacks: timers, answers from the store, news that the worker has read.

Nothing here needs a lock, since other code runs only at an `await`. But the run may end during any
`await`, so code that continues after one must check `verdict` again.

**Replay.** The code runs again from its start after every interruption. What it asks for is looked
up in the `Journal` by identity: the name of the operation and its ordinal among those of the same
name, such as `send_mail#2`. The ordinal is allotted when the code asks, in the order of the code.
So parallel branches that ask for operations of different names, or for all of them at once, get the
same identities in every replay. Code that asks for something different than it did before has
*drifted*: while there are entries that it has not asked for again, nothing new may start (`hold`).

**Two ways to end.** `end(verdict)` sets `ending`: nothing new begins, and the run ends when no
operation is working any more. `stop(verdict)` sets `verdict`: the run has ended, and every `await`
of an operation raises `Unwound` in the code. When each of them is called:

* A cancel or a deadline calls `end`. Working steps are interrupted: they get CANCEL, and are killed
  after the grace period. Both replace each other and every softer end.
* A pause, or a step that needs a person, calls `end`. Working steps are left to finish.
* A drain calls `end`. Working steps leave at their next checkpoint.
* A lost lease calls `lose_lease`: `stop`, and the processes are killed. Another worker may already
  run the job, so nothing more is written.
* If the code waits only for operations, and these wait for something, there is nothing to do:
  `stop(Suspended)`.

A step that has its result and waits for the disk (`committing`) is not interrupted: it is done, and
its result must not be lost. If the code ends at the same time as the run is ended from outside, the
outside wins: code that returned after a cancel was requested has still been cancelled.

**Writes.** Everything is written first, fenced by owner and epoch of the claim, and then reported
to the code. A write that was handed to the store cannot be recalled: even if its writer is
cancelled, it may be committed. So writes are counted (`in_flight`), and buffered entries and
effects that were sent with a write return to the buffers only when the store has reported that it
failed. The end of a run keeps this order (see the executor):

1. the verdict is decided, and the code unwinds;
2. `stop_operations`: no operation of the job is working any more;
3. `finish_writes`: the store has answered everything, the buffers are written, the run is sealed;
4. journal and ledger are read again, and what the job leaves behind is decided from them;
5. one write ends or releases the job.

Between 3 and 5 nothing can be added to the journal that 4 has not seen.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable
from functools import partial
from typing import Any, Generic, TypeVar, Unpack

from msgspec.structs import replace

from perdure.base.codec import encode
from perdure.base.errors import Drift, JobError, LeaseLost, StepTimeout, StoreError
from perdure.base.retry import Retry, pause
from perdure.engine import events
from perdure.engine.journal.ledger import Ledger
from perdure.engine.journal.verdict import (
    Cancelled,
    Drained,
    NeedsAttention,
    Paused,
    RunFailed,
    RunLost,
    RunVerdict,
    Suspended,
    Unwound,
)
from perdure.engine.worker_port import WorkerPort
from perdure.jobs.budget import BudgetRef
from perdure.jobs.effect import Effect
from perdure.jobs.failure import failure_of
from perdure.jobs.gate import GatePasses
from perdure.jobs.model import (
    Claim,
    EntryKind,
    JobMessage,
    JournalEntry,
    Write,
    WriteFields,
)
from perdure.process.lifecycle import PLAIN, kill, spawn_process
from perdure.process.process import Process, current
from perdure.process.waiter import Waiter, current_waiter
from perdure.store.store import Store

R = TypeVar("R")
T = TypeVar("T")
WriteDone = Callable[[BaseException | None], None]
Code = Callable[["Run"], Awaitable[bytes]]

_log = logging.getLogger("perdure.worker")

# How long to wait before the store is queried again while it does not answer.
_STORE_PAUSES = Retry(initial_delay="250ms", max_delay="2s", jitter=0.5)

# During a replay, how long code may wait for things that are not operations before it counts as
# drifted from its journal.
_REPLAY_PATIENCE = 5.0

# How long code may wait for things that are not operations, while all of its operations wait too,
# before the job is suspended until they are due.
_IDLE_PATIENCE = 1.0

# How many journal entries a message about drift names.
_SHOWN = 10

# How often code that does not unwind when its run has ended is interrupted before it is abandoned.
_INTERRUPTIONS = 3

# How often code that catches the end of its run gets `Unwound` before it only waits to be killed.
_REFUSALS = 10


class Operation(Generic[R]):
    """What the code of a job awaits: a step, a timer, a message, a child, a person.

    It gets its identity when the code asks for it and begins when the code awaits it. The journal
    finishes it at once in a replay; else the run does, when its result is durable.
    """

    __slots__ = (
        "_begun",
        "_error",
        "_value",
        "_waiters",
        "entry",
        "finished",
        "recorded",
        "run",
        "start_again",
    )

    # What people are shown when the job waits for it: "timer", "message", "child", …
    waits_for = ""

    # How long it may work without progress, by its own policy.
    max_duration = 0.0

    def __init__(self, run: "Run", entry: JournalEntry, *, recorded: bool) -> None:
        self.run = run
        self.entry = entry
        self.recorded = recorded  # whether an earlier run has already asked for it
        self.finished = False
        self.start_again = False  # when the process that works for it has ended
        self._begun = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiters: list[Waiter] = []
        run.not_begun.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.entry.id} of job {self.run.job.id}>"

    def __await__(self) -> Generator[Any, None, R]:
        run = self.run
        if not self.finished and run.verdict is None:
            if not self._begun:
                self.begin()
            waiter = current_waiter()
            self._waiters.append(waiter)
            run.awaited.add(self)
            try:
                while not self.finished and run.verdict is None:
                    yield waiter.pause()
            finally:
                self._waiters.remove(waiter)
                run.awaited.discard(self)
                if self.finished:
                    run.resuming -= 1
                    if run.waiting or run.held or run.ending is not None:
                        run.check_soon()
        if run.verdict is not None:
            yield from _refuse(run)
            raise Unwound
        if self._error is not None:
            raise self._error
        return self._value

    def begin(self) -> None:
        """Start it, unless it was started before, or it is too early or too late for that."""
        if self._begun or self.finished:
            return
        self._begun = True
        run = self.run
        run.not_begun.discard(self)
        if run.ending is not None:
            run.check_soon()
        elif run.journal.unvisited and not self.recorded:
            run.hold(self)
        else:
            self.start()

    def spawn(self, body: Callable[[], Awaitable[None]]) -> None:
        """Start a process that works for it."""
        self.run.start_process(self, body)

    def spawn_again(self, body: Callable[[], Awaitable[None]]) -> None:
        """Start a process, or start again when the current one ends: what it read may be stale."""
        if self in self.run.working:
            self.start_again = True
        else:
            self.run.start_process(self, body)

    def wait(self, until: float | None = None) -> None:
        """Wait for news, or for a time by the store's clock."""
        self.run.wait(self, until)

    # What the kinds of operations do

    def start(self) -> None:
        """Do the work of this operation, or begin to wait."""
        raise NotImplementedError

    def on_due(self) -> None:
        """Continue: the time that it waited for has come."""
        self.start()

    def on_news(self) -> None:
        """Look at the news of the job, now or when its process has ended."""

    def on_lease_lost(self) -> None:
        """Give up everything: another worker may own the job."""

    def interrupt(self, *, hard: bool) -> None:
        """Stop working: if `hard`, by force if necessary; otherwise only at the next checkpoint."""

    def finish(self, value: R | None, error: BaseException | None = None) -> None:
        """Pass the result, or the error, to the code."""
        if self.finished:
            return
        self.finished = True
        run, waiters = self.run, self._waiters
        run.not_begun.discard(self)
        self._value, self._error = value, error
        if isinstance(error, JobError):
            error.step = self.entry.id
        run.resuming += len(waiters)
        for waiter in waiters:
            waiter.wake()

    def wake(self) -> None:
        """Make the code that awaits it check its state again."""
        for waiter in self._waiters:
            waiter.wake()

    @property
    def waiters(self) -> Collection[Waiter]:
        """The waiters of the code that awaits it."""
        return self._waiters

    def describe_all(self) -> list[dict[str, Any]]:
        """Return descriptions, for people, of everything that it waits for."""
        return [self.describe()]

    def describe(self) -> dict[str, Any]:
        """Return a description, for people, of what it waits for."""
        described: dict[str, Any] = {"kind": self.waits_for, "id": self.entry.id}
        if self.entry.wake_at is not None:
            described["until"] = self.entry.wake_at
        return described


def _refuse(run: "Run") -> Generator[Any, None, None]:
    """Wait for ever if the code has caught `Unwound` too often, so that it does not spin."""
    run.refusals += 1
    if run.refusals > _REFUSALS:
        waiter = current_waiter()
        while True:
            yield waiter.pause()


class Journal:
    """The entries of one job by identity, and which of them the code has asked for again."""

    __slots__ = ("_keyed", "_ordinals", "_seq", "entries", "unvisited")

    def __init__(self, entries: Iterable[JournalEntry]) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self._seq = max((entry.seq for entry in self.entries.values()), default=0)
        self._ordinals: dict[str, int] = {}
        self._keyed: set[str] = set()  # identities that the code itself chose
        # What the code must ask for again before it may start anything new.
        self.unvisited = {
            entry.id for entry in self.entries.values() if entry.kind is not EntryKind.UNDO
        }

    def identity(self, name: str, key: str | None = None) -> str:
        """Return the identity of the next operation of this name, or that with this key.

        Raises:
            ValueError: Another operation has this identity.
        """
        if key is None:
            ordinal = self._ordinals.get(name, 0) + 1
            self._ordinals[name] = ordinal
            id = f"{name}#{ordinal}"
            if self._keyed and id in self._keyed:
                raise ValueError(_same(id))
            return id
        id = f"{name}#{key}"
        if id in self._keyed or (key.isdigit() and int(key) <= self._ordinals.get(name, 0)):
            raise ValueError(_same(id))
        self._keyed.add(id)
        return id

    def visit(self, id: str, kind: EntryKind, packed: bytes | None) -> JournalEntry | None:
        """Return the entry of an operation that the code asks for; None if it is new.

        Raises:
            Drift: The journal has something else under this identity.
        """
        entry = self.entries.get(id)
        if entry is None:
            return None
        self.unvisited.discard(id)
        if entry.kind is not kind:
            raise Drift(f"the journal has {id} as a {entry.kind}, the code as a {kind}")
        if packed is not None and entry.input not in (None, packed):
            raise Drift(
                f"{id} was called with other arguments before: "
                f"journal {_excerpt(entry.input)}, code {_excerpt(packed)}"
            )
        return entry

    def next_seq(self) -> int:
        """Return the position of a new entry."""
        self._seq += 1
        return self._seq

    def missed(self, wanted: str) -> Drift:
        """Return the drift of code that starts something new before asking for what is recorded."""
        left = sorted(self.unvisited, key=lambda id: self.entries[id].seq)
        shown = ", ".join(left[:_SHOWN]) + (" …" if len(left) > _SHOWN else "")
        return Drift(f"the code {wanted}, but the journal expects {shown} next")


def _same(id: str) -> str:
    return f"two operations of the job would be {id}: give `run_as` another key"


def _excerpt(payload: bytes, most: int = 200) -> str:
    text = payload.decode()
    return text if len(text) <= most else text[:most] + "…"


class Run:
    """What the code of a claimed job, its operations and its worker share."""

    def __init__(self, node: WorkerPort, claim: Claim) -> None:  # noqa: PLR0915 - one state
        self.node = node
        self.job = claim.job
        self.epoch = claim.epoch
        self.process: Process = current("a run of a job")

        # The lease
        self.trusted_until = 0.0  # by the loop's time: until then the lease is certainly ours
        self.begun_at = self.progress_at = node.loop.time()
        self.clock_offset = claim.now - node.loop.time()  # from the loop's time to the store's

        # What is known about the job
        self.journal = Journal(claim.journal)
        self.news = claim.news  # how far the news of the job has been read
        self.messages = list(claim.messages)
        self.received: set[int] = set()  # messages that operations have taken out of that list
        self.ledger: Ledger | None = None  # see `open_ledger`
        self.budget: BudgetRef | None = None  # looked up by the first spending
        self.gate_passes: GatePasses = ()  # approvals that no step has used yet

        # Operations
        self.not_begun: set[Operation[Any]] = set()  # created by the code, and not awaited yet
        self.awaited: set[Operation[Any]] = set()  # by the code, at this moment
        self.working: dict[Operation[Any], Process] = {}  # those that have a process
        self.waiting: dict[Operation[Any], asyncio.Handle | None] = {}  # for a time, or for news
        self.resuming = 0  # awaits that are over, but the code has not resumed yet
        self.held: list[Operation[Any]] = []  # new ones, while the replay is not over

        # The end
        self.verdict: RunVerdict | None = None  # how the run has ended
        self.ending: RunVerdict | None = None  # how it ends when nothing is working any more
        self.code_ended = False
        self.refusals = 0  # awaits of the code since its run has ended
        self.interrupted_step = False  # a step was interrupted: it may have left a call open
        self.abandoned = False  # the code did not unwind: its run is ended without it
        self.abandon: Callable[[], None] | None = None  # does that; set by the executor
        self._running_code = False
        self._interruptions = 0
        self._check_scheduled = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._no_work: asyncio.Future[None] | None = None  # done when nothing is working any more

        # Writes
        self.buffered_entries: dict[int, JournalEntry] = {}  # by seq: written with the next write
        self.buffered_effects: dict[str, Effect] = {}  # by key, likewise
        self.sealed = False  # nothing is working for the job any more: only its end is written
        self.in_flight = 0  # writes that the store has not answered
        self.all_answered: asyncio.Future[None] | None = None

    def now(self) -> float:
        """Return the time by the store's clock, as estimated here."""
        return self.clock_offset + self.node.loop.time()

    def open_ledger(self) -> Ledger:
        """Return the ledger of the run, creating it on first use."""
        if self.ledger is None:
            self.ledger = Ledger(self.job, self.ask)
        return self.ledger

    # The code

    def code_begins(self) -> None:
        """Record that the code runs from now on; its deadline ends the run."""
        self._running_code = True
        if self.job.deadline_at is not None:
            late = StepTimeout(f"job {self.job.id} did not end before its deadline")
            left = max(0.0, self.job.deadline_at - self.now())
            self._arm("deadline", left, lambda: self.end(RunFailed(failure_of(late))))

    def code_ends(self) -> None:
        """Record that the code has returned, raised or unwound."""
        self._running_code = False
        self.code_ended = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for _ in range(self._interruptions):  # they were meant for the code
            self.process.uncancel()

    def _arm(self, name: str, delay: float, then: Callable[[], None]) -> None:
        """Call a function later, unless the code has ended by then; there is one timer per name."""
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self.node.loop.call_later(delay, then)

    # Operations

    def visit(self, id: str, kind: EntryKind, packed: bytes | None) -> JournalEntry | None:
        """Return the journal entry of an operation; None if it is new."""
        if self.verdict is not None or id not in self.journal.entries:
            return None  # after a verdict it will never begin: code that awaits it is unwound
        entry = self.journal.visit(id, kind, packed)
        if self.held and not self.journal.unvisited:  # the replay is over
            held, self.held = self.held, []
            for operation in held:
                if self.ending is None:
                    operation.start()
                else:
                    self.check_soon()
        return entry

    def hold(self, operation: Operation[Any]) -> None:
        """Keep a new operation from starting while the replay is not over.

        Code that fits its journal asks for everything recorded before it needs the result of
        anything new. Code that does not has drifted, and must not have started anything new.
        """
        if not self.held:
            self._arm("replay", _REPLAY_PATIENCE, self._judge_replay)
        self.held.append(operation)
        self.check_soon()

    def _judge_replay(self) -> None:
        if self.held and self.verdict is None:
            wanted = ", ".join(operation.entry.id for operation in self.held)
            self.stop(NeedsAttention(failure_of(self.journal.missed(f"asks for {wanted}"))))

    def start_process(self, operation: Operation[Any], body: Callable[[], Awaitable[None]]) -> None:
        """Start a process that works for an operation."""
        self._stop_waiting(operation)
        self.working[operation] = spawn_process(
            self.node.runtime, self.process, _work, (self, operation, body), PLAIN
        )

    def process_ended(self, operation: Operation[Any]) -> None:
        """Record that the process of an operation has ended."""
        self.working.pop(operation, None)
        goes_on = self.ending is None and self.verdict is None and not operation.finished
        if operation.start_again and goes_on:
            operation.start_again = False
            operation.start()
        if self.working:
            return
        if self._no_work is not None and not self._no_work.done():
            self._no_work.set_result(None)
        if self.waiting or self.held or self.ending is not None:
            self.check_soon()

    def wait(self, operation: Operation[Any], until: float | None = None) -> None:
        """Let an operation wait for news, or for a time by the store's clock."""
        timer = None
        if until is not None:
            timer = self.node.loop.call_later(max(0.0, until - self.now()), self._due, operation)
        self.waiting[operation] = timer
        self.check_soon()

    def _due(self, operation: Operation[Any]) -> None:
        self._stop_waiting(operation)
        if self.ending is None and self.verdict is None:
            operation.on_due()

    def _stop_waiting(self, operation: Operation[Any]) -> None:
        timer = self.waiting.pop(operation, None)
        if timer is not None:
            timer.cancel()

    def on_news(self, news: int, messages: Iterable[JobMessage]) -> None:
        """Pass news on to the operations; `messages` were read when the news had this number."""
        if news < self.news or self.verdict is not None:
            return  # later news has arrived already, or nobody here reads it any more
        # Not before the messages are here: the release of the job says how far it has read.
        self.news = news
        self.messages = [one for one in messages if one.no not in self.received]
        for operation in (*self.waiting, *self.working):
            operation.on_news()

    # The end

    def end(self, verdict: RunVerdict) -> None:
        """End the run when nothing is working any more; ask running operations to stop."""
        if self.ending is None or isinstance(verdict, Cancelled | RunFailed):
            self.ending = verdict
        if not isinstance(verdict, Paused | NeedsAttention):  # then steps finish on their own
            for operation in tuple(self.working):
                operation.interrupt(hard=not isinstance(verdict, Drained))
        self.check_soon()

    def unpause(self) -> None:
        """Continue after all: the job was resumed before the pause took effect."""
        if isinstance(self.ending, Paused):
            # What did not begin meanwhile cannot begin now: the job is claimed again instead.
            self.ending = Drained()

    def stop(self, verdict: RunVerdict) -> None:
        """End the run now: the code unwinds."""
        if self.verdict is None:
            self.verdict = verdict
            for operation in tuple(self.awaited):
                operation.wake()
            if self._running_code:
                self._arm("unwind", self.node.settings.cancel_grace, self._interrupt_code)

    def _interrupt_code(self) -> None:
        """Interrupt code that awaits other things than operations, or caught `Unwound`."""
        if self._interruptions < _INTERRUPTIONS:
            self._interruptions += 1
            self.process.cancel("the run of the job has ended")
            self._arm("unwind", self.node.settings.cancel_grace, self._interrupt_code)
        elif self.abandon is not None and not self.abandoned:
            self.abandoned = True
            self.abandon()

    def lose_lease(self) -> None:
        """Stop at once, and kill all operations: another worker may own the job by now."""
        self._lease_lost()
        for operation, process in tuple(self.working.items()):
            operation.on_lease_lost()
            if not process.done():
                process.at_exit(partial(self.process_ended, operation))
                kill(process, "the lease of the job is lost")

    def _lease_lost(self) -> None:
        if self.verdict is None and events.listens(events.LEASE_LOSE):
            events.lease_lost(self)
        self.stop(RunLost())

    async def stop_operations(self) -> None:
        """Wait until nothing is working for this run any more."""
        for operation in tuple(self.waiting):
            self._stop_waiting(operation)
        for operation in tuple(self.working):
            operation.interrupt(hard=True)
        while self.working:
            self._no_work = self.node.loop.create_future()
            await self._no_work

    # Whether there is anything left to do

    def check_soon(self) -> None:
        """Check, after the code has run, whether the run can end or be suspended."""
        if not self._check_scheduled:
            self._check_scheduled = True
            self.node.loop.call_soon(self._check)

    def _check(self) -> None:
        self._check_scheduled = False
        if self.verdict is not None or self.working or self.resuming:
            return
        if self.ending is not None:
            self.stop(self.ending)
        elif not _awaits_only(self.process, self.awaited):
            if self.waiting and not self.held:
                self._arm("idle", _IDLE_PATIENCE, self._check_idle)
        elif self.held:
            self._judge_replay()
        elif self.waiting:
            self._suspend()

    def _check_idle(self) -> None:
        """Suspend the job, although its code may wait for things that are not operations."""
        quiet = not (self.working or self.resuming or self.held)
        if self.verdict is None and self.ending is None and quiet and self.waiting:
            self._suspend()

    def _suspend(self) -> None:
        ends = (self.job.deadline_at, *(operation.entry.wake_at for operation in self.waiting))
        due = min((end for end in ends if end is not None), default=None)
        if due is None or due - self.now() > self.node.settings.keep_in_memory:
            described = [each for operation in self.waiting for each in operation.describe_all()]
            self.stop(Suspended(due, encode(described)))

    # Reading and writing

    async def ask(self, question: Callable[[Store], Awaitable[T]]) -> T:
        """Query the store, retrying while it does not answer; return the answer.

        Raises:
            Unwound: This worker no longer owns the job, or may no longer own it.
        """
        failures = 0
        while True:
            try:
                return await question(self.node.store)
            except LeaseLost:
                self._lease_lost()
                raise Unwound from None
            except StoreError:
                # The store may come back while the lease is still ours; then nothing is lost.
                if self.node.loop.time() > self.trusted_until:
                    self._lease_lost()
                    raise Unwound from None
                failures += 1
                await pause(_STORE_PAUSES.delay(failures))

    async def write(self, *entries: JournalEntry, **fields: Unpack[WriteFields]) -> None:
        """Write, together with what is buffered; return when it is durable.

        Raises:
            Unwound: This worker no longer owns the job, or the run is sealed.
        """
        if self.sealed and fields.get("job") is None:
            raise Unwound
        carried = _Carried(self)
        if carried.effects:
            fields["effects"] = carried.with_effects(fields.get("effects", ()))
        write = Write(
            job_id=self.job.id,
            owner=self.node.owner,
            epoch=self.epoch,
            entries=carried.with_entries(entries) if carried.entries else entries,
            news_seen=self.news,
            **fields,
        )
        try:
            await self.ask(partial(self._send, write, carried))
        except Unwound:
            raise
        except BaseException:  # refused, or nobody waits for it any more
            carried.give_up()
            raise
        self.progress_at = self.node.loop.time()

    async def _send(self, write: Write, carried: "_Carried", store: Store) -> None:
        self.in_flight += 1
        carried.waits, carried.failed = True, False
        try:
            await store.write(write, alone=self._is_only_work(), done=carried.answered)
        except Exception as error:
            carried.answered(error)  # a store that raises has not accepted it
            raise

    def write_soon(self, entry: JournalEntry, done: WriteDone) -> None:
        """Write an entry and what is buffered; `done` is called with None when it is durable."""
        if self.sealed:
            return
        write = Write(job_id=self.job.id, owner=self.node.owner, epoch=self.epoch, entries=(entry,))
        if self.buffered_entries or self.buffered_effects:
            carried = _Carried(self)
            effects = tuple(carried.effects.values())
            write = replace(write, entries=carried.with_entries((entry,)), effects=effects)
            done = partial(self._put_back_if_failed, carried, done)
        answered = partial(self.answered, done)
        self.in_flight += 1
        try:
            written = self.node.store.write_soon(write, answered, alone=self._is_only_work())
        except StoreError as error:  # not in this turn: the writer is in the middle of something
            self.node.loop.call_soon(answered, error)
            return
        if written:
            answered(None)

    def _put_back_if_failed(
        self, carried: "_Carried", done: WriteDone, error: BaseException | None
    ) -> None:
        if error is not None:
            carried.put_back()
        done(error)

    def answered(self, done: WriteDone, error: BaseException | None) -> None:
        """Record that the store has answered a write, and notify its writer."""
        self.in_flight -= 1
        done(error)
        if not self.in_flight and self.all_answered is not None:
            _wake(self.all_answered)

    async def flush(self) -> None:
        """Write what is buffered."""
        with contextlib.suppress(Unwound):
            if self.buffered_entries or self.buffered_effects:
                await self.write()

    def buffer_entry(self, entry: JournalEntry) -> None:
        """Buffer an entry for the next write, which is made soon."""
        self.buffered_entries[entry.seq] = entry
        self.node.flush_soon()

    def buffer_effect(self, effect: Effect) -> None:
        """Buffer a line of the ledger for the next write.

        If there is no other write in this turn of the loop, it is written alone.
        """
        if not self.buffered_effects:
            self.node.loop.call_soon(self._write_effects)
        self.buffered_effects[effect.key] = effect

    def _write_effects(self) -> None:
        if not self.buffered_effects or self.verdict is not None:
            return
        effects, self.buffered_effects = self.buffered_effects, {}
        lines = tuple(effects.values())
        write = Write(job_id=self.job.id, owner=self.node.owner, epoch=self.epoch, effects=lines)
        answered = partial(self.answered, partial(self._effects_written, effects))
        self.in_flight += 1
        try:
            self.node.store.write_soon(write, answered)
        except StoreError as error:
            answered(error)

    def _effects_written(self, effects: dict[str, Effect], error: BaseException | None) -> None:
        if error is not None:
            self.buffered_effects = effects | self.buffered_effects
            if self.verdict is None:
                self.node.flush_soon()

    async def finish_writes(self) -> None:
        """Wait until the store has answered all writes, write what is left, and seal the run.

        The steps that made the writes may be dead, but the store may still commit what it has.

        Raises:
            Unwound: The store does not answer before the lease may have run out.
        """
        while self.in_flight or self.buffered_entries or self.buffered_effects:
            if self.in_flight:
                await self._until_answered()
            else:
                await self.write()
        self.sealed = True

    async def _until_answered(self) -> None:
        loop = self.node.loop
        if loop.time() > self.trusted_until:
            self._lease_lost()
            raise Unwound
        self.all_answered = answered = loop.create_future()
        timer = loop.call_at(self.trusted_until, _wake, answered)
        try:
            await answered
        finally:
            timer.cancel()

    def _is_only_work(self) -> bool:
        """Whether nothing else in this worker needs the loop, so that the store may write on it."""
        node = self.node
        if node.looking or node.wanted.is_set():  # a requested pause comes first
            return False
        return len(node.runs) == 1 and len(self.working) == 1


async def _work(run: Run, operation: Operation[Any], body: Callable[[], Awaitable[None]]) -> None:
    """The process of an operation."""
    try:
        await body()
    except Unwound:
        pass
    except Exception as error:  # noqa: BLE001 - a fault of the engine itself must not be silent
        run.stop(NeedsAttention(failure_of(error)))
    finally:
        run.process_ended(operation)


class _Carried:
    """Buffered entries and effects that are sent with a write, until the store has answered it.

    The writer may give up waiting, because it was cancelled, while the store still has the write.
    So two things decide: whether the writer has given up, and whether the last answer was an error.
    """

    __slots__ = ("_given_up", "_run", "effects", "entries", "failed", "waits")

    def __init__(self, run: Run) -> None:
        self._run = run
        self.entries, run.buffered_entries = run.buffered_entries, {}
        self.effects, run.buffered_effects = run.buffered_effects, {}
        self.waits = False  # for an answer of the store
        self._given_up = False
        self.failed = False  # so the store has answered last

    def with_entries(self, entries: tuple[JournalEntry, ...]) -> tuple[JournalEntry, ...]:
        """Return the entries of the write; its own entries replace carried ones."""
        return tuple((self.entries | {entry.seq: entry for entry in entries}).values())

    def with_effects(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """Return the effects of the write; its own effects replace carried ones."""
        return tuple((self.effects | {effect.key: effect for effect in effects}).values())

    def answered(self, error: BaseException | None) -> None:
        """Record the answer of the store; it may come twice."""
        if not self.waits:
            return
        self.waits, self.failed = False, error is not None
        if self._given_up and self.failed:
            self.put_back()
        run = self._run
        run.in_flight -= 1
        if not run.in_flight and run.all_answered is not None:
            _wake(run.all_answered)

    def give_up(self) -> None:
        """Record that the writer no longer waits."""
        self._given_up = True
        if self.failed and not self.waits:
            self.put_back()

    def put_back(self) -> None:
        """Return it to the buffers; what was buffered since is newer, and stays."""
        run = self._run
        run.buffered_entries = self.entries | run.buffered_entries
        run.buffered_effects = self.effects | run.buffered_effects


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _awaits_only(process: Process, awaited: Collection[Operation[Any]]) -> bool:
    """Whether the code, with all asyncio tasks that it started, waits only for operations.

    Only then is it certain that it does nothing more before one of them is finished. Code that
    waits in an `asyncio.gather` of such tasks counts too; other things that it may wait for cannot
    be seen from here, and so do not count.
    """
    by_process = any(process in operation.waiters for operation in awaited)
    tasks = None if process.relations is None else process.relations.tasks
    if not tasks:
        return by_process
    by_tasks = sum(len(operation.waiters) for operation in awaited) - by_process
    return (by_process or _is_of_tasks(process.future)) and by_tasks >= len(tasks)


def _is_of_tasks(future: "asyncio.Future[Any] | None") -> bool:
    """Whether a future is a task, or what `asyncio.gather` returns."""
    return isinstance(future, asyncio.Task) or hasattr(future, "_children")
