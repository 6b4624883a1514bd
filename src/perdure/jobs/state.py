"""The states of jobs and steps, and which may follow which: one table each."""

from enum import StrEnum
from typing import Final

from perdure.base.errors import IllegalTransition


class JobState(StrEnum):
    """Where a job stands."""

    PENDING = "PENDING"  # submitted, never claimed
    RUNNING = "RUNNING"  # a worker owns it
    WAITING = "WAITING"  # for a time, a message, a child, a decision: holds no worker
    PAUSED = "PAUSED"  # by a person; only a person resumes it
    COMPENSATING = "COMPENSATING"  # it failed or was cancelled: what it did is being undone
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    COMPENSATED = "COMPENSATED"
    CANCELLED = "CANCELLED"
    NEEDS_ATTENTION = "NEEDS_ATTENTION"  # parked: a person must look, and the job says at what


class StepState(StrEnum):
    """Where a step (or any other entry of the journal) stands."""

    PENDING = "PENDING"  # known, and waits: for its time, a message, a decision, its next attempt
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    COMPENSATING = "COMPENSATING"
    COMPENSATED = "COMPENSATED"
    COMPENSATION_FAILED = "COMPENSATION_FAILED"
    SKIPPED = "SKIPPED"  # a person said that it is done, or need not be


_J, _S = JobState, StepState

ENDED: Final = frozenset({_J.COMPLETED, _J.FAILED, _J.COMPENSATED, _J.CANCELLED})

# From any of these a worker may pick the job up (a lease, not the state, says who owns it).
LIVE: Final = frozenset({_J.PENDING, _J.RUNNING, _J.WAITING, _J.COMPENSATING})

JOB_TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    _J.PENDING: frozenset({_J.RUNNING, _J.PAUSED, _J.CANCELLED, _J.NEEDS_ATTENTION}),
    _J.RUNNING: frozenset(
        {_J.RUNNING, _J.WAITING, _J.PAUSED, _J.COMPENSATING, _J.COMPLETED, _J.FAILED, _J.CANCELLED}
        | {_J.NEEDS_ATTENTION}
    ),
    _J.WAITING: frozenset(
        {_J.RUNNING, _J.PAUSED, _J.COMPENSATING, _J.CANCELLED, _J.NEEDS_ATTENTION}
    ),
    _J.PAUSED: frozenset({_J.PENDING, _J.WAITING, _J.COMPENSATING, _J.CANCELLED}),
    _J.COMPENSATING: frozenset(
        {_J.COMPENSATING, _J.COMPENSATED, _J.FAILED, _J.CANCELLED, _J.NEEDS_ATTENTION, _J.PAUSED}
    ),
    _J.NEEDS_ATTENTION: frozenset({_J.PENDING, _J.COMPENSATING, _J.CANCELLED, _J.FAILED}),
    # A person may retry what has failed; what is undone stays so.
    _J.FAILED: frozenset({_J.PENDING, _J.COMPENSATING}),
    _J.CANCELLED: frozenset({_J.PENDING, _J.COMPENSATING}),
    _J.COMPLETED: frozenset({_J.COMPENSATING}),  # only for the sake of a parent that failed
    _J.COMPENSATED: frozenset(),
}

STEP_TRANSITIONS: Final[dict[StepState, frozenset[StepState]]] = {
    _S.PENDING: frozenset({_S.RUNNING, _S.PENDING, _S.SUCCEEDED, _S.FAILED, _S.SKIPPED}),
    _S.RUNNING: frozenset({_S.RUNNING, _S.PENDING, _S.SUCCEEDED, _S.FAILED, _S.SKIPPED}),
    _S.FAILED: frozenset({_S.PENDING, _S.RUNNING, _S.SKIPPED, _S.COMPENSATING}),
    # I3: a result never changes; it can only be undone.
    _S.SUCCEEDED: frozenset({_S.COMPENSATING}),
    _S.SKIPPED: frozenset({_S.PENDING}),
    _S.COMPENSATING: frozenset({_S.COMPENSATING, _S.COMPENSATED, _S.COMPENSATION_FAILED}),
    _S.COMPENSATION_FAILED: frozenset({_S.COMPENSATING, _S.COMPENSATED}),
    _S.COMPENSATED: frozenset(),
}


def check_job(job_id: str, old: JobState, new: JobState) -> None:
    """Refuse a transition that is not in the table."""
    if new not in JOB_TRANSITIONS[old]:
        raise IllegalTransition(f"job {job_id} is {old}: it cannot become {new}")
