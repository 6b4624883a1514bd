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
*drifted*: while there are entries that it has not asked for again, nothing new may start (`hold`),
no value may be drawn (`draw`), and the code may not end, however it does (`expects_more`).

A replay gives the code all recorded results at once, so branches of it may get out of step: one of
them raises, and ends its siblings, before they have asked for what they did before that. So if code
with asyncio tasks seems to have drifted, it is replayed *in order* before it is judged: the results
come one by one, in the order in which they came before (`_await_turn`).

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

A step that has its outcome, and waits for the disk, is not interrupted: it is done, and its outcome
must not be lost or replaced. If the code ends at the same time as the run is ended from outside,
the outside wins: code that returned after a cancel was requested has still been cancelled.

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
import math
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextvars import ContextVar
from functools import partial
from itertools import accumulate
from math import inf
from threading import get_ident
from typing import Any, Generic, TypeVar, Unpack

from msgspec.structs import replace

from perdure.base.codec import LIMITS, decode, encode
from perdure.base.errors import (
    Drift,
    JobError,
    LeaseLost,
    NotInJob,
    OperationCancelled,
    StepTimeout,
    StoreError,
    UnrecordedIO,
)
from perdure.base.retry import Retry, pause
from perdure.engine import crashpoint, events
from perdure.engine.journal.ledger import Ledger
from perdure.engine.journal.output import OutputBuffer
from perdure.engine.journal.verdict import (
    Cancelled,
    Drained,
    NeedsAttention,
    Paused,
    ReplayInOrder,
    RunFailed,
    RunLost,
    RunVerdict,
    Suspended,
    Unwound,
)
from perdure.engine.worker_port import WorkerPort
from perdure.jobs.budget import BudgetRef
from perdure.jobs.definition import OnFailure
from perdure.jobs.effect import Effect
from perdure.jobs.failure import failure_of
from perdure.jobs.gate import GatePasses
from perdure.jobs.model import (
    ChildWait,
    Claim,
    CodeVersion,
    EntryKind,
    JobMessage,
    JobNews,
    JournalEntry,
    Progress,
    SpendingChange,
    Write,
    WriteFields,
)
from perdure.jobs.payload import Chunk, StandIn, excerpt, is_same, is_stand_in, split, stand_in_of
from perdure.jobs.state import StepState
from perdure.process.lifecycle import PLAIN, kill, spawn_process
from perdure.process.process import Process, current
from perdure.process.waiter import PARKED, TaskWaiter, Waiter, current_waiter
from perdure.store.store import Store

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

# The branch of the code that is running, with a slash at its end: see `JobContext.scope`.
branch: ContextVar[str] = ContextVar("perdure.branch", default="")

WriteDone = Callable[[BaseException | None], None]
Code = Callable[["Run"], Awaitable[bytes]]
JointWork = Callable[["Run", list[Any]], Awaitable[None]]  # for several operations of one kind

_log = logging.getLogger("perdure.worker")

# How long to wait before the store is queried again while it does not answer.
_STORE_PAUSES = Retry(initial_delay="250ms", max_delay="2s", jitter=0.5)

# For how long the ends of children are gathered at most before their parent is due.
_MOST_GATHERING = 1.0

# So many children are described together, and so many of them by name.
_MANY_CHILDREN, _SHOWN_CHILDREN = 2, 20

# Of how many steps that run at the same time the progress is kept.
_MOST_REPORTS = 20

# How many journal entries a message about drift names.
_SHOWN = 10

# How often code that does not unwind when its run has ended is interrupted before it is abandoned.
_INTERRUPTIONS = 3

# How often code that catches the end of its run gets `Unwound` before it only waits to be killed.
_REFUSALS = 10


# The names of the entries of `JobContext.patched` begin so; their value if it was True.
PATCHED = "patched:"
_TAKEN = encode(True)

# The name of the first entry of a journal that replaces an earlier one: see `continue_as`.
CONTINUED = "continued"

# The name of the entry after which a job is replayed in order. No step has a name with spaces.
IN_ORDER = "replay in order"

# For how long nothing may resume code that awaits more than operations, before it gets the next
# result of a replay in order.
_TURN_PATIENCE = 0.05

# What the code of this branch has drawn that its journal does not have, and of which journal.
_drawn_anew: ContextVar["tuple[Journal, str] | None"] = ContextVar("perdure.drawn", default=None)


