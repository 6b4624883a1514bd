"""The states of jobs and steps, and the table of transitions of each."""

from enum import StrEnum
from typing import Final

from perdure.base.errors import IllegalTransition


class JobState(StrEnum):
    """The state of a job."""

    PENDING = "PENDING"  # submitted, never claimed
    RUNNING = "RUNNING"  # a worker owns it
    WAITING = "WAITING"  # for a timer, a message, a child or a decision; occupies no worker
    PAUSED = "PAUSED"  # by a person, and only a person resumes it
    COMPENSATING = "COMPENSATING"  # it failed or was cancelled, and is undoing what it did
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    COMPENSATED = "COMPENSATED"
    CANCELLED = "CANCELLED"
    NEEDS_ATTENTION = "NEEDS_ATTENTION"  # parked: a person must act, and the job's error says why


class StepState(StrEnum):
    """The state of a step, or of any other journal entry."""

    PENDING = "PENDING"  # waits: for a timer, a message, a decision or its next attempt
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    COMPENSATING = "COMPENSATING"
    COMPENSATED = "COMPENSATED"
    COMPENSATION_FAILED = "COMPENSATION_FAILED"
    SKIPPED = "SKIPPED"  # a person said that it is done, or not needed


_J, _S = JobState, StepState

ENDED: Final = frozenset({_J.COMPLETED, _J.FAILED, _J.COMPENSATED, _J.CANCELLED})

# A worker may claim a job in any of these states. The lease, not the state, says who owns it:
# a job whose worker died is still RUNNING.
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
    # A person may retry a failed job; an undone one stays undone.
    _J.FAILED: frozenset({_J.PENDING, _J.COMPENSATING}),
    _J.CANCELLED: frozenset({_J.PENDING, _J.COMPENSATING}),
    _J.COMPLETED: frozenset({_J.COMPENSATING}),  # only when its parent failed
    _J.COMPENSATED: frozenset(),
}

STEP_TRANSITIONS: Final[dict[StepState, frozenset[StepState]]] = {
    _S.PENDING: frozenset({_S.RUNNING, _S.PENDING, _S.SUCCEEDED, _S.FAILED, _S.SKIPPED}),
    _S.RUNNING: frozenset({_S.RUNNING, _S.PENDING, _S.SUCCEEDED, _S.FAILED, _S.SKIPPED}),
    _S.FAILED: frozenset({_S.PENDING, _S.RUNNING, _S.SKIPPED, _S.COMPENSATING}),
    # A stored result never changes; it can only be undone.
    _S.SUCCEEDED: frozenset({_S.COMPENSATING}),
    _S.SKIPPED: frozenset({_S.PENDING}),
    _S.COMPENSATING: frozenset({_S.COMPENSATING, _S.COMPENSATED, _S.COMPENSATION_FAILED}),
    _S.COMPENSATION_FAILED: frozenset({_S.COMPENSATING, _S.COMPENSATED}),
    _S.COMPENSATED: frozenset(),
}


def check_job(job_id: str, old: JobState, new: JobState) -> None:
    """Raise IllegalTransition unless the table has this transition."""
    if new not in JOB_TRANSITIONS[old]:
        raise IllegalTransition(f"job {job_id} is {old}: it cannot become {new}")
