"""One run of a job: from its claim until it ends, waits, or is lost.

The job's own code runs in the process of the run; each step runs in a process of its own.
Everything that happens is first written, fenced by the claim, and then told to the code.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from perdure.base.codec import encode
from perdure.base.errors import Drift, LeaseLost, StepTimeout, StoreError, UnknownName
from perdure.base.retry import pause
from perdure.engine.journal import Journal
from perdure.engine.operation import Operation
from perdure.engine.verdict import (
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
from perdure.jobs.failure import failure_of
from perdure.jobs.model import Claim, Entry, EntryKind, Event, JobChange, Message, NewJob, Write
from perdure.process.birth import PLAIN, give_birth
from perdure.process.current import current
from perdure.process.death import kill
from perdure.process.process import Process
from perdure.process.tasklike import PARKED

if TYPE_CHECKING:
    from perdure.engine.node import Node

# The code of a job may stand still so long during a replay, waiting for things that are not ours,
# before it is judged to have drifted from its journal.
_REPLAY_PATIENCE = 5.0

# How long to wait before a write is tried again while the store does not answer.
_STORE_PAUSE = 0.25

Code = Callable[["Run"], Awaitable[bytes]]


class Run:
    """What the code, the operations and the worker share about one claimed job."""

    def __init__(self, node: "Node", claim: Claim) -> None:
        self.node = node
        self.job = claim.job
        self.epoch = claim.epoch
        self.news = claim.news
        self.messages = list(claim.messages)
        self.received: set[int] = set()  # messages that operations have taken out of that list
        self.journal = Journal(claim.journal)
        self.process: Process = current("a run of a job")
        self.verdict: Verdict | None = None  # how the run ends, once that is certain
        self.ending: Verdict | None = None  # how it ends as soon as no step works any more
        self.awaited: set[Operation[Any]] = set()  # by the code, at this moment
        # Operations that have begun: working ones have a process, waiting ones a reason.
        self.working: dict[Operation[Any], Process] = {}
        self.waiting: dict[Operation[Any], asyncio.Handle | None] = {}
        self.resuming = 0  # awaits of the code that are over, which it does not know yet
        self.progress_at = node.loop.time()
        self.trusted_until = 0.0  # by the loop's time: until then the lease is surely ours
        self.buffer: dict[int, Entry] = {}  # by place: goes along with the next write
        self._held: list[Operation[Any]] = []  # new ones, while the replay is not over
        self._looks = False
        self._clock = claim.now - node.loop.time()

    def now(self) -> float:
        """Tell the time by the store's clock, as far as it is known here."""
        return self._clock + self.node.loop.time()

    async def play(self, code: Code) -> Verdict:
        """Run the code to its end, or until there is nothing to do for it."""
        limit = self._arm_deadline()
        try:
            verdict: Verdict = Completed(await code(self))
            if self.journal.unvisited:
                verdict = Parked(failure_of(self.journal.missed("has ended")))
        except (Drift, UnknownName) as misfit:  # the code does not fit: a person must look
            verdict = Parked(failure_of(misfit))
        except BaseException as error:
            # Code that was told to unwind may raise anything on its way.
            if self.verdict is None and not isinstance(error, Exception):
                raise
            verdict = Failed(failure_of(error, outage=getattr(error, "outage", False)))
        finally:
            if limit is not None:
                limit.cancel()
        # What was decided from outside stands, whatever the code made of it.
        if self.verdict is None and isinstance(self.ending, Cancelled | Failed):
            return self.ending
        return self.verdict or verdict

    def _arm_deadline(self) -> asyncio.TimerHandle | None:
        if self.job.deadline_at is None:
            return None
        late = StepTimeout(f"job {self.job.id} did not end before its deadline")
        left = max(0.0, self.job.deadline_at - self.now())
        return self.node.loop.call_later(left, self.end, Failed(failure_of(late)))

    # Operations

    def visit(self, id: str, kind: EntryKind, packed: bytes | None) -> Entry | None:
        """Look an operation up in the journal; None if it is new."""
        if self.verdict is not None:
            raise Unwound
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
            self.node.loop.call_later(_REPLAY_PATIENCE, self._judge_replay)
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
        if operation.again and self.ending is None and self.verdict is None:
            operation.again = False
            operation.start()
        if not self.working and (self.waiting or self._held or self.ending is not None):
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

    def heard(self, messages: Iterable[Message]) -> None:
        """Let what waits look at the news."""
        self.messages = [one for one in messages if one.no not in self.received]
        for operation in tuple(self.waiting):
            operation.heard()

    # Writing

    def note(self, entry: Entry) -> None:
        """Let an entry go along with the next write; one comes soon."""
        self.buffer[entry.seq] = entry
        self.node.flush_soon()

    async def write(
        self,
        *entries: Entry,
        job: JobChange | None = None,
        events: tuple[Event, ...] = (),
        taken: tuple[int, ...] = (),
        children: tuple[NewJob, ...] = (),
    ) -> None:
        """Write, fenced; returns when it is durable.

        Raises:
            Unwound: The job is not ours any more.
        """
        await self._write(
            Write(
                job_id=self.job.id,
                owner=self.node.owner,
                epoch=self.epoch,
                entries=self._with_buffer(entries),
                job=job,
                events=events,
                taken=taken,
                children=children,
                news_seen=self.news,
            )
        )
        self.progress_at = self.node.loop.time()

    def write_soon(self, entry: Entry, done: Callable[[BaseException | None], None]) -> None:
        """Write one entry, fenced; `done` is called when it is durable, or with what went wrong."""
        entries = self._with_buffer((entry,)) if self.buffer else (entry,)
        self.node.store.write_soon(
            Write(job_id=self.job.id, owner=self.node.owner, epoch=self.epoch, entries=entries),
            done,
        )

    def _with_buffer(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if not self.buffer:
            return entries
        merged = {**self.buffer, **{entry.seq: entry for entry in entries}}
        self.buffer.clear()
        return tuple(merged.values())

    async def flush(self) -> None:
        """Write what waits to go along with another write."""
        with contextlib.suppress(Unwound):
            if self.buffer:
                await self.write()

    async def _write(self, write: Write) -> None:
        while True:
            try:
                return await self.node.store.write(write)
            except LeaseLost:
                self.stop(Lost())
                raise Unwound from None
            except StoreError:
                # The store may come back while the lease is still ours; then nothing is lost.
                if self.node.loop.time() > self.trusted_until:
                    self.stop(Lost())
                    raise Unwound from None
                await pause(_STORE_PAUSE)

    # The end

    def end(self, verdict: Verdict) -> None:
        """End the run when no step works any more; ask those that do to stop."""
        if self.ending is None or isinstance(verdict, Cancelled | Failed):
            self.ending = verdict
        if not isinstance(verdict, Paused):
            for operation in tuple(self.working):
                operation.interrupt(hard=not isinstance(verdict, Drained))
        self.look()

    def stop(self, verdict: Verdict) -> None:
        """End the run now: the code unwinds."""
        if self.verdict is None:
            self.verdict = verdict
            for operation in tuple(self.awaited):
                operation.wake()

    def lose(self) -> None:
        """Stop at once: another may own the job by now."""
        self.stop(Lost())
        for process in tuple(self.working.values()):
            kill(process, "the lease of the job is lost")

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
        elif self._held and self.process.state == PARKED:
            self._judge_replay()
        elif self.waiting and not self._held:
            self._suspend()

    def _suspend(self) -> None:
        ends = (self.job.deadline_at, *(operation.entry.wake_at for operation in self.waiting))
        due = min((end for end in ends if end is not None), default=None)
        if due is None or due - self.now() > self.node.settings.linger:
            told = [operation.describe() for operation in self.waiting]
            self.stop(Suspended(due, encode(told)))

    async def silence(self) -> None:
        """See to it that nothing works for this run any more."""
        for operation in tuple(self.waiting):
            self._unwait(operation)
        for operation in tuple(self.working):
            operation.interrupt(hard=True)
        while self.working:
            await pause(0.01)


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
