"""What the API says about jobs, approvals, effects and the rest: the types of its answers.

A payload (input, result, output, …) is shown as plain JSON without the values of secret names. One
that is too large is null in its place, and beside it, under its name in `large`, are its size, its
beginning and the address of all of it. Nothing that a job stores is ever read as one of these.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from perdure.base.codec import read_plain, write_plain
from perdure.base.secret import without_secrets
from perdure.jobs.approval import Approval, ApprovalState, Person, Refusal, why_not
from perdure.jobs.budget import Amount, Budget
from perdure.jobs.effect import Effect, EffectState
from perdure.jobs.failure import Failure
from perdure.jobs.gate import is_final
from perdure.jobs.listing import JobFacts, JobRow, is_undone
from perdure.jobs.model import EntryKind, JobEvent, JobMessage, JournalEntry
from perdure.jobs.output import OutputPiece, OutputTopic
from perdure.jobs.payload import PREVIEW, stand_in_of
from perdure.jobs.redaction import for_people
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import ENDED, LIVE, JobState, StepState
from perdure.notify.message import shown_before
from perdure.web.access.principal import Permission, Principal

V = TypeVar("V", bound=Struct)

INLINE: Final = 8 * 1024  # bytes of a payload that are shown where it occurs


def view_of(kind: type[V], source: object, **more: Any) -> V:
    """Return a view: `more`, and else the fields of the same name of what it shows."""
    same = {name: getattr(source, name) for name in kind.__struct_fields__ if name not in more}
    return kind(**same, **more)


# Payloads


class LargePayload(Struct, frozen=True, kw_only=True):
    """What is shown of a large payload; without `href`, only its digest was kept."""

    bytes: int
    preview: str
    href: str | None


def payload_fields(**stored: tuple[bytes | None, str]) -> dict[str, Any]:
    """Return the fields of a view that show payloads, and its field `large`.

    Args:
        stored: By the name of the field, what is stored, and the address of all of it.
    """
    large = {name: found for name, each in stored.items() if (found := _large(*each)) is not None}
    shown = {
        name: None if data is None or name in large else for_people(data)
        for name, (data, _) in stored.items()
    }
    return {**shown, "large": large}


def _large(data: bytes | None, href: str) -> LargePayload | None:
    stand_in = stand_in_of(data)
    if stand_in is not None:
        where = href if stand_in.chunks else None
        return LargePayload(bytes=stand_in.size, preview=stand_in.preview, href=where)
    if data is None or len(data) <= INLINE:
        return None
    return LargePayload(bytes=len(data), preview=preview_of(data), href=href)


def preview_of(data: bytes) -> str:
    """Return the beginning of a payload, without secrets."""
    text = data[: 8 * PREVIEW].decode(errors="ignore")
    return without_secrets(text)[:PREVIEW] + "…"


def payload_text(data: bytes) -> str:
    """Return all of a payload as JSON text, without the values of secret names."""
    return write_plain(for_people(data)).decode(errors="replace")


# Jobs


class FailureView(Struct, frozen=True, kw_only=True):
    """Why a job or a step failed, or needs attention."""

    type: str
    message: str
    trace: str
    attempt: int
    permanent: bool
    outage: bool
    step: str
    standing: tuple[str, ...]
    summary: str


def failure_view(data: bytes | None) -> FailureView | None:
    """Return a stored failure."""
    if data is None:
        return None
    found = Failure.unpack(data)
    return view_of(FailureView, found, summary=found.summary())


class BudgetView(Struct, frozen=True, kw_only=True):
    """What a tree of jobs may spend, and has spent."""

    job: str  # whose budget it is
    limits: dict[str, float | None]
    spent: dict[str, float]
    reserved: dict[str, float]
    by_others: dict[str, float]  # by children and forks
    began_at: float


def budget_view(budget: Budget | None) -> BudgetView | None:
    """Return a budget."""
    if budget is None:
        return None
    return BudgetView(
        job=budget.root,
        limits=msgspec.to_builtins(budget.limits),
        spent=_amount(budget.spent),
        reserved=_amount(sum(budget.reserved.values(), Amount())),
        by_others=_amount(budget.gone_by_others),
        began_at=budget.began_at,
    )


def _amount(amount: Amount) -> dict[str, float]:
    return {"usd": amount.usd, "tokens": amount.tokens, "calls": amount.calls}


class TopicView(Struct, frozen=True, kw_only=True):
    """A topic of the output of a job, and how much of it is kept."""

    topic: str
    pieces: int
    bytes: int
    last: int
    dropped: int


def topic_view(topic: OutputTopic) -> TopicView:
    """Return a topic."""
    return view_of(TopicView, topic, bytes=topic.size)


class JobDetail(JobRow, frozen=True, kw_only=True):
    """A job with everything that is not a list of its own."""

    input: Any
    result: Any
    large: dict[str, LargePayload]  # those that are too large, by the name of their field
    failure: FailureView | None
    wait: Any  # what it waits for, as its worker stored it
    request: str | None  # "cancel" or "pause", asked for and not yet carried out
    deadline_at: float | None
    due_at: float | None
    forked_from: str | None
    is_plan: bool
    calls: Any  # those of a plan
    children: int
    entries: int
    topics: list[TopicView]
    budget: BudgetView | None
    unserved: str | None  # why no worker can claim it, although it is due
    allowed: list[str]  # what this principal may do with it now


_ACTIONS: Final[Mapping[str, tuple[Permission, frozenset[JobState]]]] = {
    "cancel": (Permission.JOBS_CANCEL, frozenset(JobState) - ENDED),
    "pause": (Permission.JOBS_PAUSE, frozenset(LIVE)),
    "resume": (Permission.JOBS_RESUME, frozenset({JobState.PAUSED, JobState.NEEDS_ATTENTION})),
    "retry": (
        Permission.JOBS_RETRY,
        frozenset({JobState.FAILED, JobState.CANCELLED, JobState.NEEDS_ATTENTION}),
    ),
    "skip": (
        Permission.JOBS_SKIP,
        frozenset({JobState.FAILED, JobState.NEEDS_ATTENTION, JobState.WAITING, JobState.PAUSED}),
    ),
    "compensate": (
        Permission.JOBS_COMPENSATE,
        frozenset({JobState.FAILED, JobState.CANCELLED, JobState.NEEDS_ATTENTION}),
    ),
    "abandon_undo": (Permission.JOBS_ABANDON, frozenset({JobState.NEEDS_ATTENTION})),
    "send": (Permission.JOBS_SEND, frozenset(JobState) - ENDED),
    "fork": (Permission.JOBS_FORK, frozenset(JobState)),
}


# What is of no use once a job has ended and was undone: see `_refuse_if_nothing_is_left`.
_ONCE: Final = frozenset({"retry", "skip", "compensate"})


def allowed(facts: JobFacts, principal: Principal) -> list[str]:
    """Return what a principal may do with a job in its state."""
    job = facts.job
    over = job.state in ENDED and is_undone(facts) and not job.failed_undos
    return [
        action
        for action, (permission, states) in _ACTIONS.items()
        if job.state in states and principal.may(permission) and not (over and action in _ONCE)
    ]


class EntryView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of a journal; with `slim`, and where there is none, a payload is left out."""

    seq: int
    id: str
    kind: EntryKind
    name: str
    state: StepState
    attempt: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    wake_at: float | None = None
    input: Any = None
    output: Any = None
    error: FailureView | None = None
    checkpoint: Any = None
    checkpoint_no: int = 0
    large: dict[str, LargePayload] = {}


