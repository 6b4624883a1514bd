"""Jobs that cannot go on before a person has looked at them: parked, and people alerted."""

import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import decode, digest, encode
from perdure.base.duration import Duration, job_seconds
from perdure.base.errors import (
    ApprovalExpired,
    ApprovalRejected,
    DefinitionError,
    JobError,
)
from perdure.engine import events
from perdure.engine.journal.run import Operation, Run
from perdure.engine.journal.step_exit import StepCall, StepExit
from perdure.engine.journal.verdict import NeedsAttention
from perdure.jobs.approval import (
    APPROVER,
    Action,
    Approval,
    ApprovalState,
    ApprovalTerms,
    Edit,
    Person,
    no_four_eyes,
    unusable,
)
from perdure.jobs.definition import Step
from perdure.jobs.failure import failure_of
from perdure.jobs.gate import Gate, GateDecision, GatePass
from perdure.jobs.model import JobEvent, JournalEntry
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.risk import Judgement, RiskLevel
from perdure.jobs.state import StepState


def parking_notices(run: Run, verdict: NeedsAttention) -> tuple[Notice, ...]:
    """Return the alerts that a job is parked; none if people have been told why already."""
    if verdict.alerted:
        return ()
    # A job that is resumed and parked again is told of again.
    return tuple(alerts(run, NoticeKind.STUCK, str(run.epoch), verdict.failure.summary()))


def alerts(run: Run, kind: NoticeKind, about: str, text: str) -> tuple[Notice, ...]:
    """Make an alert for every channel."""
    return tuple(
        Notice(
            id=digest("alert", run.job.id, kind.value, about, channel.name)[:32],
            tenant=run.job.tenant,
            kind=kind,
            job_id=run.job.id,
            channel=channel.name,
            due_at=run.now(),
            data=encode({"text": text}),
        )
        for channel in run.node.policy.channels
    )


# Questions of jobs to people: how they are asked, and how a step waits for the answer.

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
    terms: ApprovalTerms | None = None
    version: str = "1"
    budget: bytes = b"null"
    # How dangerous it would be with another input; None: nobody can edit it.
    judge: Callable[[bytes], Judgement] | None = None
    edits: tuple[Edit, ...] = ()  # that made the input what it is

    def action(self, run: Run) -> Action:
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


def new_approval(run: Run, question: Question, found: Approval | None = None) -> Approval:
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
        terms=question.terms or run.node.policy.terms_for(level),
    )


async def ask(run: Run, approval: Approval, *entries: JournalEntry) -> bool:
    """Write a question, with what waits for its answer and with the notices to people.

    Returns:
        Whether it was asked; if nobody could answer it, the job is parked instead.
    """
    if (why := no_four_eyes(approval)) is not None:
        await run.write(*entries)
        run.end(NeedsAttention(failure_of(DefinitionError(why))))
        return False
    told = {"approval": approval.id, "step": approval.step, "title": approval.title}
    event = JobEvent(
        type="approval.asked",
        data={**told, "risk": str(approval.risk), "hash": approval.action.hash},
        actor=run.node.owner,
    )
    asked = notices(run, approval)
    await run.write(*entries, events=(event,), approvals=(approval,), notices=asked)
    if events.listens(events.APPROVAL_ASK):
        events.approval_asked(approval)
    run.node.notices_due.set()
    return True


def notices(run: Run, approval: Approval) -> tuple[Notice, ...]:
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
        for channel in run.node.policy.channels
    )


async def last_asked(run: Run, step: str) -> Approval | None:
    """Read what was last asked for a step."""
    job_id = run.job.id
    return await run.ask(lambda store: store.approval_of_step(job_id, step))


def is_about(found: Approval, question: Question, run: Run) -> bool:
    """Tell whether an approval is about this action, but perhaps with edited arguments."""
    return found.asked == question.action(run)


