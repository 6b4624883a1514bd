"""How a run of a job ends. A verdict is decided in one place and written in another.

`Run` decides (the code returned, somebody cancelled the job, the lease is lost, …), and the
executor turns the verdict into one write, which releases or ends the job.
"""

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.errors import PayloadTooLarge
from perdure.jobs.failure import Failure, failure_of
from perdure.jobs.model import ChildWait, JournalEntry
from perdure.jobs.state import JobState


class Completed(Struct, frozen=True):
    """The code returned."""

    result: bytes


class RunFailed(Struct, frozen=True):
    """The code raised, or the deadline of the job has passed."""

    failure: Failure


class Suspended(Struct, frozen=True):
    """Nothing can be done until a certain time or news; the job needs no worker until then."""

    due_at: float | None
    wait: bytes  # what it waits for, for people
    children: ChildWait | None = None  # which ends of children make it due


class Paused(Struct, frozen=True):
    """A person asked for a pause."""


class Cancelled(Struct, frozen=True):
    """A person, or the parent of the job, cancelled it."""


class Drained(Struct, frozen=True):
    """The worker is stopping; another worker may continue the job at once."""


class NeedsAttention(Struct, frozen=True):
    """The job cannot continue before a person has looked at it."""

    failure: Failure
    wait: bytes | None = None  # what people can do about it
    alerted: bool = False  # people have been notified already
    entries: tuple[JournalEntry, ...] = ()
    asks: bool = False  # people are asked whether it is to be undone


def at_limit(error: PayloadTooLarge, step: str = "") -> NeedsAttention:
    """Return the verdict on a job that has met a limit of size: nothing has failed."""
    text = f"{error}. Nothing is lost or undone: change that, deploy it, and resume the job"
    return NeedsAttention(replace(failure_of(PayloadTooLarge(text)), step=step))


class Continued(Struct, frozen=True):
    """The code wants the job to begin again with other arguments, and an empty journal."""

    name: str
    version: str
    input: bytes
    entry: JournalEntry  # the first of the new journal


class ReplayInOrder(Struct, frozen=True):
    """The code must be replayed once more, in the order in which things happened: see `Turns`."""

    entry: JournalEntry  # says so in the journal


class UndoNeeded(Struct, frozen=True):
    """The job failed or was cancelled; what it did is undone first. This starts the undo list."""

    entries: tuple[JournalEntry, ...]
    error: bytes | None


class UndoEnded(Struct, frozen=True):
    """Everything on the undo list has been undone, or a person decided to abandon it."""

    state: JobState
    error: bytes | None
    entries: tuple[JournalEntry, ...] = ()


class RunLost(Struct, frozen=True):
    """Another worker owns the job, or may own it: nothing more may be written."""


RunVerdict: TypeAlias = (
    Completed
    | RunFailed
    | Suspended
    | Paused
    | Cancelled
    | Drained
    | NeedsAttention
    | Continued
    | ReplayInOrder
    | UndoNeeded
    | UndoEnded
    | RunLost
)


class Unwound(BaseException):
    """Unwinds the code of a job or a step whose run has ended. Not an error; never catch it."""
