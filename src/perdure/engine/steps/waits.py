"""What a job can wait for besides steps: a time, a message, another job.

None of them needs a worker: when the code waits for nothing else, the job is suspended, and claimed
again when the time has come or there is news.
"""

import contextlib
from typing import Any, TypeVar

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
from perdure.jobs.failure import Failure, failure_of
from perdure.jobs.model import Command, JobOutcome, JournalEntry, NewJob
from perdure.jobs.state import ENDED, JobState, StepState

R = TypeVar("R")

_NOTHING = encode(None)

# A child that ended in one of these states runs again when its parent is retried.
_RETRIED = (JobState.FAILED, JobState.CANCELLED)


class Sleep(Operation[None]):
    """A wait for a time."""

    __slots__ = ()
    waits_for = "timer"

    def start(self) -> None:
        if self.entry.state is StepState.PENDING and not self.recorded:
            self.run.buffer_entry(self.entry)
        self.wait(self.entry.wake_at)

    def on_due(self) -> None:
        self.spawn(self._end)

    async def _end(self) -> None:
        done = replace(
            self.entry, state=StepState.SUCCEEDED, output=_NOTHING, ended_at=self.run.now()
        )
        await self.run.write(done)
        self.finish(None)


class Receive(Operation[Any]):
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
        if not self._take():
            if not self.recorded:
                self.run.buffer_entry(self.entry)
            self.wait(self.entry.wake_at)

    def on_news(self) -> None:
        if self in self.run.waiting:
            self._take()

    def on_due(self) -> None:
        if not self._take():
            self.spawn(self._time_out)

    def _take(self) -> bool:
        message = next((one for one in self.run.messages if one.topic == self.topic), None)
        if message is None:
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
        done = replace(
            self.entry, state=StepState.SUCCEEDED, output=payload, ended_at=self.run.now()
        )
        await self.run.write(done, taken=(number,))
        self.finish(value)

    async def _time_out(self) -> None:
        await self._fail(StepTimeout(f"no message {self.topic!r} came in time"))

    async def _fail(self, error: Exception, taken: tuple[int, ...] = ()) -> None:
        failed = replace(
            self.entry,
            state=StepState.FAILED,
            error=failure_of(error).pack(),
            ended_at=self.run.now(),
        )
        await self.run.write(failed, taken=taken)
        self.finish(None, error)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "topic": self.topic}


class Child(Operation[R]):
    """A wait for another job, which this one submits."""

    __slots__ = ("_definition", "_job")
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
        self._job = job

    def start(self) -> None:
        self.spawn(self._look if self.recorded else self._submit)

    def on_news(self) -> None:
        self.spawn_again(self._look)

    async def _submit(self) -> None:
        running = replace(self.entry, state=StepState.RUNNING, started_at=self.run.now())
        await self.run.write(running, children=(self._job,))
        self.entry, self.recorded = running, True
        self.run.node.poke()
        self.wait()

    async def _look(self) -> None:
        outcomes = await self.run.ask(lambda store: store.outcomes([self._job.id]))
        if not outcomes and self.run.job.forked_from is None:
            raise JobNotFound(self._job.id)  # submitting it again might do all of it twice
        if not outcomes:  # the entry was copied from the job of which this one is a fork
            await self._submit()
        elif outcomes[0].state not in ENDED:
            self.wait()
        elif self.entry.state is StepState.PENDING and outcomes[0].state in _RETRIED:
            await self._retry_child()
        else:
            await self._ended(outcomes[0])

    async def _retry_child(self) -> None:
        """Retry a child that failed: this job is being retried from here on."""
        again = Command(
            job_id=self._job.id,
            action="retry",
            actor=self.run.node.owner,
            reason=f"its parent {self.run.job.id} is retried",
        )
        with contextlib.suppress(IllegalTransition):  # somebody else was faster
            await self.run.ask(lambda store: store.command(again))
        self.entry = replace(self.entry, state=StepState.RUNNING, started_at=self.run.now())
        await self.run.write(self.entry)
        self.start_again = True  # it may have ended meanwhile

    async def _ended(self, outcome: JobOutcome) -> None:
        if outcome.state is JobState.COMPLETED and outcome.result is not None:
            done = replace(self.entry, state=StepState.SUCCEEDED, output=outcome.result)
            await self.run.write(replace(done, ended_at=self.run.now()))
            self.finish(self._definition.result.decode(outcome.result))
            return
        error = outcome.error or failure_of(RuntimeError("no reason is known")).pack()
        # The state is stored as the output, so that a replay raises the same error.
        failed = replace(
            self.entry,
            state=StepState.FAILED,
            output=encode(outcome.state.value),
            error=error,
            ended_at=self.run.now(),
        )
        await self.run.write(failed)
        self.finish(None, child_failed(self._job.id, failed))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "job": self._job.id}


def child_failed(job_id: str, entry: JournalEntry) -> JobFailed:
    """Return the error of a child that ended without a result."""
    state = "FAILED" if entry.output is None else decode(entry.output, str)
    why = "no reason is known" if entry.error is None else Failure.unpack(entry.error).summary()
    return JobFailed(job_id, state, why)


def no_message(entry: JournalEntry) -> Exception:
    """Return the error of a wait for a message, from the journal."""
    failure = Failure.unpack(entry.error or b"")
    kind = WrongType if failure.type.endswith("WrongType") else StepTimeout
    return kind(failure.message)
