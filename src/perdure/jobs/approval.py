"""Approvals: one question to people about exactly one action; pure.

    PENDING ── APPROVED    enough people said yes, to this very action
        ├───── REJECTED    one said no
        ├───── EXPIRED     nobody said enough in time, which is not a no
        └───── WITHDRAWN   the job needs no answer any more

An approval is bound to a hash of all that will be done. Whoever decides, decides about that hash;
what is run later must have it, or is asked about anew.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import digest
from perdure.base.errors import IllegalTransition
from perdure.jobs.risk import RiskLevel

Verdict: TypeAlias = Literal["approve", "reject"]

APPROVER: Final = "approver"  # the role that may decide where no persons are named
LONGEST_REASON: Final = 2000


class ApprovalState(StrEnum):
    """Where an approval stands."""

    PENDING = "PENDING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"
    WITHDRAWN = "WITHDRAWN"


class Action(Struct, frozen=True, kw_only=True):
    """All that is approved; another input, version or budget is another action."""

    tenant: str
    job_id: str
    step: str  # its identity in the job
    version: str = "1"
    input: bytes = b"null"  # resolved, as it is stored
    effects: tuple[str, ...] = ()  # what it will do to the world, as far as that is known
    budget: bytes = b"null"

    @property
    def hash(self) -> str:
        """Tell this action from every other."""
        return digest(
            "action",
            self.tenant,
            self.job_id,
            self.step,
            self.version,
            self.input,
            str(len(self.effects)),
            *self.effects,
            self.budget,
        )


class Terms(Struct, frozen=True, kw_only=True):
    """Who must say yes, and in which time (seconds).

    Attributes:
        quorum: So many different people must approve.
        four_eyes: Who asked for the job does not decide about it.
        approvers: The people who may decide; empty: whoever has the role `approver`.
        expires: Wait so long; None: until somebody answers.
        valid: A yes can be used so long; then it is asked again.
        remind: Tell them again so often; None: never.
        escalate: After so long others are asked, too …
        escalate_to: … namely these.
    """

    quorum: int = 1
    four_eyes: bool = True
    approvers: frozenset[str] = frozenset()
    expires: float | None = None
    valid: float = 24 * 3600.0
    remind: float | None = None
    escalate: float | None = None
    escalate_to: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.quorum < 1:
            raise ValueError(f"a quorum is at least 1, not {self.quorum}")
        if self.approvers and len(self.approvers | self.escalate_to) < self.quorum:
            raise ValueError(f"{self.quorum} people must approve, and fewer are named")


class Person(Struct, frozen=True, kw_only=True):
    """Who decides, as the channel has proved it. An account of a program is no person."""

    id: str
    tenant: str
    roles: frozenset[str] = frozenset()
    is_program: bool = False


class Decision(Struct, frozen=True, kw_only=True):
    """What one person said."""

    person: str
    verdict: Verdict
    action_hash: str  # to which action
    at: float
    channel: str = ""  # "slack", "mail", "api", "cli"
    reason: str = ""
    input: bytes | None = None  # other arguments than those that were asked about


class Approval(Struct, frozen=True, kw_only=True):
    """One question, and the answers to it.

    Attributes:
        id: Unguessable.
        tenant: The tenant of the job.
        job_id: The job that waits.
        step: The identity of what it waits before.
        action: What is asked about; edited arguments change it.
        title: What it is about, in one line.
        written_by_program: The title and what is shown are a program's words, not our code's.
        shown: What people see of it, as JSON: the arguments, by name.
        risk: How dangerous it is …
        reasons: … and why.
        requester: Who asked for the job.
        terms: Who must say yes.
        state: Where it stands.
        created_at: When it was asked.
        decided_at: When it became what it is.
        decisions: What was said so far.
        delegates: Who may decide instead of whom.
        escalated: Whether others were asked, too.
        reminded_at: When they were last told.
        warned: Whether they were told that it expires soon.
        no: Grows with every change: a change is written only over the one that it was made from.
    """

    id: str
    tenant: str
    job_id: str
    step: str
    action: Action
    title: str
    created_at: float
    written_by_program: bool = False
    shown: bytes = b"{}"
    risk: RiskLevel = RiskLevel.HIGH
    reasons: tuple[str, ...] = ()
    requester: str = ""
    terms: Terms = Terms()
    state: ApprovalState = ApprovalState.PENDING
    decided_at: float | None = None
    decisions: tuple[Decision, ...] = ()
    delegates: tuple[tuple[str, str], ...] = ()
    escalated: bool = False
    reminded_at: float | None = None
    warned: bool = False
    no: int = 0

    @property
    def expires_at(self) -> float | None:
        """When it stops waiting."""
        return None if self.terms.expires is None else self.created_at + self.terms.expires

    def changed(self, **changes: Any) -> "Approval":
        """Give it as the next version of itself."""
        return replace(self, no=self.no + 1, **changes)

    def ended(self, state: ApprovalState, now: float, *decisions: Decision) -> "Approval":
        """Give it as one that has become what it stays."""
        said = (*self.decisions, *decisions)
        return self.changed(state=state, decided_at=now, decisions=said)


# Deciding


class Refusal(Struct, frozen=True):
    """Why a decision does not count. `code` is for programs, `text` for people."""

    code: Literal[
        "not found",
        "decided",
        "repeated",
        "expired",
        "changed",
        "not allowed",
        "four eyes",
        "wrong code",
    ]
    text: str


class Vote(Struct, frozen=True, kw_only=True):
    """What a person wants to say: a decision that is not yet judged."""

    person: Person
    verdict: Verdict
    action_hash: str
    channel: str = ""
    reason: str = ""
    edited: Action | None = None  # approve, but with this input; already validated


def decide(approval: Approval, vote: Vote, now: float) -> Approval | Refusal:
    """Judge a vote.

    Returns:
        The approval with the vote in it, to be written over the version that it was judged by;
        or the reason why it does not count.
    """
    refusal = _refuse(approval, vote, now)
    if refusal is not None:
        return refusal
    decision = Decision(
        person=vote.person.id,
        verdict=vote.verdict,
        action_hash=approval.action.hash,
        at=now,
        channel=vote.channel,
        reason=vote.reason[:LONGEST_REASON],
    )
    if vote.verdict == "reject":
        return approval.ended(ApprovalState.REJECTED, now, decision)
    if vote.edited is not None:
        # Those who said yes before said it to another action.
        decision = replace(decision, action_hash=vote.edited.hash, input=vote.edited.input)
        approval = replace(approval, action=vote.edited)
    if len(_yes(approval)) + 1 < approval.terms.quorum:
        return approval.changed(decisions=(*approval.decisions, decision))
    return approval.ended(ApprovalState.APPROVED, now, decision)


def _yes(approval: Approval) -> set[str]:
    """Tell who has approved the action as it is now."""
    return {
        each.person
        for each in approval.decisions
        if each.verdict == "approve" and each.action_hash == approval.action.hash
    }


def _refuse(approval: Approval, vote: Vote, now: float) -> Refusal | None:
    return (
        _not_allowed(approval, vote.person)
        or _not_open(approval, now)
        or _other_action(approval, vote)
    )


def _not_allowed(approval: Approval, person: Person) -> Refusal | None:
    if person.tenant != approval.tenant:
        return Refusal("not found", "there is no such approval")
    if person.is_program:
        return Refusal("not allowed", "an account of a program cannot decide")
    if approval.terms.four_eyes and person.id == approval.requester:
        return Refusal("four eyes", "you asked for this job: somebody else must decide")
    if not may_decide(approval, person):
        return Refusal("not allowed", "you are not among those who may decide about this")
    return None


def _not_open(approval: Approval, now: float) -> Refusal | None:
    if approval.state is not ApprovalState.PENDING:
        return Refusal("decided", _how_it_ended(approval))
    if approval.expires_at is not None and now >= approval.expires_at:
        return Refusal("expired", "nobody may decide about this any more: its time is over")
    return None


def _other_action(approval: Approval, vote: Vote) -> Refusal | None:
    if vote.action_hash != approval.action.hash:
        return Refusal("changed", "the action is not the one that you saw: look at it again")
    if vote.edited is not None and not _same_but_input(vote.edited, approval.action):
        return Refusal("changed", "only the arguments can be edited")
    if vote.verdict == "approve" and vote.edited is None and vote.person.id in _yes(approval):
        return Refusal("repeated", "you have approved this already; others must, too")
    return None


def may_decide(approval: Approval, person: Person) -> bool:
    """Tell whether the terms name a person, or somebody whose place the person takes."""
    terms = approval.terms
    named = terms.approvers | terms.escalate_to if approval.escalated else terms.approvers
    gone = {whose for whose, _ in approval.delegates}
    stand_ins = {to for _, to in approval.delegates} - gone
    if person.id in gone:
        return False
    if person.id in stand_ins:
        return True
    return person.id in named or (not terms.approvers and APPROVER in person.roles)


def _same_but_input(edited: Action, asked: Action) -> bool:
    return replace(edited, input=asked.input) == asked


def _how_it_ended(approval: Approval) -> str:
    who = ", ".join(each.person for each in approval.decisions)
    return f"this is {approval.state.lower()} already" + (f", by {who}" if who else "")


def delegate(approval: Approval, by: Person, to: str, now: float) -> Approval | Refusal:
    """Let another person decide instead of one who may; who has passed it on has no vote."""
    refusal = _not_allowed(approval, by) or _not_open(approval, now)
    if refusal is not None:
        return refusal
    if to == by.id or any(to == whose for whose, _ in approval.delegates):
        return Refusal("not allowed", f"{to} cannot take it: it was passed on by them")
    if approval.terms.four_eyes and to == approval.requester:
        return Refusal("four eyes", f"{to} asked for this job: somebody else must decide")
    if by.id in _yes(approval):
        return Refusal("repeated", "you have approved this already")
    return approval.changed(delegates=(*approval.delegates, (by.id, to)))


def withdraw(approval: Approval, now: float) -> Approval:
    """Give the approval as one that nobody needs any more.

    Raises:
        IllegalTransition: It is decided.
    """
    if approval.state is not ApprovalState.PENDING:
        raise IllegalTransition(f"approval {approval.id} is {approval.state}")
    return approval.ended(ApprovalState.WITHDRAWN, now)


# Use


def unusable(
    approval: Approval, action: Action, now: float, revoked: Collection[str] = ()
) -> str | None:
    """Tell, right before the action, why this approval does not allow it; None: it does."""
    if approval.state is not ApprovalState.APPROVED or approval.decided_at is None:
        return f"it is {approval.state.lower()}"
    if approval.action.hash != action.hash:
        return "the action is not the one that was approved"
    if now >= approval.decided_at + approval.terms.valid:
        return "the approval is too old"
    if len(_yes(approval) - set(revoked)) < approval.terms.quorum:
        return "those who approved may not do so any more"
    return None
