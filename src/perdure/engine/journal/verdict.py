"""How a run of a job ends: what is decided here, somebody else writes."""

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from perdure.jobs.failure import Failure
from perdure.jobs.model import JournalEntry
from perdure.jobs.state import JobState

if TYPE_CHECKING:
    from perdure.engine.steps.step import StepOperation


class Completed(Struct, frozen=True):
    """The code returned."""

    result: bytes


class Failed(Struct, frozen=True):
    """The code raised, or the job may not go on."""

    failure: Failure


class Suspended(Struct, frozen=True):
    """Nothing can be done before a time or a piece of news; the worker is free."""

    due_at: float | None
    wait: bytes


class Paused(Struct, frozen=True):
    """A person asked for a pause."""


class Cancelled(Struct, frozen=True):
    """A person asked for the end."""


class Drained(Struct, frozen=True):
    """The worker stops; another one may go on at once."""


class Parked(Struct, frozen=True):
    """A person must look at it; `wait` says what they can do, `told` that they know it already."""

    failure: Failure
    wait: bytes | None = None
    told: bool = False
    entries: tuple[JournalEntry, ...] = ()


class Undoing(Struct, frozen=True):
    """It failed, or was cancelled, and what it did is undone first: the list begins with these."""

    entries: tuple[JournalEntry, ...]
    error: bytes | None


class Undone(Struct, frozen=True):
    """What could be undone is undone."""

    state: JobState
    error: bytes | None
    entries: tuple[JournalEntry, ...] = ()


class Lost(Struct, frozen=True):
    """Another worker owns the job now: nothing more may be written."""


Verdict = (
    Completed | Failed | Suspended | Paused | Cancelled | Drained | Parked | Undoing | Undone | Lost
)


class Unwound(BaseException):
    """Leaves the code of a job whose run has ended; not an error, and not to be caught."""


# Ways to leave a step that will be begun again; none is an error, and none is to be caught.


class Leaving(BaseException):
    """Leaves the function of a step."""

    async def settle(self, operation: "StepOperation[Any]") -> None:
        """Do what is to be done before the step can be begun again."""


class AtSafePoint(Leaving):
    """Leaves a step whose progress is saved, because its worker stops."""
