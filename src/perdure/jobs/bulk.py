"""Commands to many jobs at once, chosen by a query; pure."""

from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct

from perdure.base.errors import ArgumentError
from perdure.jobs.state import ENDED, LIVE, JobState

BulkAction: TypeAlias = Literal["cancel", "pause", "resume", "retry"]
BULK_ACTIONS: Final[tuple[BulkAction, ...]] = get_args(BulkAction)

# Which jobs are meant if a query names no states: those for which the command is made.
_STATES: Final[dict[BulkAction, frozenset[JobState]]] = {
    "cancel": frozenset(JobState) - ENDED,
    "pause": frozenset(LIVE),
    "resume": frozenset({JobState.PAUSED, JobState.NEEDS_ATTENTION}),
    "retry": frozenset({JobState.FAILED}),
}


class BulkResult(Struct, frozen=True, kw_only=True):
    """What a command does to one of the jobs."""

    job_id: str
    name: str
    state: JobState  # before the command
    refused: str = ""  # why the job refuses it; empty: it does not


class BulkReport(Struct, frozen=True, kw_only=True):
    """What a command did to many jobs, or would do."""

    action: BulkAction
    dry_run: bool  # nothing was done
    results: list[BulkResult]  # the oldest first

    @property
    def affected(self) -> list[BulkResult]:
        """The jobs that obey, or would."""
        return [each for each in self.results if not each.refused]

    @property
    def refused(self) -> list[BulkResult]:
        """The jobs that refuse it, with the reasons."""
        return [each for each in self.results if each.refused]


def states_for(action: str) -> tuple[JobState, ...]:
    """Return the states of the jobs that a command is meant for.

    Raises:
        ArgumentError: There is no such command to many jobs.
    """
    for known in BULK_ACTIONS:
        if known == action:
            return tuple(sorted(_STATES[known]))
    why = f"`action` is one of {', '.join(BULK_ACTIONS)}, not {action!r}"
    raise ArgumentError("this cannot be asked of many jobs", [why])