class Operation(Generic[R_co]):
    """What the code of a job awaits: a step, a timer, a message, a child, a person.

    It gets its identity when the code asks for it and begins when the code awaits it. The journal
    finishes it at once in a replay; else the run does, when its result is durable.
    """

    __slots__ = (
        "_begun",
        "_error",
        "_large",
        "_value",
        "_waiters",
        "along",
        "cancelled",
        "entry",
        "finished",
        "raced",
        "recorded",
        "run",
        "start_again",
    )

    # What people are shown when the job waits for it: "timer", "message", "child", …
    waits_for = ""

    # How long it may work without progress, by its own policy.
    max_duration = 0.0

    # Whether the user's code works for it in a thread or in another OS process.
    runs_beside_loop = False

    def __init__(self, run: "Run", entry: JournalEntry, *, recorded: bool) -> None:
        if get_ident() != run.thread:  # nobody would wake it
            raise NotInJob(
                f"{entry.id} of job {run.job.id} is called in another thread, or with `run_sync`: "
                "await it in the code of the job"
            )
        self.run = run
        self.entry = entry
        self.recorded = recorded  # whether an earlier run has already asked for it
        self.finished = False
        self.start_again = False  # when the process that works for it has ended
        self._begun = False
        self._large: tuple[StandIn, Callable[[bytes], Any]] | None = None  # a result to be loaded
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiters: list[Waiter] = []
        self.cancelled = False  # by the code: another operation has ended first
        self.raced = False  # the code awaits it only among others: see `race`
        self.along: tuple[JournalEntry, ...] = ()  # what is written together with its end
        run.not_begun.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.entry.id} of job {self.run.job.id}>"

    @property
    def on_failure(self) -> OnFailure | None:
        """What happens to the job if it fails because of this; None: as the job says."""
        return None

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.wait_among(())

    def wait_among(self, others: "Sequence[Operation[Any]]") -> Generator[Any, None, R_co]:
        """Await it; the code that does needs the end of the others, too, before it goes on."""
        run = self.run
        if not self.finished and run.verdict is None:
            if not self._begun:
                self.begin()
            elif self.raced and not self.cancelled:
                self.choose()
            yield from self._pause(run, others)
        if run.journal.reached is not None and run.journal.unvisited and run.verdict is None:
            yield from self._await_turn(run, run.journal.ended_at(self.entry.id))
        if run.verdict is not None:
            yield from _refuse(run)
            raise Unwound
        if self._error is not None:
            raise self._error
        return self._value

    def _pause(self, run: "Run", others: "Sequence[Operation[Any]]") -> Generator[Any, None, None]:
        """Pause the code until the operation is finished or the run has ended."""
        waiter = current_waiter()
        self._waiters.append(waiter)
        run.awaited.add(self)
        if others:
            run.gathered[waiter] = others
        try:
            while not self.finished and run.verdict is None:
                yield waiter.pause()
        finally:
            self._waiters.remove(waiter)
            run.gathered.pop(waiter, None)
            run.awaited.discard(self)
            if self.finished:
                run.resuming.discard(waiter)
                if run.waiting or run.held or run.ending is not None:
                    run.check_soon()

    def _await_turn(self, run: "Run", ended_at: float) -> Generator[Any, None, None]:
        """Pause the code until it has got the results of everything that ended before this did.

        So the branches of the code ask for everything in the order in which they did before. What
        they have not asked for when the code ends, they have never asked for.
        """
        if run.has_reached(ended_at):
            return
        waiter = current_waiter()
        self._waiters.append(waiter)
        run.awaited.add(self)
        run.journal.turns[waiter] = ended_at
        run.check_soon()
        try:
            while not run.has_reached(ended_at) and run.verdict is None:
                yield waiter.pause()
        finally:
            self._waiters.remove(waiter)
            if not self._waiters:
                run.awaited.discard(self)
            run.journal.turns.pop(waiter, None)
            run.resuming.discard(waiter)
            run.check_soon()

    def add_waiter(self, waiter: Waiter) -> None:
        """Record that code awaits it among others."""
        if not self.finished:
            self._waiters.append(waiter)
            self.run.awaited.add(self)

    def remove_waiter(self, waiter: Waiter) -> None:
        """Record that this code no longer awaits it."""
        run = self.run
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            if not self._waiters:
                run.awaited.discard(self)
            if run.waiting or run.held or run.ending is not None:
                run.check_soon()

    def begin(self) -> None:
        """Start it, unless it was started before, or it is too early or too late for that."""
        if self._begun or self.finished:
            return
        self._begun = True
        run = self.run
        run.not_begun.discard(self)
        if run.ending is not None:
            run.check_soon()
        elif self._large is not None:
            self.spawn(partial(self._load, *self._large))
        elif run.journal.unvisited and not self.recorded:
            run.hold(self)
        else:
            run.start(self)

    def race(self) -> None:
        """Begin it for code that awaits it among others: see `JobContext.first`.

        Until the code has chosen it, it only looks. It takes no message and records no end, so that
        nothing is lost with it if another one wins. A step works all the same.
        """
        if not self._begun:
            self.raced = True
        self.begin()

    def ready_at(self) -> float | None:
        """Return when that happened with which it ends, or can end; None if it has not yet."""
        return (self.entry.ended_at or 0.0) if self.is_recorded else None

    @property
    def is_recorded(self) -> bool:
        """Whether its end is in the journal; perhaps its result is still to be loaded."""
        return self.finished or self._large is not None

    def choose(self, *along: JournalEntry) -> None:
        """Let it end: the code awaits it alone now, or has chosen it as the first of several.

        Args:
            *along: Entries that are written together with its end.
        """
        run, self.raced, self.along = self.run, False, along
        if self in run.working:
            self.start_again = True
        elif run.ending is not None:
            run.check_soon()
        elif self not in run.held:
            run.stop_waiting(self)
            run.start(self)

    def offer(self) -> None:
        """Make code that awaits it among others look at it: it can end now."""
        self.run.resuming.update(self._waiters)
        self.wake()

    def spawn(self, body: Callable[[], Awaitable[None]]) -> None:
        """Start a process that works for it."""
        self.run.start_process(self, body)

    def spawn_again(self, body: Callable[[], Awaitable[None]]) -> None:
        """Start a process, or start again when the current one ends: what it read may be stale."""
        if self in self.run.working:
            self.start_again = True
        else:
            self.run.start_process(self, body)

    def cancel(self) -> None:
        """End it without a result, unless it has one before it can be stopped."""
        if self.finished or self.cancelled:
            return
        run, began = self.run, self._begun
        self._begun = self.cancelled = True
        run.not_begun.discard(self)
        if self in run.held:  # it must not start when the replay is over
            run.held.remove(self)
            began = False
        if not began and not self.recorded:  # nothing of it exists anywhere
            self.finish(None, OperationCancelled(f"{self.entry.id} was cancelled before it began"))
        elif self in run.working:  # its end is recorded when its process has ended
            self.interrupt(hard=True)
        else:
            self.withdraw()

    def withdraw(self) -> None:
        """Record that it was cancelled, while nothing is working for it."""
        self.spawn(self.record_cancel)

    async def record_cancel(self) -> None:
        """Write that it was cancelled, and pass that to the code; its question is withdrawn."""
        self.entry = self.cancelled_entry()
        await self.run.write(self.entry, *self.along, withdraws=self.entry.id)
        self.finish(None, self.cancellation())

    def cancellation(self) -> OperationCancelled:
        """Return what the code gets that awaits it although it was cancelled."""
        return OperationCancelled(f"{self.entry.id} was cancelled: another operation ended first")

    def cancelled_entry(self) -> JournalEntry:
        """Return the record that it was cancelled: it has done nothing that could be undone."""
        packed = failure_of(self.cancellation(), permanent=True).pack()
        return replace(
            self.entry,
            state=StepState.SKIPPED,
            error=packed,
            wake_at=None,
            ended_at=self.run.now(),
        )

    def wait(self, until: float | None = None) -> None:
        """Wait for news, or for a time by the store's clock."""
        self.run.wait(self, until)

    def wait_for_time(self) -> None:
        """Wait for news, or for the time in the journal.

        If it is earlier now than when the wait began, the clock was set back. Then the wait begins
        anew: it would last longer by all of that step.
        """
        entry, now = self.entry, self.run.now()
        since, until = entry.started_at, entry.wake_at
        if since is not None and until is not None and now < since <= until:
            self.entry = replace(entry, wake_at=now + until - since)
            self.run.buffer_entry(self.entry)
        self.wait(self.entry.wake_at)

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

    def report(self) -> Progress | None:
        """Return what it reports of its progress; None if it reports nothing."""
        return None

    def children(self) -> Sequence[str]:
        """Return the children of the job whose ends it waits for: all of them must end."""
        return ()

    def finish(self, value: Any, error: BaseException | None = None) -> None:
        """Pass the result, or the error, to the code."""
        if self.finished:
            return
        self.finished = True
        run, waiters = self.run, self._waiters
        run.not_begun.discard(self)
        self._value, self._error = value, error
        if error is not None:
            run.failed[self.entry.id] = self
        if isinstance(error, JobError):
            error.step = self.entry.id
        run.resuming.update(waiters)
        for waiter in waiters:
            waiter.wake()

    def finish_recorded(self, output: bytes | None, read: Callable[[bytes], R]) -> None:
        """Pass a result of the journal to the code; a large one is loaded when that awaits it."""
        if self.entry.state is StepState.SKIPPED and self.entry.error is not None:
            self.cancelled = True  # by the code; what a person has skipped has no error
            self.finish(None, self.cancellation())
            return
        stand_in = stand_in_of(output)
        if stand_in is not None:
            self._large = stand_in, read
            self.run.not_begun.discard(self)  # it is done, whether or not anybody awaits it
        elif output is None:
            self.finish(None)
        else:
            try:
                value = read(output)
            except Drift as misfit:
                raise self.run.drifted(misfit) from None
            self.finish(value)

    async def _load(self, stand_in: StandIn, read: Callable[[bytes], R]) -> None:
        self.finish(read(await self.run.load(stand_in)))

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