def entry_view(entry: JournalEntry, href: str) -> EntryView:
    """Return an entry of a journal; `href` is where the payloads of its job are."""
    at = f"{href}/{entry.seq}"
    return EntryView(
        seq=entry.seq,
        id=entry.id,
        kind=entry.kind,
        name=entry.name,
        state=entry.state,
        attempt=entry.attempt,
        started_at=entry.started_at,
        ended_at=entry.ended_at,
        wake_at=entry.wake_at,
        error=failure_view(entry.error),
        checkpoint_no=entry.checkpoint_no,
        **payload_fields(
            input=(entry.input, f"{at}/input"),
            output=(entry.output, f"{at}/output"),
            checkpoint=(entry.checkpoint, f"{at}/checkpoint"),
        ),
    )


class EventView(Struct, frozen=True, kw_only=True):
    """A line in the log of a job."""

    no: int
    type: str
    actor: str
    at: float
    data: dict[str, Any]


def event_view(event: JobEvent) -> EventView:
    """Return a line of a log."""
    return view_of(EventView, event, data=for_people(write_plain(event.data)))


class MessageView(Struct, frozen=True, kw_only=True):
    """A message to a job that it has not received yet."""

    no: int
    topic: str
    payload: Any
    sent_at: float


def message_view(message: JobMessage) -> MessageView:
    """Return a message."""
    return view_of(MessageView, message, payload=for_people(message.payload))