def usable_now(run: Run, found: Approval, asked: Action, question: Question | None = None) -> bool:
    """Tell, right before the action, whether it is allowed by an approval.

    Every path to an action comes by here: the gate of a step, a step that `ctx.approve` has opened,
    `ctx.approve` itself, `request_user_approval`, and the raise of a budget.

    Args:
        run: The run that wants to act.
        found: What people have said.
        asked: What the job wants to do, as its code gives it.
        question: How the arguments are judged, if they can be edited.
    """
    people = run.node.policy.people
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
    on_our_terms = replace(found, terms=run.node.policy.terms_for(level))
    return level <= found.risk and unusable(on_our_terms, asked.hash, run.now(), lookup) is None


async def is_looked_at(run: Run, found: Approval, commands: tuple[str, ...] = _LOOKED) -> bool:
    """Tell whether a person has told the job to go on since a question was decided."""
    job_id, since = run.job.id, found.decided_at or 0.0
    return await run.ask(lambda store: store.has_event(job_id, commands, since))


class ExitForAnswer(StepExit):
    """Leaves a step until a person has answered; no worker is held meanwhile."""

    def __init__(self, approval: Approval, *, is_new: bool) -> None:
        super().__init__(approval.title)
        self.approval = approval
        self.is_new = is_new

    async def apply(self, step: StepCall) -> None:
        """Ask, unless that is done, and let the step wait."""
        await wait_for(step, self.approval, step.uncount(), is_new=self.is_new)


class ExitExpired(StepExit):
    """Leaves a step whose question has expired: a person must look at its job."""

    def __init__(self, approval: Approval) -> None:
        super().__init__(approval.title)
        self.approval = approval

    async def apply(self, step: StepCall) -> None:
        """Park the job; when it is resumed, people are asked again."""
        await step.run.write(step.uncount())
        park_expired(step.run, self.approval)


async def wait_for(
    operation: StepCall, approval: Approval, entry: JournalEntry, *, is_new: bool
) -> None:
    """Let a step wait for an answer."""
    # Known before it is written: an answer may come at once.
    operation.asked = approval.id
    if not is_new:
        await operation.run.write(entry)
    elif not await ask(operation.run, approval, entry):
        return
    await look_for_answer(operation)


async def look_for_answer(operation: StepCall) -> None:
    """Begin the step again if its question is answered; else let it wait on."""
    run, approval_id = operation.run, operation.asked
    assert approval_id is not None
    approval = await run.ask(lambda store: store.approval(approval_id))
    if approval is None:
        raise JobError(f"approval {approval_id} is gone")
    if approval.state is ApprovalState.PENDING:
        operation.wait()
    elif approval.state is ApprovalState.EXPIRED:
        park_expired(run, approval)
    else:
        operation.asked = None
        operation.start_again = True


def park_expired(run: Run, approval: Approval) -> None:
    """Park a job that nobody has answered; this is not a no, so nothing is undone."""
    text = f"nobody decided in time about {approval.title!r}: resume the job to ask again"
    run.end(NeedsAttention(failure_of(ApprovalExpired(text)), alerted=True))


async def answer_to(run: Run, question: Question) -> Approval:
    """Return the answer to a question of a step that is at work.

    Raises:
        ExitForAnswer: There is none yet.
        ExitExpired: Its time is over.
    """
    found = await last_asked(run, question.step)
    if found is not None and is_about(found, question, run):
        if found.state is ApprovalState.PENDING:
            raise ExitForAnswer(found, is_new=False)
        # A no is an answer: a job that is resumed for another reason does not ask again.
        if found.state is ApprovalState.REJECTED and not await is_looked_at(run, found, RETRIED):
            return found
        if found.state is ApprovalState.APPROVED:
            if usable_now(run, found, question.action(run), question):
                return found
            question = question.edited_as(found)
        if found.state is ApprovalState.EXPIRED and not await is_looked_at(run, found):
            raise ExitExpired(found)
    raise ExitForAnswer(new_approval(run, question, found), is_new=True)