class FirstOf:
    """The await of several operations until one of them has ended, or can end."""

    __slots__ = ("_operations", "_run")

    def __init__(self, run: "Run", operations: Sequence[Operation[Any]]) -> None:
        self._run = run
        self._operations = operations

    def __await__(self) -> Generator[Any, None, None]:
        run, operations = self._run, self._operations
        waiter = current_waiter()
        for operation in operations:
            operation.add_waiter(waiter)
        try:
            while run.verdict is None and all(each.ready_at() is None for each in operations):
                yield waiter.pause()
                # It may be woken for nothing: what one was ready to take, another has taken.
                run.resuming.discard(waiter)
                run.check_soon()
        finally:
            run.resuming.discard(waiter)
            for operation in operations:
                operation.remove_waiter(waiter)
        if run.verdict is not None:
            yield from _refuse(run)
            raise Unwound


class Gathered(Generic[R]):
    """The await of one of several operations that are all awaited before the code goes on."""

    __slots__ = ("_operation", "_others")

    def __init__(self, operation: Operation[R], others: Sequence[Operation[Any]]) -> None:
        self._operation = operation
        self._others = others

    def __await__(self) -> Generator[Any, None, R]:
        return self._operation.wait_among(self._others)


class Journal:
    """The entries of one job by identity, and which of them the code has asked for again."""

    __slots__ = (
        "_branches",
        "_keyed",
        "_ordinals",
        "_seq",
        "after_replay",
        "chunks",
        "continuations",
        "draws_anew",
        "entries",
        "known_changes",
        "prefix",
        "reached",
        "trusted",
        "turns",
        "unvisited",
    )

    def __init__(self, entries: Iterable[JournalEntry], compared: int = LIMITS.compared) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self._seq = max((entry.seq for entry in self.entries.values()), default=0)
        self._ordinals: dict[str, int] = {}
        self._keyed: set[str] = set()  # identities that the code itself chose
        self._branches: set[str] = set()  # those that are open: see `JobContext.scope`
        # How many journals the job has had before. Identities differ from those of them: effects
        # and child jobs of that time still exist.
        self.continuations = max(map(_continuation, self.entries.values()), default=0)
        # No branch begins with a slash, so `ctx.scope("1")` is never taken for continuation 1.
        self.prefix = f"/{self.continuations}/" if self.continuations else ""
        # In a replay in order: until which time the code has got what ended, and which code waits
        # for what ended later.
        in_order = any(map(_is_in_order, self.entries.values()))
        self.reached: float | None = -inf if in_order else None
        self.turns: dict[Waiter, float] = {}
        self.after_replay: list[Callable[[], None]] = []  # what the code wants to do then
        self.known_changes: set[str] = set()  # for which the code has asked `patched`
        self.draws_anew = False  # whether the code has drawn values that are not in the journal
        # What the code must ask for again before it may start anything new.
        self.unvisited = {entry.id for entry in self.entries.values() if _is_expected(entry)}
        # Steps whose large arguments are not compared again: see `_trusted`.
        self.trusted = _trusted(self.entries.values(), compared)
        self.chunks: set[str] = set()  # of large payloads, that this run has written

    def identity(self, name: str, key: str | None = None) -> str:
        """Return the identity of the next operation of this name, or that with this key.

        Raises:
            ValueError: Another operation has this identity.
        """
        name = self.prefix + branch.get() + name
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

    def trusts(self, name: str, key: str | None) -> bool:
        """Whether the arguments of the next operation of this name need not be compared."""
        name = self.prefix + branch.get() + name
        return f"{name}#{self._ordinals.get(name, 0) + 1 if key is None else key}" in self.trusted

    def open_branch(self, path: str) -> None:
        """Record that a branch of the code begins.

        Raises:
            ValueError: It is open already, so that the order of its operations may differ.
        """
        if path in self._branches:
            raise ValueError(
                f"two branches of the job are {path.rstrip('/')!r} at the same time: "
                "give ctx.scope another key in each"
            )
        self._branches.add(path)

    def close_branch(self, path: str) -> None:
        """Record that a branch of the code has ended."""
        self._branches.discard(path)

    def visit(
        self, id: str, kind: EntryKind, packed: bytes | None, fits: Callable[[bytes], bool]
    ) -> JournalEntry | None:
        """Return the entry of an operation that the code asks for; None if it is new.

        Args:
            id: Its identity.
            kind: Its kind.
            packed: Its arguments; None if they are not compared.
            fits: Whether recorded arguments that differ were given nevertheless.

        Raises:
            Drift: The journal has something else under this identity.
        """
        entry = self.entries.get(id)
        if entry is None:
            return None
        self.unvisited.discard(id)
        if self.draws_anew and (drawn := _drawn_anew.get()) is not None and drawn[0] is self:
            raise Drift(
                f"the code draws {drawn[1]}, which is not in the journal, "
                f"before it asks for {id}, which is"
            )
        if entry.kind is not kind:
            raise Drift(f"the journal has {id} as a {entry.kind}, the code as a {kind}")
        given = entry.input
        if (
            packed is not None
            and given not in (None, packed)
            and not is_same(given, packed)
            and not fits(given)
        ):
            raise Drift(
                f"{id} was called with other arguments before: "
                f"journal {excerpt(given)}, code {excerpt(packed)}"
            )
        return entry

    def ended_at(self, id: str) -> float:
        """Return when an operation ended by the journal: one that had not comes last."""
        entry = self.entries.get(id)
        return inf if entry is None or entry.ended_at is None else entry.ended_at

    def next_seq(self) -> int:
        """Return the position of a new entry."""
        self._seq += 1
        return self._seq

    def unknown_change(self) -> str | None:
        """Return a change whose new way the job took, and that this code has not come to."""
        for id, entry in self.entries.items():
            taken = entry.name.startswith(PATCHED) and entry.output == _TAKEN
            if taken and id not in self.known_changes:
                return entry.name.removeprefix(PATCHED)
        return None

    def missed(self, wanted: str) -> Drift:
        """Return the drift of code that does something before asking for what is recorded."""
        left = sorted(self.unvisited, key=lambda id: self.entries[id].seq)
        shown = ", ".join(left[:_SHOWN]) + (" …" if len(left) > _SHOWN else "")
        return Drift(f"the code {wanted}, but the journal expects {shown} next")


