"""An operation of a job: what `await ctx.run(…)`, `ctx.sleep(…)` and the like wait for.

It gets its identity when the code asks for it, begins when the code awaits it, and is settled
by the journal (replay), or by the run when what it stands for has happened and is durable.
"""

import asyncio
from collections.abc import Collection, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perdure.base.errors import JobError
from perdure.engine.journal.verdict import Unwound
from perdure.jobs.model import JournalEntry
from perdure.process.waiter import Waiter, current_waiter

if TYPE_CHECKING:
    from perdure.engine.journal.run import Run
    from perdure.process.process import Process


R = TypeVar("R")

# Code that catches the end of its run and goes on is told so often; then it waits for its kill.
_REFUSALS = 10


class Operation(Generic[R]):
    """One thing that the code of a job waits for."""

    __slots__ = (
        "_begun",
        "_error",
        "_value",
        "_waiters",
        "again",
        "entry",
        "recorded",
        "run",
        "settled",
    )

    # What a person reads when the job waits for it: "timer", "message", "child", …
    waits_for = ""

    # How long it may work without a sign of progress, by its own rules.
    longest = 0.0

    def __init__(self, run: "Run", entry: JournalEntry, *, recorded: bool) -> None:
        self.run = run
        self.entry = entry
        self.recorded = recorded  # whether an earlier run had come here already
        self.settled = False
        self.again = False  # start it anew when the process that works for it has ended
        self._begun = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiters: list[Waiter] = []
        run.unbegun.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.entry.id} of job {self.run.job.id}>"

    def __await__(self) -> Generator[Any, None, R]:
        run = self.run
        if not self.settled and run.verdict is None:
            self.begin()
            yield from self._wait()
        if run.verdict is not None:
            yield from _refuse(run)
            raise Unwound
        if self._error is not None:
            raise self._error
        return self._value

    def _wait(self) -> Generator[Any, None, None]:
        run, waiter = self.run, current_waiter()
        self._waiters.append(waiter)
        run.awaited.add(self)
        try:
            while not self.settled and run.verdict is None:
                yield waiter.pause()
        finally:
            self._waiters.remove(waiter)
            run.awaited.discard(self)
            if self.settled:
                run.resumed()

    def begin(self) -> None:
        """Set it going, if nobody has."""
        if not self._begun and not self.settled:
            self._begun = True
            self.run.unbegun.discard(self)
            self.run.begin(self)

    def start(self) -> None:
        """Do what it stands for, or begin to wait for it."""
        raise NotImplementedError

    def due(self) -> None:
        """Go on: the time that it waited for has come."""
        self.start()

    def heard(self) -> None:
        """Look again, now or when it has done what it does: there is news for the job."""

    def interrupt(self, *, hard: bool) -> None:
        """Stop working: `hard` by force if need be, else only at the next safe point."""

    def lost(self) -> None:
        """Take note that the job is not ours any more."""

    def settle(self, value: R | None, error: BaseException | None = None) -> None:
        """Give the code its answer."""
        if not self.settled:
            self.settled = True
            self.run.unbegun.discard(self)
            self._value, self._error = value, error
            if isinstance(error, JobError):
                error.step = self.entry.id
            self.run.resuming += len(self._waiters)
            self.wake()

    def awaited_by(self, waiter: Waiter) -> bool:
        """Tell whether this one waits for it."""
        return waiter in self._waiters

    @property
    def waiters(self) -> int:
        """How many wait for it."""
        return len(self._waiters)

    def wake(self) -> None:
        """Let the code that waits look again."""
        for waiter in self._waiters:
            waiter.wake()

    def describe_all(self) -> list[dict[str, Any]]:
        """Say to people what it waits for, if that may be several things."""
        return [self.describe()]

    def describe(self) -> dict[str, Any]:
        """Say to people what it waits for."""
        told: dict[str, Any] = {"kind": self.waits_for, "id": self.entry.id}
        if self.entry.wake_at is not None:
            told["until"] = self.entry.wake_at
        return told


def _refuse(run: "Run") -> Generator[Any, None, None]:
    """Let code whose run has ended have no more; a loop that catches everything must not spin."""
    run.refusals += 1
    if run.refusals > _REFUSALS:
        waiter = current_waiter()
        while True:
            yield waiter.pause()


# Whether the code of a job stands still: it waits for operations of its own, and for nothing else.
#
# Only then is it certain that nothing more comes from it before one of them is over.


def stands_still(process: "Process", awaited: Collection[Operation[Any]]) -> bool:
    """Tell whether the code, with all asyncio tasks that it started, waits in operations.

    Code that stands in an `asyncio.gather` of such tasks does; what else it may wait for
    cannot be seen from here, and so does not count.
    """
    stands = any(operation.awaited_by(process) for operation in awaited)
    tasks = None if process.bonds is None else process.bonds.tasks
    if not tasks:
        return stands
    in_operations = sum(operation.waiters for operation in awaited) - stands
    return (stands or _is_of_tasks(process.future)) and in_operations >= len(tasks)


def _is_of_tasks(future: "asyncio.Future[Any] | None") -> bool:
    """Tell whether a future is a task, or what `asyncio.gather` gives."""
    return isinstance(future, asyncio.Task) or hasattr(future, "_children")