# `ctx.approve`: a question that the code of a job asks by itself.


class Approved(Struct, frozen=True):
    """A yes: who said it, where, and why."""

    by: tuple[str, ...]
    reason: str = ""
    channel: str = ""


class _Said(Struct, frozen=True):
    """What is kept of an answer that is no yes."""

    title: str
    person: str | None = None  # None: nobody
    reason: str = ""

    def error(self) -> Exception:
        if self.person is None:
            return ApprovalExpired(f"nobody decided in time about {self.title!r}")
        return ApprovalRejected(self.title, self.person, self.reason)


class ApproveOptions(TypedDict, total=False):
    """What may be said of a question; see `JobContext.approve`."""

    details: Any
    risk: RiskLevel | str
    terms: ApprovalTerms
    expires: Duration
    opens: Iterable[Step[..., Any]]


class ApproveRequest(Struct, frozen=True):
    """A question as the code asks it."""

    title: str
    packed: bytes
    details: Any
    level: RiskLevel
    terms: ApprovalTerms
    opens: frozenset[str] | None


def approve_request(run: Run, title: str, options: ApproveOptions) -> ApproveRequest:
    """Make a question of what the code says."""
    level, opens = RiskLevel.of(options.get("risk", "high")), options.get("opens")
    names = None if opens is None else frozenset(run.node.registry.name(step) for step in opens)
    details = options.get("details")
    packed = encode([title, details, level.name, None if names is None else sorted(names)])
    terms = options.get("terms") or run.node.policy.terms_for(level)
    limit = job_seconds(options.get("expires"))
    terms = terms if limit is None else replace(terms, expires=limit)
    return ApproveRequest(title, packed, details, level, terms, names)


class Approve(Operation[Approved]):
    """A wait for a person."""

    __slots__ = ("_approval", "_asked")
    waits_for = "approval"

    def __init__(
        self, run: Run, entry: JournalEntry, asked: ApproveRequest, *, recorded: bool
    ) -> None:
        super().__init__(run, entry, recorded=recorded)
        self._asked = asked
        self._approval: str | None = None
        if entry.state is StepState.SUCCEEDED and entry.output is not None:
            self._say_yes(decode(entry.output, Approved))
        elif entry.state is StepState.FAILED and entry.output is not None:
            self.finish(None, decode(entry.output, _Said).error())

    def _say_yes(self, approved: Approved) -> None:
        asked = self._asked
        opening = GatePass(self.entry.id, asked.packed, asked.level, asked.opens)
        self.run.gate_passes = (*self.run.gate_passes, opening)
        self.finish(approved)

    def start(self) -> None:
        self.spawn(self._look)

    def on_news(self) -> None:
        if self in self.run.working:  # whatever it has just read may be old
            self.start_again = True
        else:
            self.spawn(self._look)

    async def _look(self) -> None:
        found = await last_asked(self.run, self.entry.id)
        if found is None or await self._is_over(found):
            found = new_approval(self.run, self._question(), found)
            if not await ask(self.run, found, self.entry):
                return
        self._approval = found.id
        if found.state is ApprovalState.PENDING:
            self.wait()
        else:
            await self._answered(found)

    async def _is_over(self, found: Approval) -> bool:
        """Tell whether people must be asked again: it was about something else, or is void."""
        question = self._question()
        if not is_about(found, question, self.run):
            return True
        if found.state is ApprovalState.APPROVED:
            return not usable_now(self.run, found, question.action(self.run))
        ended = found.state is not ApprovalState.PENDING
        return ended and await is_looked_at(self.run, found)

    def _question(self) -> Question:
        asked = self._asked
        return Question(
            step=self.entry.id,
            title=asked.title,
            input=asked.packed,
            shown=asked.details or {},
            judgement=Judgement(asked.level),
            terms=asked.terms,
        )

    async def _answered(self, found: Approval) -> None:
        last = found.decisions[-1] if found.decisions else None
        if found.state is ApprovalState.APPROVED and last is not None:
            by = tuple(each.person for each in found.decisions if each.verdict == "approve")
            approved = Approved(by, last.reason, last.channel)
            await self.run.write(self._ended(StepState.SUCCEEDED, encode(approved, Approved)))
            self._say_yes(approved)
            return
        rejected = found.state is ApprovalState.REJECTED and last is not None
        said = _Said(found.title, last.person, last.reason) if rejected and last else None
        said = said or _Said(found.title)
        error = said.error()
        failed = self._ended(StepState.FAILED, encode(said, _Said))
        await self.run.write(replace(failed, error=failure_of(error).pack()))
        self.finish(None, error)

    def _ended(self, state: StepState, output: bytes) -> JournalEntry:
        return replace(self.entry, state=state, output=output, ended_at=self.run.now())

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "approval": self._approval, "title": self._asked.title}


