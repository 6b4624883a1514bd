"""How a job asks people, and how it uses what they answer.

There are four ways to ask: `ctx.approve` in the code of a job, a gate before a step, a question in
the middle of a step (`StepContext.approve`, or a budget that does not suffice), and whether a job
that has failed is to be undone (`on_failure="ask"`). All of them write the same row, an `Approval`,
in one transaction with the record of what waits for it and with the notices to people. Then nothing
is held in memory: the answer wakes the job, on any worker, and the code reaches the same place
again and finds it.

So the question "may I?" is asked more than once, and each time it is decided anew:

* The last approval for this place in the journal is read. It counts only if it is *about* exactly
  this action: the same tenant, job, step, version, arguments and budget. If the code now wants
  something else, people are asked again.
* An approval is checked again right before the action (`is_usable`): meanwhile it may have expired,
  the approver may have lost the role, or the terms may have become stricter.
* A rejection is an answer. Silence is not a rejection: it parks the job. In either case people are
  asked again only after one of them has told the job to continue: otherwise a job could ask until
  somebody approves.
* People may edit the arguments. The edited arguments are judged again here, by the policy of this
  worker, since the program that accepted the edit may have had another policy.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypedDict

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
    OperationCancelled,
)
from perdure.engine import events
from perdure.engine.journal.run import Operation, Run
from perdure.engine.journal.step_exit import CallInProgress, StepExit
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
from perdure.jobs.definition import Step, spoken_name
from perdure.jobs.failure import Failure, failure_of
from perdure.jobs.gate import Gate, GateDecision, GatePass
from perdure.jobs.model import JobEvent, JournalEntry, WriteFields
from perdure.jobs.on_failure import UNDO_QUESTION
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.risk import Judgement, RiskLevel
from perdure.jobs.state import StepState
from perdure.jobs.text_limits import check_given

# The commands by which a person tells a job to continue, as its log names them.
RETRY: Final = ("retry.asked",)
_CONTINUE: Final = (*RETRY, "resume.asked", "skip.asked", "skip_item.asked")

_APPROVER: Final = frozenset({APPROVER})
_JUST_AFTER: Final = 0.001  # seconds
_MOST_NAMED: Final = 20  # of what would be undone


# Questions


class Question(Struct, frozen=True, kw_only=True):
    """What people are asked."""

    step: str  # the identity of the entry that waits
    title: str
    description: str = ""  # what the step does
    input: bytes  # the arguments of the action
    shown: Any = None  # what people see of them; None: all
    judgement: Judgement = Judgement(RiskLevel.HIGH)
    terms: ApprovalTerms | None = None
    version: str = "1"
    budget: bytes = b"null"
    # Judges the risk of other arguments; None: they cannot be edited.
    judge: Callable[[bytes], Judgement] | None = None
    edits: tuple[Edit, ...] = ()  # that made the arguments what they are

    def action(self, run: Run) -> Action:
        """Return everything that an answer is bound to."""
        return Action(
            tenant=run.job.tenant,
            job_id=run.job.id,
            step=self.step,
            version=self.version,
            input=self.input,
            budget=self.budget,
            revision=len(self.edits),
        )

    def is_subject_of(self, found: Approval, run: Run) -> bool:
        """Whether an approval is about this action, perhaps with edited arguments."""
        return found.asked == self.action(run)

    def edited_as(self, found: Approval) -> "Question":
        """Return the question with the arguments that people have agreed on."""
        if self.judge is None or not found.edits:
            return self
        packed = found.action.input
        return replace(self, input=packed, judgement=self.judge(packed), edits=found.edits)

    def approval(self, run: Run, earlier: Approval | None) -> Approval:
        """Return a new approval; it is later than an earlier one, whatever our clock says."""
        before = 0.0 if earlier is None else earlier.decided_at or earlier.created_at
        level = self.judgement.level
        return Approval(
            id=secrets.token_hex(16),
            tenant=run.job.tenant,
            job_id=run.job.id,
            step=self.step,
            action=self.action(run),
            title=self.title,
            description=self.description,
            created_at=max(run.now(), before + _JUST_AFTER),
            written_by_program=run.job.plan is not None,
            shown=self.input if self.shown is None else msgspec.json.encode(self.shown),
            edits=self.edits,
            risk=level,
            reasons=self.judgement.reasons,
            requester=run.job.user,
            terms=self.terms or run.node.policy.terms_for(level),
        )


async def last_asked(run: Run, step: str) -> Approval | None:
    """Return the last approval for the entry with this identity; None if there is none."""
    job_id = run.job.id
    return await run.ask(lambda store: store.approval_of_step(job_id, step))


async def _ask(run: Run, approval: Approval, *entries: JournalEntry) -> bool:
    """Write an approval, with the record of what waits for it and with the notices to people.

    Returns:
        False if nobody could answer: the job needs attention instead.
    """
    if (why := no_four_eyes(approval)) is not None:
        await run.write(*entries)
        run.end(NeedsAttention(failure_of(DefinitionError(why))))
        return False
    await run.write(*entries, **asking(run, approval))
    was_asked(run, approval)
    return True


def asking(run: Run, approval: Approval) -> WriteFields:
    """Return what is written to ask people."""
    told = {"approval": approval.id, "step": approval.step, "title": approval.title}
    event = JobEvent(
        type="approval.asked",
        data={**told, "risk": str(approval.risk), "hash": approval.action.hash},
        actor=run.node.owner,
    )
    notices = _notices(run, approval)
    return {"events": (event,), "approvals": (approval,), "notices": notices}


def was_asked(run: Run, approval: Approval) -> None:
    """Let people be notified of a question that is in the store."""
    if events.listens(events.APPROVAL_ASK):
        events.approval_asked(approval)
    run.node.notices_due.set()


def _notices(run: Run, approval: Approval) -> tuple[Notice, ...]:
    return tuple(
        Notice(
            id=digest("notice", approval.id, channel.name)[:32],
            tenant=approval.tenant,
            kind=NoticeKind.ASKED,
            job_id=approval.job_id,
            channel=channel.name,
            approval_id=approval.id,
        )
        for channel in run.node.policy.channels
    )


# Answers


def is_usable(run: Run, found: Approval, asked: Action, question: Question | None = None) -> bool:
    """Whether an approval allows an action; called right before the action.

    Every path to an action passes here: the gate of a step, a step that `ctx.approve` lets begin,
    `ctx.approve` itself, `StepContext.approve`, and the raise of a budget.

    Args:
        run: The run that wants to act.
        found: What people have decided.
        asked: The action, with the arguments that the code passes.
        question: Judges the arguments, if they can be edited.
    """
    people = run.node.policy.people
    roles = {each.person: each.roles for each in found.decisions}

    def lookup(id: str) -> Person | None:
        if people.contacts:
            known = people.by_id(found.tenant, id)
            return known if known is not None and known.id == id else None
        # This app lists nobody, so the program that accepted the decision knew the person.
        return Person(id=id, tenant=found.tenant, roles=roles.get(id, _APPROVER))

    if unusable(found, asked.hash, run.now(), lookup) is not None:
        return False
    if not found.edits:
        return True
    if question is None or question.judge is None:
        return False
    # The program that accepted the edit may have judged the arguments by another policy.
    level = question.judge(found.action.input).level
    if level == question.judgement.level:
        return level <= found.risk
    on_our_terms = replace(found, terms=run.node.policy.terms_for(level))
    return level <= found.risk and unusable(on_our_terms, asked.hash, run.now(), lookup) is None


async def is_continued(run: Run, found: Approval, commands: tuple[str, ...] = _CONTINUE) -> bool:
    """Whether a person has told the job to continue since an approval was decided."""
    job_id, since = run.job.id, found.decided_at or 0.0
    return await run.ask(lambda store: store.has_event(job_id, commands, since))


def _park_expired(run: Run, approval: Approval) -> None:
    """Park a job that nobody has answered. Silence is not a rejection, so nothing is undone."""
    text = f"nobody decided in time about {approval.title!r}: resume the job to ask again"
    run.end(NeedsAttention(failure_of(ApprovalExpired(text)), alerted=True))


# A step that waits for an answer


async def _wait_for_answer(
    step: CallInProgress, approval: Approval, entry: JournalEntry, *, is_new: bool
) -> None:
    """Make a step wait for an answer, asking first if the approval is new."""
    step.asked = approval.id  # before the write: the answer may come at once
    if not is_new:
        await step.run.write(entry)
    elif not await _ask(step.run, approval, entry):
        return
    await look_for_answer(step)


async def look_for_answer(step: CallInProgress) -> None:
    """Begin a step again if its question is answered; otherwise make it wait."""
    run, approval_id = step.run, step.asked
    assert approval_id is not None
    approval = await run.ask(lambda store: store.approval(approval_id))
    if approval is None:
        raise JobError(f"approval {approval_id} no longer exists")
    if approval.state is ApprovalState.PENDING:
        step.wait()
    elif approval.state is ApprovalState.EXPIRED:
        _park_expired(run, approval)
    else:
        step.asked = None
        step.start_again = True


# Gates: questions before a step


def pass_gate(step: CallInProgress, decision: GateDecision) -> bool:
    """Whether a step may begin now; if not, it begins again when its gate is open."""
    if decision.gate is Gate.RUN:
        return True
    work = _record if decision.gate is Gate.RECORD else _ask_about_call
    step.spawn(lambda: work(step, decision))
    return False


async def _record(step: CallInProgress, decision: GateDecision) -> None:
    """Log that a step begins, and open its gate, unless its pass has become void."""
    run, used = step.run, decision.opened_by
    if used is not None and not await _is_pass_usable(run, used):
        await _ask_about_call(step, decision)
        return
    data = {
        "step": step.entry.id,
        "risk": str(decision.judgement.level),
        "reasons": list(decision.judgement.reasons),
        "opened_by": None if used is None else used.approval,
    }
    event = JobEvent(type="step.gated", data=data, actor=run.node.owner)
    await run.write(step.entry, events=(event,))
    _open(step)


async def _is_pass_usable(run: Run, used: GatePass) -> bool:
    """Whether the approval that the code obtained is still valid for its action."""
    found = await last_asked(run, used.approval)
    asked = Question(step=used.approval, title="", input=used.packed).action(run)
    return found is not None and is_usable(run, found, asked)


async def _ask_about_call(step: CallInProgress, decision: GateDecision) -> None:
    """Find the answer about exactly this call, and ask if there is no usable one."""
    run, entry = step.run, step.entry
    question = Question(
        step=entry.id,
        title=f"{spoken_name(entry.name)} of job {run.job.name}",
        description=step.step.description,
        input=entry.input or b"null",
        judgement=decision.judgement,
        version=step.step.version,
        judge=partial(run.node.gatekeeper.judge, step.step, entry.name),
    )
    found = await last_asked(run, entry.id)
    if found is not None and question.is_subject_of(found, run):
        if found.state is ApprovalState.PENDING:
            await _wait_for_answer(step, found, entry, is_new=False)
            return
        if await _apply_decision(step, found, question):
            return
        if found.state is ApprovalState.APPROVED:
            question = question.edited_as(found)
    await _wait_for_answer(step, question.approval(run, found), entry, is_new=True)


async def _apply_decision(step: CallInProgress, found: Approval, question: Question) -> bool:
    """Carry out what was decided about a call; return False if people must be asked again."""
    run = step.run
    if found.state is not ApprovalState.APPROVED and await is_continued(run, found):
        return False
    if found.state is ApprovalState.REJECTED:
        last = found.decisions[-1]
        await step.refuse(ApprovalRejected(found.title, last.person, last.reason))
        return True
    if found.state is ApprovalState.EXPIRED:
        _park_expired(run, found)
        return True
    if not is_usable(run, found, question.action(run), question):
        return False
    if found.action.input != step.entry.input:
        step.take_arguments(found.action.input)
    _open(step)
    return True


def _open(step: CallInProgress) -> None:
    step.gate_open = step.start_again = True


# Whether a job that has failed is to be undone


def undo_question(run: Run, failure: Failure, undoes: Sequence[str]) -> Approval:
    """Return the question; a yes is carried out by the store, which needs no worker for that.

    Who has submitted the job may answer, too: they could also undo it without being asked.
    """
    level, failed = RiskLevel.HIGH, failure.step or "its code"
    shown = {"failed": failed, "error": failure.summary(), "would_undo": _some_of(undoes)}
    return Question(
        step=UNDO_QUESTION,
        title=f"Undo job {run.job.name}? {failed} has failed",
        description=_UNDO_OR_KEEP,
        input=encode([run.epoch, shown]),
        shown=shown,
        judgement=Judgement(level, ("it undoes everything that the job has done",)),
        terms=replace(run.node.policy.terms_for(level), four_eyes=False),
    ).approval(run, None)


_UNDO_OR_KEEP: Final = (
    "Approve: everything that the job has done is undone. Reject, or do not answer: it is kept, "
    "and the job waits until somebody resumes, retries, undoes or cancels it, or skips the step."
)


def _some_of(undoes: Sequence[str]) -> list[str]:
    more = len(undoes) - _MOST_NAMED
    return [*undoes[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]


# Questions in the middle of a step


async def answer_to(run: Run, question: Question) -> Approval:
    """Return the answer to a question that a running step asks.

    Raises:
        ExitForAnswer: There is no answer yet: the step exits until there is one.
        ExitExpired: Nobody answered in time.
    """
    found = await last_asked(run, question.step)
    if found is not None and question.is_subject_of(found, run):
        if found.state is ApprovalState.PENDING:
            raise ExitForAnswer(found, is_new=False)
        # A rejection stands if the job is resumed for another reason.
        if found.state is ApprovalState.REJECTED and not await is_continued(run, found, RETRY):
            return found
        if found.state is ApprovalState.APPROVED:
            if is_usable(run, found, question.action(run), question):
                return found
            question = question.edited_as(found)
        if found.state is ApprovalState.EXPIRED and not await is_continued(run, found):
            raise ExitExpired(found)
    raise ExitForAnswer(question.approval(run, found), is_new=True)


class ExitForAnswer(StepExit):
    """Leaves a step until a person has answered; it occupies no worker meanwhile."""

    def __init__(self, approval: Approval, *, is_new: bool) -> None:
        super().__init__(approval.title)
        self.approval = approval
        self.is_new = is_new

    async def apply(self, step: CallInProgress) -> None:
        await _wait_for_answer(step, self.approval, step.uncount(), is_new=self.is_new)


class ExitExpired(StepExit):
    """Leaves a step whose question has expired, and parks its job."""

    def __init__(self, approval: Approval) -> None:
        super().__init__(approval.title)
        self.approval = approval

    async def apply(self, step: CallInProgress) -> None:
        await step.run.write(step.uncount())
        _park_expired(step.run, self.approval)


# `ctx.approve`: questions in the code of a job


class Approved(Struct, frozen=True):
    """An approval: who gave it, through which channel, and why."""

    by: tuple[str, ...]
    reason: str = ""
    channel: str = ""


class NotApproved(Struct, frozen=True):
    """What is stored of any other answer."""

    title: str
    person: str | None = None  # None: nobody answered
    reason: str = ""

    def error(self) -> Exception:
        if self.person is None:
            return ApprovalExpired(f"nobody decided in time about {self.title!r}")
        return ApprovalRejected(self.title, self.person, self.reason)


def outcome_of(found: Approval) -> Approved | NotApproved:
    """Return what people decided."""
    last = found.decisions[-1] if found.decisions else None
    if found.state is ApprovalState.APPROVED and last is not None:
        by = tuple(each.person for each in found.decisions if each.verdict == "approve")
        return Approved(by, last.reason, last.channel)
    if found.state is ApprovalState.REJECTED and last is not None:
        return NotApproved(found.title, last.person, last.reason)
    return NotApproved(found.title)


class ApproveOptions(TypedDict, total=False):
    """The options of a question; see `JobContext.approve`."""

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
    """Return the question that a title and options describe."""
    check_given(title=title)
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

    __slots__ = ("_answer", "_approval", "_request")
    waits_for = "approval"

    def __init__(
        self, run: Run, entry: JournalEntry, request: ApproveRequest, *, recorded: bool
    ) -> None:
        super().__init__(run, entry, recorded=recorded)
        self._request = request
        self._approval: str | None = None
        self._answer: Approval | None = None  # that it has not used while it is raced
        if entry.state is StepState.SUCCEEDED and entry.output is not None:
            self._approve(decode(entry.output, Approved))
        elif entry.state is StepState.FAILED and entry.output is not None:
            self.finish(None, decode(entry.output, NotApproved).error())
        elif entry.state is StepState.SKIPPED:
            self.cancelled = True
            self.finish(None, OperationCancelled(f"{entry.id} was cancelled: nobody decided"))

    def _approve(self, approved: Approved) -> None:
        """Pass the approval to the code, and keep its pass for later steps."""
        request = self._request
        new = GatePass(self.entry.id, request.packed, request.level, request.opens)
        self.run.gate_passes = (*self.run.gate_passes, new)
        self.finish(approved)

    def start(self) -> None:
        if self._answer is not None and not self.raced:
            self.spawn(partial(self._use, self._answer))
        else:
            self.spawn(self._look)

    def on_news(self) -> None:
        if self._answer is None:
            self.spawn_again(self._look)

    def ready_at(self) -> float | None:
        return super().ready_at() if self._answer is None else self._answer.decided_at or 0.0

    async def _look(self) -> None:
        """Use the answer if there is one; otherwise ask, unless already asked, and wait."""
        found = await last_asked(self.run, self.entry.id)
        if found is None or await self._must_ask_again(found):
            found = self._question().approval(self.run, found)
            if not await _ask(self.run, found, self.entry):
                return
        self._approval = found.id
        if found.state is ApprovalState.PENDING:
            self.wait()
        elif self.raced:
            self._answer = found
            self.offer()
        else:
            await self._use(found)

    async def _must_ask_again(self, found: Approval) -> bool:
        question = self._question()
        if not question.is_subject_of(found, self.run):
            return True
        if found.state is ApprovalState.APPROVED:
            return not is_usable(self.run, found, question.action(self.run))
        decided = found.state is not ApprovalState.PENDING
        return decided and await is_continued(self.run, found)

    def _question(self) -> Question:
        request = self._request
        return Question(
            step=self.entry.id,
            title=request.title,
            input=request.packed,
            shown=request.details or {},
            judgement=Judgement(request.level),
            terms=request.terms,
        )

    async def _use(self, found: Approval) -> None:
        """Record a decision, and pass it to the code."""
        answer = outcome_of(found)
        if isinstance(answer, Approved):
            done = self.entry = self._ended(StepState.SUCCEEDED, encode(answer, Approved))
            await self.run.write(done, *self.along)
            self._approve(answer)
            return
        error = answer.error()
        failed = self._ended(StepState.FAILED, encode(answer, NotApproved))
        self.entry = replace(failed, error=failure_of(error).pack())
        await self.run.write(self.entry, *self.along)
        self.finish(None, error)

    def _ended(self, state: StepState, output: bytes) -> JournalEntry:
        return replace(self.entry, state=state, output=output, ended_at=self.run.now())

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "approval": self._approval, "title": self._request.title}