def _is_expected(entry: JournalEntry) -> bool:
    """Whether the code must ask for an entry again; a call of `patched` may be removed from it."""
    return entry.kind is not EntryKind.UNDO and not (
        entry.kind is EntryKind.VALUE
        and (entry.name in (CONTINUED, IN_ORDER) or entry.name.startswith(PATCHED))
    )


def _is_older(entry: JournalEntry, made: float) -> bool:
    """Whether an entry is as a fork has got it, which was made then; only steps have attempts."""
    return not entry.attempt and (entry.ended_at or entry.started_at or 0.0) < made


def never(_kept: bytes) -> bool:
    """Whether recorded arguments that differ were given nevertheless: by default, never."""
    return False


def _is_in_order(entry: JournalEntry) -> bool:
    return entry.kind is EntryKind.VALUE and entry.name == IN_ORDER


def _continuation(entry: JournalEntry) -> int:
    is_first = entry.kind is EntryKind.VALUE and entry.name == CONTINUED
    return decode(entry.output, int) if is_first and entry.output is not None else 0


def _same(id: str) -> str:
    return f"two operations of the job would be {id}: give one of them another id or key"


def _trusted(entries: Iterable[JournalEntry], compared: int) -> set[str]:
    """Return the steps whose large arguments a replay does not compare again.

    Comparing means to encode all of them, and an agent that passes its whole history to each of a
    thousand steps passes gigabytes. So they are compared from the newest back, up to a number of
    bytes: what the older ones were given has usually become a part of what the newer ones get.
    """
    found = [
        (entry.seq, entry.id, stand_in.size)
        for entry in entries
        if entry.kind is EntryKind.STEP
        and entry.state is StepState.SUCCEEDED
        and (stand_in := stand_in_of(entry.input))
        and not stand_in.chunks
    ]
    found.sort(reverse=True)
    totals = list(accumulate(size for _, _, size in found))
    return {id for place, (_, id, _) in enumerate(found) if place and totals[place] > compared}


