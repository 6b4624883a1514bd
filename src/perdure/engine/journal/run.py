"""One run of a job: from its claim until it ends, waits, or is lost.

The job's own code runs in the process of the run; each step runs in a process of its own.
Everything that happens is first written, fenced by the claim, and then told to the code.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from msgspec.structs import replace

from perdure.base.codec import encode
from perdure.base.errors import Drift, LeaseLost, StepTimeout, StoreError, UnknownName
from perdure.base.retry import Retry, pause
from perdure.engine import events
from perdure.engine.journal.journal import Journal
from perdure.engine.journal.ledger import Ledger
from perdure.engine.journal.operation import Operation, stands_still
from perdure.engine.journal.verdict import (
    Cancelled,
    Completed,
    Drained,
    Failed,
    Lost,
    Parked,
    Paused,
    Suspended,
    Unwound,
    Verdict,
)
from perdure.engine.worker_port import WorkerPort
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
from perdure.process.death import kill
from perdure.process.process import Process
from perdure.process.spawn import PLAIN, give_birth
from perdure.process.waiter import current
from perdure.store.store import Store

if TYPE_CHECKING:
    from perdure.engine.people.spending import BudgetRef


# A job that this worker owns for a while: how it is read and written meanwhile.
#
# Every write is fenced by the claim. A store that does not answer is asked again
# for as long as the lease is surely ours, and not any longer.

T = TypeVar("T")
Done = Callable[[BaseException | None], None]

# How long to wait before the store is asked again while it does not answer.
_STORE_PAUSES = Retry(initial_delay="250ms", max_delay="2s", jitter=0.5)


class Ownership:
    """What a claim gave, and the right to write that comes with it."""

    def __init__(self, node: WorkerPort, claim: Claim) -> None:
        self.node = node
        self.job = claim.job
        self.epoch = claim.epoch
        self.news = claim.news  # as far as it was read
        self.begun_at = self.progress_at = node.loop.time()
        self.trusted_until = 0.0  # by the loop's time: until then the lease is surely ours
        self.buffer: dict[int, JournalEntry] = {}  # by place: goes along with the next write
        self.lines: dict[str, Effect] = {}  # by key: of the ledger, likewise
        self.sealed = False  # nothing works for the job any more: only its end is written
        self._unanswered = 0  # writes that the store has, and of which nobody knows what came
        self._answered: asyncio.Future[None] | None = None  # for who waits until there are none
        self._clock = claim.now - node.loop.time()

    def now(self) -> float:
        """Tell the time by the store's clock, as far as it is known here."""
        return self._clock + self.node.loop.time()

    def at(self, loop_time: float) -> float:
        """Give a time of the loop by the store's clock."""
        return self._clock + loop_time

    def note(self, entry: JournalEntry) -> None:
        """Let an entry go along with the next write; one comes soon."""
        self.buffer[entry.seq] = entry
        self.node.flush_soon()

    async def write(self, *entries: JournalEntry, **fields: Unpack[WriteFields]) -> None:
        """Write, fenced; returns when it is durable.

        Raises:
            Unwound: The job is not ours any more.
        """
        if self.sealed and fields.get("job") is None:
            raise Unwound
        sent = _Sent(self, dict(self.buffer), dict(self.lines))
        if self.lines:
            lines = self._take_lines() | {each.key: each for each in fields.get("effects", ())}
            fields["effects"] = tuple(lines.values())
        write = Write(
            job_id=self.job.id,
            owner=self.node.owner,
            epoch=self.epoch,
            entries=self._with_buffer(entries),
            news_seen=self.news,
            **fields,
        )
        try:
            await self.ask(lambda store: sent.send(store, write))
        except Unwound:
            raise
        except BaseException:  # refused, or nobody waits for it any more
            sent.put_back()
            raise
        self.progress_at = self.node.loop.time()

    def write_soon(self, entry: JournalEntry, done: Done) -> None:
        """Write one entry, fenced; `done` is called when it is durable, or with what went wrong."""
        if self.sealed:
            return
        entries: tuple[JournalEntry, ...] = (entry,)
        if self.buffer:
            entries = self._with_buffer(entries)
            done = partial(self._told, entries, done)
        write = Write(job_id=self.job.id, owner=self.node.owner, epoch=self.epoch, entries=entries)
        if self.lines:
            write = replace(write, effects=tuple(self.lines.values()))
            done = partial(self._told_lines, self._take_lines(), done)
        done = partial(self.answered, done)
        self._unanswered += 1
        try:
            written = self.node.store.write_soon(write, done, alone=self.is_alone())
        except StoreError as error:  # not in this turn: who writes is in the midst of something
            self.node.loop.call_soon(done, error)
            return
        if written:
            done(None)

    def asked(self) -> None:
        """Take note that the store has one more write to answer."""
        self._unanswered += 1

    def answered(self, done: Done | None, error: BaseException | None) -> None:
        """Take note that the store has answered a write, whoever waits for that."""
        self._unanswered -= 1
        if done is not None:
            done(error)
        if not self._unanswered and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    async def settle(self) -> None:
        """Wait until the store has answered all writes, and write what is left to write.

        The steps that made them may be dead: what the store has, it may still keep.

        Raises:
            Unwound: It does not answer while the job is surely ours.
        """
        while self._unanswered or self.buffer or self.lines:
            if self._unanswered:
                await self._until_answered()
            else:
                await self.write()
        self.sealed = True

    async def _until_answered(self) -> None:
        loop = self.node.loop
        if loop.time() > self.trusted_until:
            self.lost()
            raise Unwound
        self._answered = answered = loop.create_future()
        timer = loop.call_at(self.trusted_until, _wake, answered)
        try:
            await answered
        finally:
            timer.cancel()

    def is_alone(self) -> bool:
        """Tell whether nobody else in this worker waits for the loop."""
        return False

    def _told(
        self, entries: tuple[JournalEntry, ...], done: Done, error: BaseException | None
    ) -> None:
        """Keep what went along with a write that failed: nobody else would write it."""
        if error is not None:
            self.buffer = {each.seq: each for each in entries} | self.buffer
        done(error)

    def _with_buffer(self, entries: tuple[JournalEntry, ...]) -> tuple[JournalEntry, ...]:
        if not self.buffer:
            return entries
        merged = {**self.buffer, **{entry.seq: entry for entry in entries}}
        self.buffer.clear()
        return tuple(merged.values())

    def line(self, effect: Effect) -> None:
        """Let a line of the ledger go along with the next write; if none is made now, write it."""
        if not self.lines:
            self.node.loop.call_soon(self._write_lines)
        self.lines[effect.key] = effect

    def _write_lines(self) -> None:
        if not self.lines or not self.is_ours():
            return
        lines = tuple(self.lines.values())
        write = Write(job_id=self.job.id, owner=self.node.owner, epoch=self.epoch, effects=lines)
        done = partial(self._told_lines, self._take_lines(), self._lines_written)
        done = partial(self.answered, done)
        self._unanswered += 1
        try:
            self.node.store.write_soon(write, done)
        except StoreError as error:
            done(error)

    def _lines_written(self, error: BaseException | None) -> None:
        if error is not None and self.is_ours():
            self.node.flush_soon()

    def _take_lines(self) -> dict[str, Effect]:
        taken, self.lines = self.lines, {}
        return taken

    def _told_lines(
        self, lines: dict[str, Effect], done: Done, error: BaseException | None
    ) -> None:
        if error is not None:
            self.lines = lines | self.lines
        done(error)

    def is_ours(self) -> bool:
        """Tell whether the run goes on."""
        return True

    async def flush(self) -> None:
        """Write what waits to go along with another write."""
        with contextlib.suppress(Unwound):
            if self.buffer or self.lines:
                await self.write()

    async def ask(self, question: Callable[[Store], Awaitable[T]]) -> T:
        """Ask the store something, again and again if it does not answer.

        Raises:
            Unwound: The job is not ours any more, or may not be.
        """
        failures = 0
        while True:
            try:
                return await question(self.node.store)
            except LeaseLost:
                self.lost()
                raise Unwound from None
            except StoreError:
                # The store may come back while the lease is still ours; then nothing is lost.
                if self.node.loop.time() > self.trusted_until:
                    self.lost()
                    raise Unwound from None
                failures += 1
                await pause(_STORE_PAUSES.delay(failures))

    def lost(self) -> None:
        """Stop: another worker may own the job."""
        raise NotImplementedError


