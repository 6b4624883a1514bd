"""What a job can wait for besides steps: a time, a message, another job.

None of them needs a worker: when the code waits for nothing else, the job is suspended, and claimed
again when the time has come or there is news.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from perdure.base.codec import decode, encode
from perdure.base.errors import (
    Drift,
    IllegalTransition,
    JobFailed,
    JobNotFound,
    StepTimeout,
    WrongType,
)
from perdure.engine.journal.run import Operation, Run
from perdure.jobs.definition import JobDefinition
from perdure.jobs.failure import Failure, failure_of, job_error
from perdure.jobs.model import Command, JobMessage, JobOutcome, JournalEntry, NewJob
from perdure.jobs.state import ENDED, JobState, StepState
from perdure.store.store import Store

R = TypeVar("R")

_NOTHING = encode(None)

# A child that ended in one of these states runs again when its parent is retried.
_RETRIED = (JobState.FAILED, JobState.CANCELLED)


class _Wait(Operation[R]):
    """A wait that asks nobody for anything, perhaps until a time."""

    __slots__ = ("is_due",)

    def __init__(self, run: Run, entry: JournalEntry, *, recorded: bool) -> None:
        super().__init__(run, entry, recorded=recorded)
        self.is_due = False  # its time has come while it was raced

    def start(self) -> None:
        until = self.entry.wake_at
        if self.is_due or (until is not None and until <= self.run.now()):
            self.on_due()
            return
        if self.entry.state is StepState.PENDING and not self.recorded:
            self.run.buffer_entry(self.entry)
        self.wait_for_time()

    def on_due(self) -> None:
        if self.raced:
            self.is_due = True
            self.offer()
        else:
            self.spawn(self.end_due)

    def ready_at(self) -> float | None:
        return self.entry.wake_at if self.is_due and not self.finished else super().ready_at()

    async def end_due(self) -> None:
        """End it: its time has come."""
        raise NotImplementedError

    def withdraw(self) -> None:
        # Nothing depends on it, so the next write takes it along.
        self.entry = self.cancelled_entry()
        self.run.stop_waiting(self)
        self.run.buffer_entry(self.entry)
        self.finish(None, self.cancellation())


class Sleep(_Wait[None]):
    """A wait for a time."""

    __slots__ = ()
    waits_for = "timer"

    async def end_due(self) -> None:
        done = self.entry = replace(
            self.entry, state=StepState.SUCCEEDED, output=_NOTHING, ended_at=self.run.now()
        )
        await self.run.write(done, *self.along)
        self.finish(None)


class Receive(_Wait[Any]):
    """A wait for a message."""

    __slots__ = ("_kind",)
    waits_for = "message"

    def __init__(self, run: Run, entry: JournalEntry, kind: Any, *, recorded: bool) -> None:
        super().__init__(run, entry, recorded=recorded)
        self._kind = kind

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self.entry.name.removeprefix("receive:")

    def start(self) -> None:
        if self.raced:
            super().start()
            self.on_news()
        elif not self._take():
            super().start()

    def on_news(self) -> None:
        if self.raced and self._next() is not None:
            self.offer()
        elif self in self.run.waiting:
            self._take()

    def on_due(self) -> None:
        if self.raced or not self._take():
            super().on_due()

    def ready_at(self) -> float | None:
        message = self._next() if self.raced else None
        return super().ready_at() if message is None else message.sent_at

    def _next(self) -> JobMessage | None:
        """Return the first message of its topic; None if there is none."""
        return next((one for one in self.run.messages if one.topic == self.topic), None)

    def _take(self) -> bool:
        message = self._next()
        if message is None or self.raced:
            return False
        # Taken before it is written, so that no other operation of this run gets it too.
        self.run.messages.remove(message)
        self.run.received.add(message.no)
        self.spawn(lambda: self._received(message.no, message.payload))
        return True

    async def _received(self, number: int, payload: bytes) -> None:
        try:
            value = decode(payload, self._kind)
        except Drift as misfit:  # consumed too, or it would stay the first one for ever
            error = WrongType(f"message {self.topic!r} does not have the requested type: {misfit}")
            await self._fail(error, taken=(number,))
            return
        done = self.entry = replace(
            self.entry, state=StepState.SUCCEEDED, output=payload, ended_at=self.run.now()
        )
        await self.run.write(done, *self.along, taken=(number,))
        self.finish(value)

    async def end_due(self) -> None:
        await self._fail(StepTimeout(f"no message {self.topic!r} came in time"))

    async def _fail(self, error: Exception, taken: tuple[int, ...] = ()) -> None:
        failed = self.entry = replace(
            self.entry,
            state=StepState.FAILED,
            error=failure_of(error).pack(),
            ended_at=self.run.now(),
        )
        await self.run.write(failed, *self.along, taken=taken)
        self.finish(None, error)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "topic": self.topic}


class Child(Operation[R]):
    """A wait for another job, which this one submits."""

    __slots__ = ("_definition", "_end", "job")
    waits_for = "child"

    def __init__(
        self,
        run: Run,
        entry: JournalEntry,
        definition: "JobDefinition[Any, R]",
        job: NewJob,
        *,
        recorded: bool,
    ) -> None:
        super().__init__(run, entry, recorded=recorded)
        self._definition = definition
        self._end: JournalEntry | None = None  # that it has not recorded while it is raced
        self.job = job

    def children(self) -> Sequence[str]:
        return (self.job.id,)

    async def record_cancel(self) -> None:
        if self._end is not None:  # too late: it has done its work
            await self._record_end()
            return
        if self.recorded:
            stop = Command(
                job_id=self.job.id,
                action="cancel",
                actor=self.run.node.owner,
                by_worker=True,
                reason=f"in its parent {self.run.job.id}, another operation ended first",
            )
            with contextlib.suppress(IllegalTransition, JobNotFound):  # it has ended already
                await self.run.ask(lambda store: store.command(stop))
        await super().record_cancel()

    def start(self) -> None:
        if self._end is not None and not self.raced:
            self.spawn(self._record_end)
        else:
            self.run.work_jointly(self, _look_at if self.recorded else _submit)

    def on_news(self) -> None:
        self._end = None  # somebody may have retried it since
        if self in self.run.working:
            self.start_again = True  # what is being read may be stale
        else:
            self.start()

    def ready_at(self) -> float | None:
        return super().ready_at() if self._end is None else self._end.ended_at

    def keeps(self, entry: JournalEntry) -> bool:
        """Whether its end is recorded only when the code has chosen it."""
        if self.raced:
            self._end = entry
            self.offer()
        return self.raced

    async def _record_end(self) -> None:
        entry = self._end
        if entry is not None:  # else there is news since, and it looks again
            await self.run.write(entry, *self.along)
            self.ended(entry)

    def running_entry(self) -> JournalEntry:
        """Return the entry of a child that is submitted."""
        return replace(self.entry, state=StepState.RUNNING, started_at=self.run.now())

    def submitted(self, running: JournalEntry) -> None:
        """Wait for the child; it is in the store."""
        self.entry, self.recorded = running, True
        self.wait()

    def ended_entry(self, outcome: JobOutcome | None) -> JournalEntry | None:
        """Return how the child has ended; None if it has not, or is not there, or is retried."""
        if outcome is None and self.run.job.forked_from is None:
            raise JobNotFound(self.job.id)  # submitting it again might do all of it twice
        if outcome is None:  # the entry was copied from the job of which this one is a fork
            self.run.work_jointly(self, _submit)
        elif outcome.state not in ENDED:
            self.wait()
        elif self.entry.state is StepState.PENDING and outcome.state in _RETRIED:
            self.spawn(self._retry_child)
        else:
            return self._with_outcome(outcome)
        return None

    async def _retry_child(self) -> None:
        """Retry a child that failed: this job is being retried from here on."""
        again = Command(
            job_id=self.job.id,
            action="retry",
            actor=self.run.node.owner,
            by_worker=True,
            reason=f"its parent {self.run.job.id} is retried",
        )
        with contextlib.suppress(IllegalTransition):  # somebody else was faster
            await self.run.ask(lambda store: store.command(again))
        self.entry = replace(self.entry, state=StepState.RUNNING, started_at=self.run.now())
        await self.run.write(self.entry)
        self.start_again = True  # it may have ended meanwhile

    def _with_outcome(self, outcome: JobOutcome) -> JournalEntry:
        ended_at = outcome.ended_at or self.run.now()
        if outcome.state is JobState.COMPLETED and outcome.result is not None:
            done = StepState.SUCCEEDED
            return replace(self.entry, state=done, output=outcome.result, ended_at=ended_at)
        return replace(
            self.entry,
            state=StepState.FAILED,
            # The state is stored as the output, so that a replay raises the same error.
            output=encode(outcome.state.value),
            error=outcome.error or failure_of(RuntimeError("no reason is known")).pack(),
            ended_at=ended_at,
        )

    def ended(self, entry: JournalEntry) -> None:
        """Pass the end of the child, which is in the journal now, to the code."""
        self.entry = entry
        if entry.state is StepState.SUCCEEDED:
            self.finish(self._definition.result.decode(cast("bytes", entry.output)))
        else:
            self.finish(None, child_failed(self.job.id, entry, self._definition))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "job": self.job.id}


# A job may have thousands of children. What is done for one of them is done for all that need it
# at the same time, in one query or write for each batch.

_BATCH = 200


async def _submit(run: Run, children: Sequence[Child[Any]]) -> None:
    """Submit children."""
    for batch in _batches(children):
        running = [child.running_entry() for child in batch]
        await run.write(*running, children=tuple(child.job for child in batch))
        for child, entry in zip(batch, running, strict=True):
            child.submitted(entry)
        run.node.poke()


async def _look_at(run: Run, children: Sequence[Child[Any]]) -> None:
    """Look whether children have ended; if so, write it down and pass it to the code."""
    for batch in _batches(children):
        ids = [child.job.id for child in batch]
        found = {each.job_id: each for each in await run.ask(partial(_outcomes, ids))}
        looked = [(child, child.ended_entry(found.get(child.job.id))) for child in batch]
        ended = [(child, entry) for child, entry in looked if entry and not child.keeps(entry)]
        if ended:
            along = [each for child, _ in ended for each in child.along]
            await run.write(*(entry for _, entry in ended), *dict.fromkeys(along))
        for child, entry in ended:
            child.ended(entry)


async def _outcomes(ids: Sequence[str], store: Store) -> list[JobOutcome]:
    return await store.outcomes(ids)


def _batches(children: Sequence[Child[Any]]) -> Iterator[Sequence[Child[Any]]]:
    for start in range(0, len(children), _BATCH):
        yield children[start : start + _BATCH]


def child_failed(
    job_id: str, entry: JournalEntry, definition: JobDefinition[..., Any]
) -> Exception:
    """Return the error of a child that ended without a result."""
    state = "FAILED" if entry.output is None else decode(entry.output, str)
    error = job_error(job_id, state, entry.error, definition.raises)
    if isinstance(error.__cause__, JobFailed):
        error.__cause__.step = entry.id
    return error


def no_message(entry: JournalEntry) -> Exception:
    """Return the error of a wait for a message, from the journal."""
    failure = Failure.unpack(entry.error or b"")
    kind = WrongType if failure.type.endswith("WrongType") else StepTimeout
    return kind(failure.message)