class Run:
    """What the code of a claimed job, its operations and its worker share."""

    same_code = False  # this worker has run the job from the beginning, and nobody else
    reused = 0  # how often a recorded effect was used again since the last write

    def __init__(self, node: WorkerPort, claim: Claim) -> None:  # noqa: PLR0915 - one state
        self.node, self.job, self.epoch, self.thread = node, claim.job, claim.epoch, get_ident()
        self.process: Process = current("a run of a job")

        # The lease
        self.trusted_until = 0.0  # by `lease_time`: until then the lease is certainly ours
        self.begun_at = self.progress_at = node.loop.time()
        self._clock_offset = claim.now - node.lease_time()  # from there to the store's time

        # What is known about the job
        self.journal = Journal(claim.journal, node.limits.compared)
        self.news, self.ends = claim.news, 0  # how far its news, and ends of children, were read
        self.messages = list(claim.messages)
        self.received: set[int] = set()  # messages that operations have taken out of that list
        self.ledger: Ledger | None = None  # see `open_ledger`
        self.budget: BudgetRef | None = None  # looked up by the first spending
        self.gate_passes: GatePasses = ()  # approvals that no step has used yet

        # Operations
        self.not_begun: set[Operation[Any]] = set()  # created by the code, and not awaited yet
        self.awaited: set[Operation[Any]] = set()  # by the code, at this moment
        self.failed: dict[str, Operation[Any]] = {}  # by identity, in this run or before
        self.gathered: dict[Waiter, Sequence[Operation[Any]]] = {}  # all that the code waits for
        self.working: dict[Operation[Any], Process] = {}  # those that have a process
        self._joined: dict[JointWork, tuple[Process, list[Operation[Any]]]] = {}  # not begun yet
        self.waiting: dict[Operation[Any], asyncio.TimerHandle | None] = {}  # for a time or news
        self.resuming: set[Waiter] = set()  # their awaits are over; the code has not resumed yet
        self.held: list[Operation[Any]] = []  # new ones, while the replay is not over

        # The end
        self.verdict: RunVerdict | None = None  # how the run has ended
        self.ending: RunVerdict | None = None  # how it ends when nothing is working any more
        self.refused: NeedsAttention | None = None  # by the guard: see `refuse`
        self.refusals = 0  # awaits of the code since its run has ended
        self.interrupted_step = False  # a step was interrupted: it may have left a call open
        self.abandoned = False  # the code did not unwind: its run is ended without it
        self.abandon: Callable[[], None] | None = None  # does that; set by the executor
        self.code_ended = self._running_code = self._check_scheduled = False
        self._interruptions = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._no_work: asyncio.Future[None] | None = None  # done when nothing is working any more

        # Writes
        self.buffered_entries: dict[int, JournalEntry] = {}  # by seq: written with the next write
        self.buffered_effects: dict[str, Effect] = {}  # by key, likewise
        self.buffered_spending: dict[str, SpendingChange] = {}  # by identity, likewise
        self.buffered_version: CodeVersion | None = None  # that the job belongs to, likewise
        self.output = OutputBuffer(claim.topics, node.settings)
        self.sealed = False  # nothing is working for the job any more: only its end is written
        self.in_flight = 0  # writes that the store has not answered
        self.all_answered: asyncio.Future[None] | None = None

    def now(self) -> float:
        """Return the time by the store's clock, as estimated here."""
        return self.at(self.node.loop.time())

    def at(self, moment: float) -> float:
        """Return a time of the loop by the store's clock."""
        return self._clock_offset + self.node.suspended() + moment

    def correct_clock(self, least: float, most: float) -> None:
        """Correct the estimate of the store's time, whose true offset is within these limits."""
        self._clock_offset = min(max(self._clock_offset, least), most)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.verdict is not None

    def reports(self) -> list[Progress]:
        """Return what the running steps report of their progress."""
        found = (operation.report() for operation in self.working)
        return [report for report in found if report is not None][:_MOST_REPORTS]

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

    def _when_quiet(self, name: str, patience: float, then: Callable[[], None]) -> None:
        """Call a function when nothing that the code awaits beside operations has resumed it.

        What such an await waits for cannot be known: it may be an answer that takes its time. But
        code that was resumed meanwhile lives, and its patience begins anew.
        """
        self._arm(name, patience, partial(self._if_quiet, name, patience, then, self._awaits()))

    def _if_quiet(
        self, name: str, patience: float, then: Callable[[], None], before: object
    ) -> None:
        awaits = self._awaits()
        if awaits is None or awaits != before:
            self._when_quiet(name, patience, then)
        else:
            then()

    def _awaits(self) -> object:
        """Return what the code and its tasks wait for in asyncio; None if one of them runs soon."""
        process, relations = self.process, self.process.relations
        if process.future is None and process.state != PARKED:
            return None
        waiters = [process.future]
        for task in () if relations is None else relations.tasks or ():
            waiter = getattr(task, "_fut_waiter", None)
            if waiter is None and not task.done():
                return None
            waiters.append(waiter)
        return waiters

    # Operations

    def visit(
        self, id: str, kind: EntryKind, packed: bytes | None, fits: Callable[[bytes], bool] = never
    ) -> JournalEntry | None:
        """Return the journal entry of an operation; None if it is new. See `Journal.visit`."""
        if self.verdict is not None or id not in self.journal.entries:
            return None  # after a verdict it will never begin: code that awaits it is unwound
        try:
            entry = self.journal.visit(id, kind, packed, fits)
        except Drift as misfit:
            raise self.drifted(misfit) from None
        if not self.journal.unvisited:
            self._replay_is_over()
        return entry

    def _replay_is_over(self) -> None:
        """Start what is new, and let the code have all results: it has asked for everything."""
        if self.journal.turns:
            self._reach(inf)
        acts, self.journal.after_replay = self.journal.after_replay, []
        for act in acts:
            act()
        if acts:
            self.node.flush_soon()
        held, self.held = self.held, []
        for operation in held:
            if self.ending is None:
                self.start(operation)
            else:
                self.check_soon()

    def drifted(self, misfit: Drift) -> Drift:
        """Park the job, whose code does not fit its journal; the code may catch what it is told."""
        self.stop(NeedsAttention(failure_of(misfit)))
        return misfit

    def draw(self, entry: JournalEntry) -> None:
        """Keep a value that the code has drawn, and that its journal does not have.

        It is written with whatever is written next. So nothing that this branch of the code asks
        for from now on can be in the journal already: see `Journal.visit`. Other branches may have
        been ahead of this one.
        """
        if self.journal.unvisited:
            _drawn_anew.set((self.journal, entry.id))
            self.journal.draws_anew = True
        self.once_replayed(partial(self.buffer_entry, entry))

    def once_replayed(self, act: Callable[[], None]) -> None:
        """Do something that the code wants when it has asked for everything recorded.

        Code that has drifted leaves nothing behind that the right code would not expect.
        """
        if self.journal.unvisited:
            self.journal.after_replay.append(act)
        else:
            act()

    def start(self, operation: Operation[Any]) -> None:
        """Let an operation do its work; a run that only replays starts nothing."""
        operation.start()

    def hold(self, operation: Operation[Any]) -> None:
        """Keep a new operation from starting while the replay is not over.

        Code that fits its journal asks for everything recorded before it needs the result of
        anything new. Code that does not has drifted, and must not have started anything new.
        """
        if not self.held:
            self._when_quiet("replay", self.node.settings.replay_patience, self._judge_quiet)
        self.held.append(operation)
        self.check_soon()

    def _judge_replay(self, circumstances: str = "") -> None:
        if self.held and self.verdict is None:
            wanted = ", ".join(operation.entry.id for operation in self.held)
            self.stop(self.expects_more(f"asks for {wanted}{circumstances}"))

    def _judge_quiet(self) -> None:
        limit = self.node.settings.replay_patience
        self._judge_replay(
            f" and has waited for {limit:g} s for something that is not an operation "
            "(replay_patience allows more)"
        )

    @property
    def may_be_out_of_step(self) -> bool:
        """Whether branches of the code may not have asked again for what they did before others."""
        relations = self.process.relations
        has_tasks = relations is not None and relations.tasks is not None
        return bool(self.journal.unvisited) and self.journal.reached is None and has_tasks

    @property
    def leaves_source(self) -> bool:
        """Whether a fork has not asked only for what it got from the job that it is a copy of.

        It may have got other arguments, and people who are asked again may answer differently: so
        it may fail earlier. It has not done any of that itself, and does not undo it.
        """
        if self.job.forked_from is None:
            return False
        unvisited = (self.journal.entries[id] for id in self.journal.unvisited)
        return all(_is_older(entry, self.job.created_at) for entry in unvisited)

    def expects_more(self, did: str) -> NeedsAttention | ReplayInOrder:
        """Return how the run ends if its code does this before it asks for everything recorded."""
        if self.may_be_out_of_step:
            return self.replay_in_order()
        return NeedsAttention(failure_of(self.journal.missed(did)))

    def replay_in_order(self) -> ReplayInOrder:
        """Return how a run ends after which the code is replayed in order."""
        now = self.now()
        marker = JournalEntry(
            seq=self.journal.next_seq(),
            id=f"{IN_ORDER}#1",
            kind=EntryKind.VALUE,
            name=IN_ORDER,
            state=StepState.SUCCEEDED,
            output=b"null",
            started_at=now,
            ended_at=now,
        )
        return ReplayInOrder(marker)

    def has_reached(self, ended_at: float) -> bool:
        """Whether the code may have the result of what ended then."""
        return self.journal.reached is None or ended_at <= self.journal.reached

    def _next_turn(self) -> None:
        """Let the code have the results that come next in the order of their ends."""
        if (
            self.verdict is None
            and self.ending is None
            and not self.resuming
            and self.journal.turns
        ):
            first = min(self.journal.turns.values())
            ends = (
                self.journal.ended_at(each.entry.id) for each in self.awaited if not each.finished
            )
            if first <= min(ends, default=inf):  # else that is being loaded
                self._reach(first)

    def _reach(self, ended_at: float) -> None:
        self.journal.reached = ended_at
        for waiter in sorted(self.journal.turns, key=self.journal.turns.__getitem__):
            if self.journal.turns[waiter] <= ended_at:
                del self.journal.turns[waiter]
                self.resuming.add(waiter)
                waiter.wake()

    def start_process(self, operation: Operation[Any], body: Callable[[], Awaitable[None]]) -> None:
        """Start a process that works for an operation."""
        self.stop_waiting(operation)
        self.working[operation] = spawn_process(
            self.node.runtime, self.process, _work, (self, operation, body), PLAIN
        )

    def work_jointly(self, operation: Operation[Any], body: "JointWork") -> None:
        """Start a process for an operation and for all that ask for the same work in this turn."""
        self.stop_waiting(operation)
        if body not in self._joined:
            work = (self, body)
            process = spawn_process(self.node.runtime, self.process, _work_jointly, work, PLAIN)
            self._joined[body] = process, []
        process, operations = self._joined[body]
        operations.append(operation)
        self.working[operation] = process

    def take_joined(self, body: "JointWork") -> list[Operation[Any]]:
        """Return the operations of joint work that begins now."""
        return self._joined.pop(body)[1]

    def process_ended(self, operation: Operation[Any]) -> None:
        """Record that the process of an operation has ended."""
        self.working.pop(operation, None)
        goes_on = self.ending is None and self.verdict is None and not operation.finished
        if operation.cancelled and goes_on:
            operation.spawn(operation.record_cancel)
        elif operation.start_again and goes_on:
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
        self.stop_waiting(operation)
        if self.ending is None and self.verdict is None:
            operation.on_due()

    def stop_waiting(self, operation: Operation[Any]) -> None:
        """Let an operation no longer wait for news or for a time."""
        timer = self.waiting.pop(operation, None)
        if timer is not None:
            timer.cancel()

    def on_news(self, news: JobNews, messages: Iterable[JobMessage]) -> None:
        """Pass news on to the operations; the messages were read after it."""
        if news.news < self.news or news.ends < self.ends or self.verdict is not None:
            return  # later news has arrived already, or nobody here reads it any more
        # Not before the messages are here: the release of the job says how far it has read.
        self.news, self.ends = news.news, news.ends
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

    def refuse(self, error: UnrecordedIO) -> None:
        """Park the job, whose code was kept from something; it cannot hide that by catching it."""
        self.refused = self.refused or NeedsAttention(failure_of(error))
        if get_ident() == self.thread and not self.code_ended:
            self.end(self.refused)

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
            self.stop_waiting(operation)
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
        if self.verdict is not None or self.resuming:
            return
        if self.journal.turns and self.ending is None:
            self._check_turns()
        elif not self.working:
            self._check_waits()

    def _check_turns(self) -> None:
        if _awaits_only(self.process, self.awaited):
            self._next_turn()
        else:
            self._when_quiet("turn", _TURN_PATIENCE, self._next_turn)

    def _check_waits(self) -> None:
        if self.ending is not None:
            self.stop(self.ending)
        elif not _awaits_only(self.process, self.awaited):
            if self.waiting and not self.held:
                self._when_quiet("idle", self.node.settings.idle_patience, self._check_idle)
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
        if due is None or self._next_timer_in() > self.node.settings.keep_in_memory:
            self.stop(Suspended(due, encode(self._describe_waits()), self._child_wait()))

    def _next_timer_in(self) -> float:
        """Return when something is due here; a clock that was set back does not delay it."""
        timers = (self._timers.get("deadline"), *self.waiting.values())
        whens = (timer.when() for timer in timers if timer is not None)
        return min(whens, default=math.inf) - self.node.loop.time()

    def _describe_waits(self) -> list[dict[str, Any]]:
        """Return what the job waits for, for people: many children as one line and a few names."""
        described = [each for operation in self.waiting for each in operation.describe_all()]
        children = [each for each in described if each["kind"] == "child"]
        if len(children) < _MANY_CHILDREN:
            return described
        gathered = {
            id for group in self.gathered.values() for one in group for id in one.children()
        }
        of = max(len(gathered), len(children))
        others = [each for each in described if each["kind"] != "child"]
        summary = {"kind": "children", "id": children[0]["id"], "of": of}
        return [summary, *others, *children[:_SHOWN_CHILDREN]]

    def _child_wait(self) -> ChildWait | None:
        """Return how many of its children must end before the code of the job can continue.

        That is the least of what any part of the code waits for: a `gather` for all that it has
        gathered, any other await for one. If more children run than that, their ends are gathered
        for as long as this run took: so a job is replayed half of the time at most.
        """
        ids = tuple({id for operation in self.waiting for id in operation.children()})
        if not ids:
            return None
        needed = min((count for count in self._needed_ends() if count), default=1)
        took = self.node.loop.time() - self.begun_at
        window = min(took, _MOST_GATHERING) if needed < len(ids) else 0.0
        return ChildWait(ids, needed, window)

    def _needed_ends(self) -> Iterable[int]:
        """Yield, for each part of the code that waits, how many ends of children it waits for."""
        for operation in self.awaited:
            for waiter in operation.waiters:
                group = self.gathered.get(waiter, (operation,))
                yield sum(len(one.children()) for one in group if not one.finished)

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
                events.write_refused(self)
                self._lease_lost()
                raise Unwound from None
            except StoreError:
                # The store may come back while the lease is still ours; then nothing is lost.
                if self.node.lease_time() > self.trusted_until:
                    self._lease_lost()
                    raise Unwound from None
                failures += 1
                await pause(_STORE_PAUSES.delay(failures))

    async def load(self, stand_in: StandIn) -> bytes:
        """Return a large payload of the journal.

        Raises:
            Drift: Only its digest was kept.
        """
        if not stand_in.chunks:
            raise Drift(
                f"the journal keeps only a digest of these {stand_in.size:,} bytes of arguments, "
                f"since nothing needed them when they were recorded: {stand_in.preview}"
            )
        job_id = self.job.id
        return await self.ask(lambda store: store.payload(job_id, stand_in))

    async def whole(self, payload: bytes) -> bytes:
        """Return a payload of the journal, loading it if it is a large one."""
        stand_in = stand_in_of(payload)
        return payload if stand_in is None else await self.load(stand_in)

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
        entries, chunks = self._set_apart(
            carried.with_entries(entries) if carried.entries else entries
        )
        write = Write(
            job_id=self.job.id,
            owner=self.node.owner,
            epoch=self.epoch,
            entries=entries,
            output=carried.output,
            spending=tuple(carried.spending.values()),
            news_seen=self.news,
            chunks=chunks,
            belongs_to=carried.version,
            reused=carried.reused,
            **fields,
        )
        try:
            await self.ask(partial(self._send, write, carried))
        except Unwound:
            raise
        except BaseException:  # refused, or nobody waits for it any more
            carried.give_up()
            raise
        self.journal.chunks.update(chunk.digest for chunk in chunks)
        self.progress_at = self.node.loop.time()

    async def _send(self, write: Write, carried: "_Carried", store: Store) -> None:
        self.in_flight += 1
        carried.waits, carried.failed = True, False
        if crashpoint.wanted:
            crashpoint.reach("before_write")
        try:
            await store.write(write, alone=self._is_only_work(), done=carried.answered)
            if crashpoint.wanted:
                crashpoint.reach("after_write")
        except Exception as error:
            carried.answered(error)  # a store that raises has not accepted it
            raise

    def write_soon(self, entry: JournalEntry, done: WriteDone) -> None:
        """Write an entry and what is buffered; `done` is called with None when it is durable."""
        if self.sealed:
            return
        write = Write(job_id=self.job.id, owner=self.node.owner, epoch=self.epoch, entries=(entry,))
        if self.has_buffered:
            carried = _Carried(self)
            write = replace(
                write,
                entries=carried.with_entries((entry,)),
                effects=tuple(carried.effects.values()),
                spending=tuple(carried.spending.values()),
                output=carried.output,
                belongs_to=carried.version,
                reused=carried.reused,
            )
            done = partial(self._put_back_if_failed, carried, done)
        if any(_is_large(each, self.node.limits.inline) for each in write.entries):
            entries, chunks = self._set_apart(write.entries)
            write = replace(write, entries=entries, chunks=chunks)
            done = partial(self._note_stored, chunks, done)
        answered = partial(self.answered, done)
        self.in_flight += 1
        if crashpoint.wanted:
            crashpoint.reach("before_write")
        try:
            written = self.node.store.write_soon(write, answered, alone=self._is_only_work())
        except StoreError as error:  # not in this turn: the writer is in the middle of something
            self.node.loop.call_soon(answered, error)
            return
        if written:
            answered(None)

    def _set_apart(
        self, entries: tuple[JournalEntry, ...]
    ) -> tuple[tuple[JournalEntry, ...], tuple[Chunk, ...]]:
        """Return entries without their large payloads, and the chunks that the store lacks."""
        inline = self.node.limits.inline
        if not any(_is_large(entry, inline) for entry in entries):
            return entries, ()
        found: dict[str, Chunk] = {}

        def kept(payload: bytes | None) -> bytes | None:
            if payload is None or len(payload) <= inline or is_stand_in(payload):
                return payload
            stand_in, chunks = split(payload, self.journal.chunks | found.keys())
            found.update((chunk.digest, chunk) for chunk in chunks)
            return stand_in

        apart = tuple(
            replace(entry, input=kept(entry.input), output=kept(entry.output)) for entry in entries
        )
        return apart, tuple(found.values())

    def _note_stored(
        self, chunks: tuple[Chunk, ...], done: WriteDone, error: BaseException | None
    ) -> None:
        if error is None:
            self.journal.chunks.update(chunk.digest for chunk in chunks)
        done(error)

    def _put_back_if_failed(
        self, carried: "_Carried", done: WriteDone, error: BaseException | None
    ) -> None:
        if error is not None:
            carried.put_back()
        done(error)

    def answered(self, done: WriteDone, error: BaseException | None) -> None:
        """Record that the store has answered a write, and notify its writer."""
        self.in_flight -= 1
        if crashpoint.wanted and error is None:
            crashpoint.reach("after_write")
        done(error)
        if not self.in_flight and self.all_answered is not None:
            _wake(self.all_answered)

    async def flush(self) -> None:
        """Write what is buffered."""
        with contextlib.suppress(Unwound):
            if self.has_buffered:
                await self.write()

    @property
    def has_buffered(self) -> bool:
        """Whether there is something that the next write takes along."""
        ledger = self.buffered_effects or self.buffered_spending or self.reused
        return bool(self.buffered_entries or ledger or self.output.waits)

    def buffer_entry(self, entry: JournalEntry) -> None:
        """Buffer an entry for the next write, which is made soon."""
        self.buffered_entries[entry.seq] = entry
        self.node.flush_soon()

    def buffer_version(self, version: str) -> None:
        """Buffer, for the next write, that only code of this version can continue the job."""
        self.job = replace(self.job, version=version)
        self.buffered_version = CodeVersion(self.job.name, version)

    def buffer_effect(self, effect: Effect) -> None:
        """Buffer a line of the ledger for the next write.

        If there is no other write in this turn of the loop, it is written alone.
        """
        if not self.buffered_effects:
            self.node.loop.call_soon(self.write_ledger)
        self.buffered_effects[effect.key] = effect

    def buffer_spending(self, change: SpendingChange, *, at_once: bool = False) -> None:
        """Buffer a change of the budget for the next write; `at_once`: in this turn of the loop."""
        earlier = self.buffered_spending.get(change.id)
        self.buffered_spending[change.id] = change if earlier is None else _joined(earlier, change)
        if at_once:
            self.node.loop.call_soon(self.write_ledger)
        else:
            self.node.flush_soon()

    def write_ledger(self) -> None:
        """Write the buffered effects and spending, unless another write has taken them along."""
        if self.verdict is not None or not (self.buffered_effects or self.buffered_spending):
            return
        effects, self.buffered_effects = self.buffered_effects, {}
        spending, self.buffered_spending = self.buffered_spending, {}
        write = Write(
            job_id=self.job.id,
            owner=self.node.owner,
            epoch=self.epoch,
            effects=tuple(effects.values()),
            spending=tuple(spending.values()),
        )
        answered = partial(self.answered, partial(self._ledger_written, effects, spending))
        self.in_flight += 1
        try:
            self.node.store.write_soon(write, answered)
        except StoreError as error:
            answered(error)

    def _ledger_written(
        self,
        effects: dict[str, Effect],
        spending: dict[str, SpendingChange],
        error: BaseException | None,
    ) -> None:
        if error is not None:
            self.buffered_effects = effects | self.buffered_effects
            self.buffered_spending = _merged(spending, self.buffered_spending)
            if self.verdict is None:
                self.node.flush_soon()

    async def finish_writes(self) -> None:
        """Wait until the store has answered all writes, write what is left, and seal the run.

        The steps that made the writes may be dead, but the store may still commit what it has.

        Raises:
            Unwound: The store does not answer before the lease may have run out.
        """
        while self.in_flight or self.has_buffered:
            if self.in_flight:
                await self._until_answered()
            else:
                await self.write()
        self.sealed = True

    async def _until_answered(self) -> None:
        loop, left = self.node.loop, self.trusted_until - self.node.lease_time()
        if left < 0:
            self._lease_lost()
            raise Unwound
        self.all_answered = answered = loop.create_future()
        timer = loop.call_later(left, _wake, answered)
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


