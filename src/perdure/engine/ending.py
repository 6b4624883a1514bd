"""How an attempt of a step is ended from outside: by its time, by its job, by a lost lease."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.engine.operation import Operation
from perdure.jobs.definition import Step
from perdure.jobs.model import Entry
from perdure.process.death import kill
from perdure.process.process import Process
from perdure.process.signal import stop_politely

if TYPE_CHECKING:
    from perdure.engine.run import Run
    from perdure.engine.step_context import StepContext

R = TypeVar("R")


class Endable(Operation[R]):
    """An operation that works in attempts, which may be ended."""

    __slots__ = (
        "_expired",
        "_expiry",
        "_interrupted",
        "committing",
        "context",
        "step",
        "unrecorded",
    )

    def __init__(self, run: "Run", entry: Entry, step: Step[Any, R], *, recorded: bool) -> None:
        super().__init__(run, entry, recorded=recorded)
        self.step = step
        self.context: StepContext | None = None
        self.committing = False  # it is done, and waits for the disk
        self.unrecorded = False  # it works, and the journal does not say so yet
        self._expiry: asyncio.TimerHandle | None = None
        self._expired = False  # whatever the attempt gives now comes too late
        self._interrupted = False  # how it ends now says nothing about the step

    def running_entry(self) -> Entry:
        """Give the record of a step that has begun."""
        raise NotImplementedError

    async def record_timeout(self) -> None:
        """Write that the time of the attempt was up."""
        raise NotImplementedError

    def interrupt(self, *, hard: bool) -> None:
        """Ask the step to stop: CANCEL, then by force; or only at its next checkpoint."""
        if self.context is not None:
            self.context.stopping = True
        process = self.run.working.get(self)
        if process is None or self.committing or not hard or process.done():
            return
        if not self._interrupted:
            self._interrupted = self.run.cut_short = True
            if self.unrecorded:  # what it may have done must be known
                self.run.buffer.setdefault(self.entry.seq, self.running_entry())
            process.tie().at_death(partial(self._gone, process))
        if self.context is not None:
            self.context.cancelled.set()
        stop_politely(process, self.run.node.settings.cancel_grace, why="the job ends")

    def _gone(self, process: Process) -> None:
        """Take note of a process that may have been abandoned, and so never said it was done."""
        self.lost()
        if self.run.working.get(self) is process and not self.committing:
            self.run.worked(self)

    def lost(self) -> None:
        self.disarm()
        if self.context is not None:
            self.context.end()
            self.context.cancelled.set()

    def _expire(self) -> None:
        """End an attempt that takes too long; the process cannot record that itself."""
        process = self.run.working.get(self)
        if process is not None and not process.done() and self.run.verdict is None:
            self._expired = self.run.cut_short = True
            self.lost()
            process.tie().at_death(self._died_late)
            kill(process, "the step's time is up")

    def _died_late(self) -> None:
        self._expired = False
        if self.run.verdict is None and not self.settled:
            self.run.work(self, self.record_timeout)
        else:
            self.run.worked(self)

    def arm(self) -> None:
        """Let the time of the attempt begin."""
        if self.step.timeout is not None:
            self._expiry = self.run.node.loop.call_later(self.step.timeout, self._expire)

    def disarm(self) -> None:
        """Let the attempt take as long as it may."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
