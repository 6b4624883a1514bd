"""Questions of jobs to people: how they are asked, and how a step waits for the answer."""

import secrets
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import digest
from perdure.base.errors import ApprovalExpired, JobError
from perdure.engine import tell
from perdure.engine.leaving import Leaving
from perdure.engine.verdict import Parked
from perdure.jobs.approval import Action, Approval, ApprovalState, Terms
from perdure.jobs.deeds import Deeds
from perdure.jobs.failure import failure_of
from perdure.jobs.model import Entry, Event
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.risk import Judgement, RiskLevel

if TYPE_CHECKING:
    from perdure.engine.run import Run
    from perdure.engine.step import StepOperation

_LOOKED = ("resume.asked", "retry.asked", "skip.asked")


class Question(Struct, frozen=True, kw_only=True):
    """What a person is asked."""

    step: str  # the identity of what waits
    title: str
    input: bytes  # what exactly would be done
    shown: Any = None  # what people see of it; None: the input
    judgement: Judgement = Judgement(RiskLevel.HIGH)
    terms: Terms | None = None
    version: str = "1"
    budget: bytes = b"null"
    from_plan: bool = False

    def action(self, run: "Run") -> Action:
        """Give all that an answer is bound to."""
        return Action(
            tenant=run.job.tenant,
            job_id=run.job.id,
            step=self.step,
            version=self.version,
            input=self.input,
            budget=self.budget,
        )


def new_approval(run: "Run", question: Question) -> Approval:
    """Make the row of a question."""
    level = question.judgement.level
    shown = question.input if question.shown is None else msgspec.json.encode(question.shown)
    return Approval(
        id=secrets.token_hex(16),
        tenant=run.job.tenant,
        job_id=run.job.id,
        step=question.step,
        action=question.action(run),
        title=question.title,
        created_at=run.now(),
        written_by_program=run.job.plan is not None,
        shown=shown,
        risk=level,
        reasons=question.judgement.reasons,
        requester=run.job.user,
        terms=question.terms or run.node.rules.terms_for(level),
    )


async def ask(run: "Run", approval: Approval, *entries: Entry) -> None:
    """Write a question, with what waits for its answer and with the notices to people."""
    told = {"approval": approval.id, "step": approval.step, "title": approval.title}
    event = Event(
        type="approval.asked",
        data={**told, "risk": str(approval.risk), "hash": approval.action.hash},
        actor=run.node.owner,
    )
    deeds = Deeds(approvals=(approval,), notices=notices(run, approval))
    await run.write(*entries, events=(event,), deeds=deeds)
    if tell.listens(tell.APPROVAL_ASK):
        tell.approval_asked(approval)
    run.node.told.set()


def notices(run: "Run", approval: Approval) -> tuple[Notice, ...]:
    """Make what every channel is to tell."""
    return tuple(
        Notice(
            id=digest("notice", approval.id, channel.name)[:32],
            tenant=approval.tenant,
            kind=NoticeKind.ASKED,
            job_id=approval.job_id,
            channel=channel.name,
            due_at=run.now(),
            approval_id=approval.id,
        )
        for channel in run.node.rules.channels
    )


async def last_asked(run: "Run", step: str) -> Approval | None:
    """Read what was last asked for a step."""
    job_id = run.job.id
    return await run.ask(lambda store: store.approval_of_step(job_id, step))


def is_about(found: Approval, question: Question, run: "Run") -> bool:
    """Tell whether an approval is about this action, but perhaps with other arguments."""
    action = question.action(run)
    edited = any(decision.input is not None for decision in found.decisions)
    return found.action == action or (
        edited and replace(found.action, input=action.input) == action
    )


async def is_looked_at(run: "Run", since: float) -> bool:
    """Tell whether a person has told the job to go on since a time."""
    job_id = run.job.id
    return await run.ask(lambda store: store.has_event(job_id, _LOOKED, since))


class AskFirst(Leaving):
    """Leaves a step until a person has answered; no worker is held meanwhile."""

    def __init__(self, approval: Approval, *, is_new: bool) -> None:
        super().__init__(approval.title)
        self.approval = approval
        self.is_new = is_new

    async def settle(self, operation: "StepOperation[Any]") -> None:
        """Ask, unless that is done, and let the step wait."""
        await wait_for(operation, self.approval, operation.put_back(), is_new=self.is_new)


class NobodyAnswered(Leaving):
    """Leaves a step whose question has expired: a person must look at its job."""

    def __init__(self, approval: Approval) -> None:
        super().__init__(approval.title)
        self.approval = approval

    async def settle(self, operation: "StepOperation[Any]") -> None:
        """Park the job; when it is resumed, people are asked again."""
        await operation.run.write(operation.put_back())
        park_expired(operation.run, self.approval)


async def wait_for(
    operation: "StepOperation[Any]", approval: Approval, entry: Entry, *, is_new: bool
) -> None:
    """Let a step wait for an answer."""
    # Known before it is written: an answer may come at once.
    operation.asked = approval.id
    if is_new:
        await ask(operation.run, approval, entry)
    else:
        await operation.run.write(entry)
    await look_for_answer(operation)


async def look_for_answer(operation: "StepOperation[Any]") -> None:
    """Begin the step again if its question is answered; else let it wait on."""
    run, approval_id = operation.run, operation.asked
    assert approval_id is not None
    approval = await run.ask(lambda store: store.approval(approval_id))
    if approval is None:
        raise JobError(f"approval {approval_id} is gone")
    if approval.state is ApprovalState.PENDING:
        run.wait(operation)
    elif approval.state is ApprovalState.EXPIRED:
        park_expired(run, approval)
    else:
        operation.asked = None
        operation.again = True


def park_expired(run: "Run", approval: Approval) -> None:
    """Park a job that nobody has answered; this is not a no, so nothing is undone."""
    text = f"nobody decided in time about {approval.title!r}: resume the job to ask again"
    run.end(Parked(failure_of(ApprovalExpired(text)), told=True))


async def answer_to(operation: "StepOperation[Any]", question: Question) -> Approval:
    """Give the answer to a question of a step that is at work.

    Raises:
        AskFirst: There is none yet.
        NobodyAnswered: Its time is over.
    """
    try:
        return await _answer(operation.run, question)
    except Leaving as leaving:
        if operation.context is not None:
            operation.context.leave(leaving)
        raise


async def _answer(run: "Run", question: Question) -> Approval:
    found = await last_asked(run, question.step)
    if found is not None and is_about(found, question, run):
        if found.state is ApprovalState.PENDING:
            raise AskFirst(found, is_new=False)
        if found.state in (ApprovalState.APPROVED, ApprovalState.REJECTED):
            return found
        if found.state is ApprovalState.EXPIRED and not await is_looked_at(
            run, found.decided_at or 0.0
        ):
            raise NobodyAnswered(found)
    raise AskFirst(new_approval(run, question), is_new=True)