async def _work_jointly(run: Run, body: "JointWork") -> None:
    """The process of work that is done for several operations at once."""
    operations, me = run.take_joined(body), current("joint work")
    try:
        await body(run, operations)
    except Unwound:
        pass
    except Exception as error:  # noqa: BLE001 - a fault of the engine itself must not be silent
        run.stop(NeedsAttention(failure_of(error)))
    finally:
        for operation in operations:
            if run.working.get(operation) is me:  # else it has a process of its own by now
                run.process_ended(operation)


def _is_large(entry: JournalEntry, most: int) -> bool:
    given, output = entry.input, entry.output
    return (output is not None and len(output) > most) or (given is not None and len(given) > most)


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

    __slots__ = (
        "_given_up",
        "_run",
        "effects",
        "entries",
        "failed",
        "output",
        "reused",
        "spending",
        "version",
        "waits",
    )

    def __init__(self, run: Run) -> None:
        self._run = run
        self.entries, run.buffered_entries = run.buffered_entries, {}
        self.effects, run.buffered_effects = run.buffered_effects, {}
        self.spending, run.buffered_spending = run.buffered_spending, {}
        self.version, run.buffered_version = run.buffered_version, None
        self.reused, run.reused = run.reused, 0
        self.output = run.output.take()
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
        run.buffered_spending = _merged(self.spending, run.buffered_spending)
        run.buffered_version = run.buffered_version or self.version
        run.reused += self.reused
        if self.output is not None:
            run.output.put_back(self.output)