class _Sent:
    """A write, from its making until the store has answered it for the last time."""

    def __init__(
        self, ownership: Ownership, buffer: dict[int, JournalEntry], lines: dict[str, Effect]
    ) -> None:
        self._ownership = ownership
        self._buffer, self._lines = buffer, lines  # what goes along, and is not its own
        self._waits = False
        self._given_up = False
        self._failed = False

    async def send(self, store: Store, write: Write) -> None:
        self._waits, self._failed = True, False
        self._ownership.asked()
        try:
            await store.write(write, alone=self._ownership.is_alone(), done=self._answered)
        except Exception as error:
            self._answered(error)  # a store that did not take it has not
            raise

    def _answered(self, error: BaseException | None) -> None:
        if not self._waits:
            return
        self._waits, self._failed = False, error is not None
        if self._given_up:
            self.put_back()
        self._ownership.answered(None, error)

    def put_back(self) -> None:
        """Keep what went along for the next write, unless this one is done after all."""
        self._given_up = True
        if self._failed and not self._waits:
            run = self._ownership
            run.buffer, run.lines = self._buffer | run.buffer, self._lines | run.lines


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


_log = logging.getLogger("perdure.worker")

# The code of a job may stand still so long during a replay, waiting for things that are not ours,
# before it is judged to have drifted from its journal.
_REPLAY_PATIENCE = 5.0

