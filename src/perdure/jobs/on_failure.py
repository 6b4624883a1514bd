"""What follows when a job has failed: it is undone, parked for a person, or people are asked; pure.

undo    what the job did is undone, and the job ends
park    everything is kept, and a person resumes, retries, skips, undoes or cancels
ask     the same, and people are asked whether it is to be undone: yes undoes it, and no, or
        silence, leaves it parked
"""

from typing import Final

from msgspec import Struct

from perdure.base.errors import ApprovalExpired
from perdure.jobs.approval import Approval, ApprovalState
from perdure.jobs.definition import OnFailure, OnOutage
from perdure.jobs.failure import Failure, type_name

# What the question of "ask" is about. No entry of a journal has this identity, since it has no `#`.
UNDO_QUESTION: Final = "on_failure"


class FailureRules(Struct, frozen=True, kw_only=True):
    """What was said before about the failure of a job.

    Attributes:
        step: By the step that it failed at; None: nothing.
        job: By the job itself; None: nothing.
        app: By the app.
        on_outage: What an outage of another system does.
        is_cancelled: Somebody has cancelled it, and it was to finish first.
    """

    step: OnFailure | None = None
    job: OnFailure | None = None
    app: OnFailure = "undo"
    on_outage: OnOutage = "park"
    is_cancelled: bool = False


def after_failure(failure: Failure, rules: FailureRules) -> OnFailure:
    """Decide what follows the failure of a job.

    Silence of people and an outage are nobody's fault, so they undo nothing. An exception that the
    job declares in `raises` is an answer, which somebody waits for; and nobody continues a job that
    was cancelled.
    """
    if is_silence(failure) or (failure.outage and rules.on_outage == "park"):
        return "park"
    if failure.is_outcome or rules.is_cancelled:
        return "undo"
    return rules.step or rules.job or rules.app


def is_silence(failure: Failure) -> bool:
    """Whether nobody has answered in time; people have been told so already."""
    return failure.type == type_name(ApprovalExpired)


def begins_undo(approval: Approval) -> bool:
    """Whether people have said yes to the question whether a job that failed is to be undone."""
    return approval.step == UNDO_QUESTION and approval.state is ApprovalState.APPROVED