class PieceView(Struct, frozen=True, kw_only=True):
    """A piece of the output of a job: see `OutputPiece`."""

    position: int
    kind: str
    step: str
    attempt: int
    at: float
    value: Any
    discards: int | None


def piece_view(piece: OutputPiece) -> PieceView:
    """Return a piece of output."""
    return view_of(PieceView, piece, value=for_people(piece.data))


# Effects


class EffectView(Struct, frozen=True, kw_only=True):
    """A line of the ledger of effects."""

    job: str
    no: int
    tenant: str
    kind: str
    target: str
    state: EffectState
    step: str
    key: str
    generation: int
    in_doubt: str
    details: Any
    result: Any
    problem: str | None
    error: FailureView | None
    undo: str | None
    stays: bool
    proof: str
    called_at: float
    ended_at: float | None


def effect_view(effect: Effect) -> EffectView:
    """Return a line of the ledger."""
    return view_of(
        EffectView,
        effect,
        job=effect.job_id,
        step=effect.place.step,
        details=None if effect.details is None else for_people(effect.details),
        result=None if effect.result is None else for_people(effect.result),
        error=failure_view(effect.error),
        undo=None if effect.undo is None else effect.undo.step,
    )


# Approvals


class ActionView(Struct, frozen=True, kw_only=True):
    """What is done if the answer is yes."""

    text: str
    step: str
    arguments: Any
    version: str
    revision: int
    hash: str  # pass it with the decision


class EditView(Struct, frozen=True, kw_only=True):
    """Who edited the arguments, and how."""

    person: str
    at: float
    before: Any
    after: Any
    raised: bool


class VoteView(Struct, frozen=True, kw_only=True):
    """A vote that counted."""

    person: str
    verdict: str
    at: float
    channel: str
    reason: str
    is_current: bool  # it is about the action in its present form


class MayDecide(Struct, frozen=True, kw_only=True):
    """Whether the principal may decide, and why not."""

    ok: bool
    code: str = ""
    why: str = ""


class ApprovalView(Struct, frozen=True, kw_only=True):
    """One question to people, and the answers so far."""

    id: str
    tenant: str
    job: str
    step: str
    title: str
    description: str
    written_by_program: bool
    action: ActionView
    risk: str
    reasons: tuple[str, ...]
    requester: str
    state: ApprovalState
    asked_at: float
    expires_at: float | None
    decided_at: float | None
    edits: list[EditView]
    votes: list[VoteView]
    needed: int  # how many people must approve
    approvers: list[str]
    four_eyes: bool
    escalated: bool
    delegates: tuple[tuple[str, str], ...]
    may_decide: MayDecide
    needs_recent_sign_in: bool
    alone: bool  # too risky to be decided together with others: HIGH, or it cannot be undone


def approval_view(approval: Approval, person: Person, now: float) -> ApprovalView:
    """Return an approval as one person sees it."""
    action = approval.action
    return view_of(
        ApprovalView,
        approval,
        job=approval.job_id,
        action=view_of(
            ActionView, action, text=approval.title, arguments=for_people(approval.shown)
        ),
        risk=approval.risk.name,
        asked_at=approval.created_at,
        edits=_edits(approval),
        votes=_votes(approval),
        needed=approval.terms.quorum,
        approvers=sorted(approval.terms.approvers),
        four_eyes=approval.terms.four_eyes,
        may_decide=_may_decide(why_not(approval, person, now)),
        needs_recent_sign_in=approval.risk >= RiskLevel.HIGH,
        alone=approval.risk >= RiskLevel.HIGH or is_final(approval.reasons),
    )


def _may_decide(refusal: Refusal | None) -> MayDecide:
    if refusal is None:
        return MayDecide(ok=True)
    return MayDecide(ok=False, code=refusal.code.replace(" ", "_"), why=refusal.text)


def _edits(approval: Approval) -> list[EditView]:
    seen = [*map(shown_before, approval.edits), for_people(approval.shown)]
    return [
        view_of(EditView, edit, before=before, after=after)
        for edit, before, after in zip(approval.edits, seen, seen[1:], strict=False)
    ]


def _votes(approval: Approval) -> list[VoteView]:
    return [
        view_of(VoteView, each, is_current=each.action_hash == approval.action.hash)
        for each in approval.decisions
    ]


def plain(data: bytes | None) -> Any:
    """Return stored JSON as plain values."""
    return None if data is None else read_plain(data)


def plan_calls(plan: bytes | None) -> Any:
    """Return the calls of a plan, without the values of secret names; None for any other job."""
    return None if plan is None else for_people(plan)
