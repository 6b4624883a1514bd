"""How an attempt of a step exits before it has a result, to be repeated later.

A step that needs an answer from a person, or from another job, does not wait for it in memory. It
exits: an exit is raised through the user's function, the attempt does not count, and the exit
decides when the step begins again. An exit is not an error. Code that catches it anyway changes
nothing, since the attempt remembers it (see `perdure.engine.steps.step`).
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from perdure.engine.journal.run import Run
from perdure.jobs.definition import Step
from perdure.jobs.model import JournalEntry


class CallInProgress(Protocol):
    """One call of a step, as gates, exits and effects see it; implemented by `StepOperation`."""

    entry: JournalEntry
    asked: str | None  # the approval that it waits for
    start_again: bool  # when its process has ended
    gate_open: bool  # for the next attempt

    @property
    def run(self) -> Run: ...
    @property
    def step(self) -> Step[..., Any]: ...
    @property
    def attempt(self) -> int: ...
    @property
    def recorded(self) -> bool: ...

    def spawn(self, body: Callable[[], Awaitable[None]]) -> None:
        """Start a process that works for it."""
        ...

    def wait(self, until: float | None = None) -> None:
        """Wait for news, or for a time by the store's clock."""
        ...

    def take_start_record(self) -> tuple[JournalEntry, ...]:
        """Return the record of the start, if it is still to be written."""
        ...

    def uncount(self) -> JournalEntry:
        """Return the record of an attempt that does not count, and will be repeated."""
        ...

    def take_arguments(self, packed: bytes) -> None:
        """Replace the arguments that the code passed: a person has edited them."""
        ...

    async def refuse(self, error: Exception) -> None:
        """Fail the step before it begins: a person rejected it."""
        ...


class StepExit(BaseException):
    """Leaves the function of a step. Not an error; never catch it."""

    async def apply(self, step: CallInProgress) -> None:
        """Do what is needed before the step can begin again."""


class ExitAtCheckpoint(StepExit):
    """Leaves a step whose progress is saved, because its worker stops or its job ends."""
