"""How a run of a job ends: what is decided here, somebody else writes."""

from msgspec import Struct

from perdure.jobs.failure import Failure
from perdure.jobs.model import Entry
from perdure.jobs.state import JobState


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
    entries: tuple[Entry, ...] = ()


class Undoing(Struct, frozen=True):
    """It failed, or was cancelled, and what it did is undone first: the list begins with these."""

    entries: tuple[Entry, ...]
    error: bytes | None


class Undone(Struct, frozen=True):
    """What could be undone is undone."""

    state: JobState
    error: bytes | None
    entries: tuple[Entry, ...] = ()


class Lost(Struct, frozen=True):
    """Another worker owns the job now: nothing more may be written."""


Verdict = (
    Completed | Failed | Suspended | Paused | Cancelled | Drained | Parked | Undoing | Undone | Lost
)


class Unwound(BaseException):
    """Leaves the code of a job whose run has ended; not an error, and not to be caught."""