# Gates before steps: by risk, and before what cannot be undone.


def pass_gate(operation: StepCall, decision: GateDecision) -> bool:
    """Whether a step may begin now; if not, it begins again when its gate is open."""
    if decision.gate is Gate.RUN:
        return True
    work = _record if decision.gate is Gate.RECORD else _ask
    operation.spawn(lambda: work(operation, decision))
    return False


async def _record(operation: StepCall, way: GateDecision) -> None:
    opening = way.opened_by
    if opening is not None and not await _still_opens(operation.run, opening):
        await _ask(operation, way)
        return
    data = {"step": operation.entry.id, "risk": str(way.judgement.level)}
    opened_by = None if opening is None else opening.approval
    told = {"reasons": list(way.judgement.reasons), "opened_by": opened_by}
    event = JobEvent(type="step.gated", data={**data, **told}, actor=operation.run.node.owner)
    await operation.run.write(operation.entry, events=(event,))
    _open(operation)


async def _still_opens(run: Run, opening: GatePass) -> bool:
    """Tell whether the yes that the code has obtained can be used as of now."""
    found = await last_asked(run, opening.approval)
    asked = Question(step=opening.approval, title="", input=opening.packed).action(run)
    return found is not None and usable_now(run, found, asked)


def _open(operation: StepCall) -> None:
    operation.gate_open = operation.start_again = True


async def _ask(operation: StepCall, way: GateDecision) -> None:
    """Look for the answer about exactly this call; ask if there is none that can be used."""
    run, entry, step = operation.run, operation.entry, operation.step
    question = Question(
        step=entry.id,
        title=f"{entry.name} of job {run.job.name}",
        input=entry.input or b"null",
        judgement=way.judgement,
        version=step.version,
        judge=partial(run.node.gatekeeper.judge, step, entry.name),
    )
    found = await last_asked(run, entry.id)
    if found is not None and is_about(found, question, run):
        if found.state is ApprovalState.PENDING:
            await wait_for(operation, found, entry, is_new=False)
            return
        if await _is_settled(operation, found, question):
            return
        if found.state is ApprovalState.APPROVED:
            question = question.edited_as(found)
    await wait_for(operation, new_approval(run, question, found), entry, is_new=True)


async def _is_settled(operation: StepCall, found: Approval, question: Question) -> bool:
    run = operation.run
    if found.state is not ApprovalState.APPROVED and await is_looked_at(run, found):
        return False  # others are to be asked again after all
    if found.state is ApprovalState.REJECTED:
        said = found.decisions[-1]
        await operation.refuse(ApprovalRejected(found.title, said.person, said.reason))
        return True
    if found.state is ApprovalState.EXPIRED:
        park_expired(run, found)
        return True
    if not usable_now(run, found, question.action(run), question):
        return False
    if found.action.input != operation.entry.input:
        operation.take_arguments(found.action.input)
    _open(operation)
    return True