def _merged(
    earlier: Mapping[str, SpendingChange], later: Mapping[str, SpendingChange]
) -> dict[str, SpendingChange]:
    """Return changes of the budget, of which the later ones do not undo the earlier ones."""
    both = {id: _joined(earlier[id], later[id]) for id in earlier.keys() & later.keys()}
    return {**earlier, **later, **both}


def _joined(earlier: SpendingChange, later: SpendingChange) -> SpendingChange:
    return replace(later, reserved=earlier.reserved)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _awaits_only(process: Process, awaited: Collection[Operation[Any]]) -> bool:
    """Whether the code, with all asyncio tasks that it started, waits only for operations.

    Only then is it certain that it does nothing more before one of them is finished. Code that
    waits for such tasks counts too, in an `asyncio.gather` or at the end of a `TaskGroup`; other
    things that it may wait for cannot be seen from here, and so do not count.
    """
    waiters = {waiter for operation in awaited for waiter in operation.waiters}
    by_process = process in waiters
    tasks = None if process.relations is None else process.relations.tasks
    if not tasks:
        return by_process
    by_tasks = sum(map(_pauses, waiters))
    waits = by_process or _is_of_tasks(process.future)
    if waits and by_tasks >= len(tasks):
        return True
    groups = _ends_of_groups(tasks)
    if not waits and process.future not in groups:
        return False
    joining = sum(_joins(getattr(task, "_fut_waiter", None), tasks, groups) for task in tasks)
    return by_tasks + joining >= len(tasks)


