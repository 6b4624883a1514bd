"""Questions of jobs to people: how they are asked, and how a step waits for the answer."""

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import digest
from perdure.base.errors import ApprovalExpired, DefinitionError, JobError
from perdure.engine import tell
from perdure.engine.leaving import Leaving
from perdure.engine.verdict import Parked
from perdure.jobs.approval import (
    APPROVER,
    Action,
    Approval,
    ApprovalState,
    Edit,
    Person,
    Terms,
    no_four_eyes,
    unusable,
)
from perdure.jobs.deeds import Deeds
from perdure.jobs.failure import failure_of
from perdure.jobs.model import Entry, Event
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.risk import Judgement, RiskLevel

if TYPE_CHECKING:
    from perdure.engine.run import Run
    from perdure.engine.step import StepOperation

_APPROVER = frozenset({APPROVER})
_JUST_AFTER = 0.001  # seconds
RETRIED = ("retry.asked",)
_LOOKED = (*RETRIED, "resume.asked", "skip.asked")


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
    # How dangerous it would be with another input; None: nobody can edit it.
    judge: Callable[[bytes], Judgement] | None = None
    edits: tuple[Edit, ...] = ()  # that made the input what it is

    def action(self, run: "Run") -> Action:
        """Give all that an answer is bound to."""
        return Action(
            tenant=run.job.tenant,
            job_id=run.job.id,
            step=self.step,
            version=self.version,
            input=self.input,
            budget=self.budget,
            revision=len(self.edits),
        )

    def edited_as(self, found: Approval) -> "Question":
        """Give the question with the arguments that people have agreed on."""
        if self.judge is None or not found.edits:
            return self
        packed = found.action.input
        return replace(self, input=packed, judgement=self.judge(packed), edits=found.edits)


def new_approval(run: "Run", question: Question, found: Approval | None = None) -> Approval:
    """Make the row of a question, behind the one that was asked before, whatever our clock says."""
    before = 0.0 if found is None else found.decided_at or found.created_at
    level = question.judgement.level
    shown = question.input if question.shown is None else msgspec.json.encode(question.shown)
    return Approval(
        id=secrets.token_hex(16),
        tenant=run.job.tenant,
        job_id=run.job.id,
        step=question.step,
        action=question.action(run),
        title=question.title,
        created_at=max(run.now(), before + _JUST_AFTER),
        written_by_program=run.job.plan is not None,
        shown=shown,
        edits=question.edits,
        risk=level,
        reasons=question.judgement.reasons,
        requester=run.job.user,
        terms=question.terms or run.node.rules.terms_for(level),
    )


async def ask(run: "Run", approval: Approval, *entries: Entry) -> bool:
    """Write a question, with what waits for its answer and with the notices to people.

    Returns:
        Whether it was asked; if nobody could answer it, the job is parked instead.
    """
    if (why := no_four_eyes(approval)) is not None:
        await run.write(*entries)
        run.end(Parked(failure_of(DefinitionError(why))))
        return False
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
    return True


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
    """Tell whether an approval is about this action, but perhaps with edited arguments."""
    return found.asked == question.action(run)


def usable_now(
    run: "Run", found: Approval, asked: Action, question: Question | None = None
) -> bool:
    """Tell, right before the action, whether it is allowed by an approval.

    Every path to an action comes by here: the gate of a step, a step that `ctx.approve` has opened,
    `ctx.approve` itself, `request_user_approval`, and the raise of a budget.

    Args:
        run: The run that wants to act.
        found: What people have said.
        asked: What the job wants to do, as its code gives it.
        question: How the arguments are judged, if they can be edited.
    """
    people = run.node.rules.people
    roles = {said.person: said.roles for said in found.decisions}

    def lookup(id: str) -> Person | None:
        if people.contacts:
            known = people.by_id(found.tenant, id)
            return known if known is not None and known.id == id else None
        # Nobody is listed here: who decided was known elsewhere.
        return Person(id=id, tenant=found.tenant, roles=roles.get(id, _APPROVER))

    if unusable(found, asked.hash, run.now(), lookup) is not None:
        return False
    if not found.edits:
        return True
    if question is None or question.judge is None:
        return False
    # The arguments may have been judged elsewhere, by other rules than ours.
    level = question.judge(found.action.input).level
    if level == question.judgement.level:
        return level <= found.risk
    on_our_terms = replace(found, terms=run.node.rules.terms_for(level))
    return level <= found.risk and unusable(on_our_terms, asked.hash, run.now(), lookup) is None


async def is_looked_at(run: "Run", found: Approval, commands: tuple[str, ...] = _LOOKED) -> bool:
    """Tell whether a person has told the job to go on since a question was decided."""
    job_id, since = run.job.id, found.decided_at or 0.0
    return await run.ask(lambda store: store.has_event(job_id, commands, since))


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
    if not is_new:
        await operation.run.write(entry)
    elif not await ask(operation.run, approval, entry):
        return
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
        # A no is an answer: a job that is resumed for another reason does not ask again.
        if found.state is ApprovalState.REJECTED and not await is_looked_at(run, found, RETRIED):
            return found
        if found.state is ApprovalState.APPROVED:
            if usable_now(run, found, question.action(run), question):
                return found
            question = question.edited_as(found)
        if found.state is ApprovalState.EXPIRED and not await is_looked_at(run, found):
            raise NobodyAnswered(found)
    raise AskFirst(new_approval(run, question, found), is_new=True)