# Code that waits for things that are not ours besides its operations may go on so long without
# one of them, before its job is put aside until they are due.
_IDLE_PATIENCE = 1.0

# Code that does not leave when its run has ended is interrupted so often; then it is given up.
_INTERRUPTIONS = 3

Code = Callable[["Run"], Awaitable[bytes]]


class Run(Ownership):
    """What the code, the operations and the worker share about one claimed job."""

    def __init__(self, node: WorkerPort, claim: Claim) -> None:
        super().__init__(node, claim)
        self.messages = list(claim.messages)
        self.received: set[int] = set()  # messages that operations have taken out of that list
        self.journal = Journal(claim.journal)
        self.process: Process = current("a run of a job")
        self.verdict: Verdict | None = None  # how the run ends, once that is certain
        self.ending: Verdict | None = None  # how it ends as soon as no step works any more
        self.unbegun: set[Operation[Any]] = set()  # which the code has made, and not yet awaited
        self.awaited: set[Operation[Any]] = set()  # by the code, at this moment
        # Operations that have begun: working ones have a process, waiting ones a reason.
        self.working: dict[Operation[Any], Process] = {}
        self.waiting: dict[Operation[Any], asyncio.Handle | None] = {}
        self.ledger: Ledger | None = None  # see `ledger_of`
        self.purse: BudgetRef | None = None  # looked up by the first spending
        self.openings: GatePasses = ()  # what people have said yes to, and was not yet used
        self.resuming = 0  # awaits of the code that are over, which it does not know yet
        self.cut_short = False  # a step was ended from outside: it may have left a call open
        self.refusals = 0  # awaits of the code since its run has ended
        self.forsaken = False  # the code did not leave: its run is ended without it
        self.forsake: Callable[[], None] | None = None  # ends it so
        self._held: list[Operation[Any]] = []  # new ones, while the replay is not over
        self._looks = False
        self._playing = False
        self.over = False  # the code has ended: what is left is to write how
        self._interruptions = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._emptied: asyncio.Future[None] | None = None  # for who waits until nothing works

    async def play(self, code: Code) -> Verdict:
        """Run the code to its end, or until there is nothing to do for it."""
        self._arm_deadline()
        self._playing = True
        try:
            verdict: Verdict = Completed(await code(self))
            if self.unbegun:
                self._warn_of_unbegun()
            if self.journal.unvisited:
                verdict = Parked(failure_of(self.journal.missed("has ended")))
        except (Drift, UnknownName) as misfit:  # the code does not fit: a person must look
            verdict = Parked(failure_of(misfit))
        except BaseException as error:
            # Code that was told to unwind may raise anything on its way.
            if self.verdict is None and self._is_our_end(error):
                raise
            verdict = Failed(failure_of(error, outage=getattr(error, "outage", False)))
        finally:
            self._played()
        # What was decided from outside stands, whatever the code made of it.
        if self.verdict is None and isinstance(self.ending, Cancelled | Failed):
            return self.ending
        return self.verdict or verdict

    def _warn_of_unbegun(self) -> None:
        """Say what Python says of a coroutine that was never awaited."""
        ids = ", ".join(sorted(operation.entry.id for operation in self.unbegun))
        job = self.job
        _log.warning(
            "job %s (%s) has ended without awaiting %s: nothing of that was done",
            *(job.id, job.name, ids),
        )

    def _is_our_end(self, error: BaseException) -> bool:
        """Tell whether an error ends this process, and not only the code of the user."""
        return self.process.outcome is not None or isinstance(error, KeyboardInterrupt)

    def _played(self) -> None:
        self._playing = False
        self.over = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for _ in range(self._interruptions):  # they were meant for the code
            self.process.uncancel()

    def _arm(self, what: str, delay: float, then: Callable[[], None]) -> None:
        """Do something later, unless the code has ended by then; of its kind only the last."""
        if what in self._timers:
            self._timers[what].cancel()
        self._timers[what] = self.node.loop.call_later(delay, then)

    def _arm_deadline(self) -> None:
        if self.job.deadline_at is not None:
            late = StepTimeout(f"job {self.job.id} did not end before its deadline")
            left = max(0.0, self.job.deadline_at - self.now())
            self._arm("deadline", left, lambda: self.end(Failed(failure_of(late))))

    # Operations

    def visit(self, id: str, kind: EntryKind, packed: bytes | None) -> JournalEntry | None:
        """Look an operation up in the journal; None if it is new."""
        if self.verdict is not None:
            return None  # it will never begin: who awaits it is told
        entry = self.journal.visit(id, kind, packed)
        if self._held and not self.journal.unvisited:  # the replay is over
            held, self._held = self._held, []
            for operation in held:
                self.begin(operation)
        return entry

    def begin(self, operation: Operation[Any]) -> None:
        """Start an operation that the code awaits, unless it is too early or too late for that."""
        if self.ending is not None:
            self.look()
        elif self.journal.unvisited and not operation.recorded:
            self._hold(operation)
        else:
            operation.start()

    def _hold(self, operation: Operation[Any]) -> None:
        # Code that fits comes by all that is recorded before it needs the answer to anything new.
        if not self._held:
            self._arm("replay", _REPLAY_PATIENCE, self._judge_replay)
        self._held.append(operation)
        self.look()

    def _judge_replay(self) -> None:
        if self._held and self.verdict is None:
            wanted = ", ".join(operation.entry.id for operation in self._held)
            self.stop(Parked(failure_of(self.journal.missed(f"asks for {wanted}"))))

    def work(self, operation: Operation[Any], body: Callable[[], Awaitable[None]]) -> None:
        """Give an operation a process that works for it."""
        self._unwait(operation)
        self.working[operation] = give_birth(
            self.node.runtime, self.process, _work, (self, operation, body), PLAIN
        )

    def worked(self, operation: Operation[Any]) -> None:
        """Take note that an operation's process has done what it could."""
        self.working.pop(operation, None)
        goes_on = self.ending is None and self.verdict is None and not operation.settled
        if operation.again and goes_on:
            operation.again = False
            operation.start()
        if self.working:
            return
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)
        self._look_if_needed()

    def resumed(self) -> None:
        """Take note that the code knows of an answer: there may be nothing to do for it now."""
        self.resuming -= 1
        self._look_if_needed()

    def _look_if_needed(self) -> None:
        if self.waiting or self._held or self.ending is not None:
            self.look()

    def wait(self, operation: Operation[Any], until: float | None = None) -> None:
        """Let an operation wait for news, or for a time by the store's clock."""
        timer = None
        if until is not None:
            timer = self.node.loop.call_later(max(0.0, until - self.now()), self._due, operation)
        self.waiting[operation] = timer
        self.look()

    def _due(self, operation: Operation[Any]) -> None:
        self._unwait(operation)
        if self.ending is None and self.verdict is None:
            operation.due()

    def _unwait(self, operation: Operation[Any]) -> None:
        timer = self.waiting.pop(operation, None)
        if timer is not None:
            timer.cancel()

    def heard(self, news: int, messages: Iterable[JobMessage]) -> None:
        """Let what waits look at the news; `messages` were read when they had this number."""
        if news < self.news or self.verdict is not None:
            return  # what was read later is here already, or nobody here reads it any more
        # Not before the messages are here: whoever releases the job says how far it has read.
        self.news = news
        self.messages = [one for one in messages if one.no not in self.received]
        for operation in (*self.waiting, *self.working):
            operation.heard()

    # The end

    def end(self, verdict: Verdict) -> None:
        """End the run when no step works any more; ask those that do to stop."""
        if self.ending is None or isinstance(verdict, Cancelled | Failed):
            self.ending = verdict
        if not isinstance(verdict, Paused | Parked):  # other steps come to their own ends
            for operation in tuple(self.working):
                operation.interrupt(hard=not isinstance(verdict, Drained))
        self.look()

    def unpause(self) -> None:
        """Go on after all: the job was resumed before it had come to rest."""
        if isinstance(self.ending, Paused):
            # What did not begin meanwhile cannot begin now: the job is claimed anew instead.
            self.ending = Drained()

    def stop(self, verdict: Verdict) -> None:
        """End the run now: the code unwinds."""
        if self.verdict is None:
            self.verdict = verdict
            for operation in tuple(self.awaited):
                operation.wake()
            if self._playing:
                self._arm("leave", self.node.settings.cancel_grace, self._insist)

    def _insist(self) -> None:
        """Interrupt code that waits for other things than operations, or does not listen."""
        if self._interruptions < _INTERRUPTIONS:
            self._interruptions += 1
            self.process.cancel("the run of the job has ended")
            self._arm("leave", self.node.settings.cancel_grace, self._insist)
        elif self.forsake is not None and not self.forsaken:
            self.forsaken = True
            self.forsake()

    def lost(self) -> None:
        if self.verdict is None and events.listens(events.LEASE_LOSE):
            events.lease_lost(self)
        self.stop(Lost())

    def lose(self) -> None:
        """Stop at once: another may own the job by now."""
        self.lost()
        for operation, process in tuple(self.working.items()):
            operation.lost()
            if not process.done():
                process.tie().at_death(partial(self.worked, operation))
                kill(process, "the lease of the job is lost")

    def is_ours(self) -> bool:
        return self.verdict is None

    def is_alone(self) -> bool:
        node = self.node
        if node.looking or node.wanted.is_set():  # a pause that was asked for comes first
            return False
        return len(node.runs) == 1 and len(self.working) == 1

    def look(self) -> None:
        """Look, when the code had its turn, whether there is anything left to do."""
        if not self._looks:
            self._looks = True
            self.node.loop.call_soon(self._look)

    def _look(self) -> None:
        self._looks = False
        if self.verdict is not None or self.working or self.resuming:
            return
        if self.ending is not None:
            self.stop(self.ending)
        elif not stands_still(self.process, self.awaited):
            if self.waiting and not self._held:
                self._arm("idle", _IDLE_PATIENCE, self._look_once_more)
        elif self._held:
            self._judge_replay()
        elif self.waiting:
            self._suspend()

    def _look_once_more(self) -> None:
        """Put the job aside, though its code may wait for things that are not ours."""
        quiet = not (self.working or self.resuming or self._held)
        if self.verdict is None and self.ending is None and quiet and self.waiting:
            self._suspend()

    def _suspend(self) -> None:
        ends = (self.job.deadline_at, *(operation.entry.wake_at for operation in self.waiting))
        due = min((end for end in ends if end is not None), default=None)
        if due is None or due - self.now() > self.node.settings.keep_in_memory:
            told = [each for operation in self.waiting for each in operation.describe_all()]
            self.stop(Suspended(due, encode(told)))

    async def silence(self) -> None:
        """See to it that nothing works for this run any more."""
        for operation in tuple(self.waiting):
            self._unwait(operation)
        for operation in tuple(self.working):
            operation.interrupt(hard=True)
        while self.working:
            self._emptied = self.node.loop.create_future()
            await self._emptied


async def _work(run: Run, operation: Operation[Any], body: Callable[[], Awaitable[None]]) -> None:
    """The process of an operation."""
    try:
        await body()
    except Unwound:
        pass
    except Exception as error:  # noqa: BLE001 - a fault of the engine itself must not be silent
        run.stop(Parked(failure_of(error)))
    finally:
        run.worked(operation)