def _pauses(waiter: Waiter) -> bool:
    """Whether a waiter is that of a task which nothing has woken or cancelled."""
    future = waiter.future if isinstance(waiter, TaskWaiter) else None
    return future is not None and not future.done()


def _is_of_tasks(future: "asyncio.Future[Any] | None") -> bool:
    """Whether a future is a task, or what `asyncio.gather` returns."""
    return isinstance(future, asyncio.Task) or hasattr(future, "_children")


def _joins(
    future: "asyncio.Future[Any] | None",
    tasks: "Collection[asyncio.Task[Any]]",
    groups: "Collection[asyncio.Future[Any]]",
) -> bool:
    """Whether who waits for a future waits for some of these tasks, of which none has ended."""
    if future is None or future.done():
        return False
    return future in groups or future in tasks or hasattr(future, "_children")


def _ends_of_groups(tasks: "Iterable[asyncio.Task[Any]]") -> "set[asyncio.Future[Any]]":
    """Return the futures of the task groups that wait for some of these tasks.

    Only `TaskGroup` itself knows for what it waits; without that, its code has to be given time.
    """
    called = (each[0] for task in tasks for each in getattr(task, "_callbacks", None) or ())
    groups = (getattr(callback, "__self__", None) for callback in called)
    ends = (getattr(group, "_on_completed_fut", None) for group in groups)
    return {end for end in ends if end is not None and not end.done()}
