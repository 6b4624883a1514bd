"""Approvals: one question to people about exactly one action; pure.

    PENDING ── APPROVED    enough people approved this very action
        ├───── REJECTED    one person rejected it
        ├───── EXPIRED     too few people answered in time, which is not a rejection
        └───── WITHDRAWN   the job no longer needs an answer

An approval is bound to a hash of everything that will be done. A vote is about the hash that the
person saw, and the action that runs later must have the same hash, or people are asked again.

Arguments can be edited while the approval is pending. Edited arguments are another action: earlier
votes do not count, and if the risk is higher, people are asked again on the terms of that risk.

The parts of this file: the values, voting, delegation, the check right before the action, what
happens as time passes, the links in messages, and when two names may mean one person.
"""

import hmac
import unicodedata
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.checked import Checked
from perdure.base.codec import digest
from perdure.base.errors import IllegalTransition
from perdure.jobs.outbox import NoticeKind
from perdure.jobs.risk import RiskLevel

VoteVerdict: TypeAlias = Literal["approve", "reject"]

APPROVER: Final = "approver"  # the role that may decide where no people are named
LONGEST_REASON: Final = 2000


class ApprovalState(StrEnum):
    """The state of an approval."""

    PENDING = "PENDING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"
    WITHDRAWN = "WITHDRAWN"


class Action(Struct, frozen=True, kw_only=True):
    """What is approved; another input, version or budget is another action."""

    tenant: str
    job_id: str
    step: str  # its identity in the job
    version: str = "1"
    input: bytes = b"null"  # the resolved arguments, as they are stored
    budget: bytes = b"null"
    revision: int = 0  # counts the edits: editing back is another edit, not the old action

    @property
    def hash(self) -> str:
        """A digest that no other action has."""
        return digest(
            "action",
            self.tenant,
            self.job_id,
            self.step,
            self.version,
            self.input,
            self.budget,
            str(self.revision),
        )


class ApprovalTerms(Checked, frozen=True, kw_only=True):
    """Who must approve, and within which time (in seconds).

    Attributes:
        quorum: How many different people must approve.
        four_eyes: Nobody decides who has asked for the job: who submitted, forked or scheduled it,
            started a part of it again, or made the token of a program that did.
        approvers: Who may decide; empty: everybody with the role `approver`.
        expires: How long to wait; None: until somebody answers.
        valid: How long an approval can be used; then people are asked again.
        remind: The interval of reminders; None: no reminders.
        escalate: After this time the people in `escalate_to` are asked too.
        escalate_to: Who may decide after the escalation.
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
        super().__post_init__()
        if self.quorum < 1:
            raise ValueError(f"quorum must be at least 1, not {self.quorum}")
        if self.approvers and len(self.approvers | self.escalate_to) < self.quorum:
            raise ValueError(f"a quorum of {self.quorum} needs at least as many approvers")


class Person(Struct, frozen=True, kw_only=True):
    """Who decides, as the channel has authenticated them. A service account is not a person.

    Attributes:
        id: The name by which the terms of an approval refer to them.
        tenant: The tenant in which they may decide.
        roles: What they may do there.
        is_program: Whether this is a service account.
        names: Their names elsewhere: an e-mail address, a Slack account.
        makers: Who made the credential by which they decide, to its beginning; for four eyes.
    """

    id: str
    tenant: str
    roles: frozenset[str] = frozenset()
    is_program: bool = False
    names: frozenset[str] = frozenset()
    makers: frozenset[str] = frozenset()

    def is_called(self, name: str) -> bool:
        """Whether a name could mean this person, however it is spelled."""
        return same_person({self.id, *self.names}, {name})


class Decision(Struct, frozen=True, kw_only=True):
    """A vote that counted."""

    person: str
    verdict: VoteVerdict
    action_hash: str  # of the action that the vote was about
    at: float
    channel: str = ""  # "slack", "mail", "api", "cli"
    reason: str = ""
    roles: frozenset[str] = frozenset()  # of the person at that time


class Edit(Struct, frozen=True, kw_only=True):
    """Who edited the arguments, and what they were before."""

    person: str
    at: float
    before: bytes
    raised: bool = False  # whether it raised the risk
    shown: bytes = b""  # what people saw before; empty if it was stored by an earlier version


class Approval(Struct, frozen=True, kw_only=True):
    """One question and the answers so far.

    Attributes:
        id: Unguessable.
        tenant: The tenant of the job.
        job_id: The job that waits.
        step: The identity of the step, or other entry, that waits.
        action: What is asked about; editing the arguments changes it.
        title: The question in one line.
        description: What the step does, as its author describes it.
        written_by_program: The title and what is shown come from a program, such as a language
            model, and not from the code of the job.
        shown: The arguments as people see them, as JSON by name: the store takes secrets out.
        edits: Who edited the arguments, in order.
        risk: How dangerous the action is.
        reasons: Why it is so dangerous.
        requester: Who submitted the job.
        makers: Who made the token by which a program submitted it, who made the token of that
            maker, and so on: the program is theirs.
        requesters: Who else has asked for the job, or for one of its tree, and their makers: see
            `store.verbs.requester`.
        terms: Who must approve, and within which time.
        state: The state.
        created_at: When it was asked; on new terms it is asked anew.
        decided_at: When it reached its final state.
        decisions: The votes so far.
        delegates: Pairs: who delegated, and to whom.
        escalated: Whether the people in `escalate_to` were asked.
        reminded_at: When people were last reminded.
        warned: Whether people were told that it expires soon.
        no: The version. A change is written only over the version that it was made from.
    """

    id: str
    tenant: str
    job_id: str
    step: str
    action: Action
    title: str
    created_at: float
    description: str = ""
    written_by_program: bool = False
    shown: bytes = b"{}"
    edits: tuple[Edit, ...] = ()
    risk: RiskLevel = RiskLevel.HIGH
    reasons: tuple[str, ...] = ()
    requester: str = ""
    makers: frozenset[str] = frozenset()
    requesters: frozenset[str] = frozenset()
    terms: ApprovalTerms = ApprovalTerms()
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
        """When it expires; None if it does not."""
        return None if self.terms.expires is None else self.created_at + self.terms.expires

    @property
    def asked(self) -> Action:
        """The action that the job asked about, before any edit."""
        if not self.edits:
            return self.action
        return replace(self.action, input=self.edits[0].before, revision=0)

    def changed(self, **changes: Any) -> "Approval":
        """Return the next version with these changes."""
        return replace(self, no=self.no + 1, **changes)

    def ended(self, state: ApprovalState, now: float, *decisions: Decision) -> "Approval":
        """Return the next version in a final state."""
        said = (*self.decisions, *decisions)
        return self.changed(state=state, decided_at=now, decisions=said)


# Voting.


class Refusal(Struct, frozen=True):
    """Why a vote does not count. `code` is for programs, `text` for people."""

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


class Edited(Struct, frozen=True, kw_only=True):
    """Other arguments that fit the step, and the risk of the call with them."""

    input: bytes
    risk: RiskLevel
    reasons: tuple[str, ...] = ()
    terms: ApprovalTerms  # for this risk


class Vote(Struct, frozen=True, kw_only=True):
    """What a person wants to decide; `decide` says whether it counts."""

    person: Person
    verdict: VoteVerdict
    action_hash: str  # of the action that the person saw
    channel: str = ""
    reason: str = ""
    edited: Edited | None = None  # approve, but with other arguments


def decide(approval: Approval, vote: Vote, now: float) -> Approval | Refusal:
    """Apply a vote.

    Returns:
        The next version of the approval, to be written over the version it was made from; or the
        reason why the vote does not count.
    """
    refusal = _refuse(approval, vote, now)
    if refusal is not None:
        return refusal
    if (edited := _other_input(approval, vote)) is not None:
        approval, counts = _edit(approval, vote.person, edited, now)
        if not counts:
            return approval.changed()
    decision = Decision(
        person=vote.person.id,
        verdict=vote.verdict,
        action_hash=approval.action.hash,
        at=now,
        channel=vote.channel,
        reason=vote.reason[:LONGEST_REASON],
        roles=vote.person.roles,
    )
    if vote.verdict == "reject":
        return approval.ended(ApprovalState.REJECTED, now, decision)
    said = replace(approval, decisions=(*approval.decisions, decision))
    if _is_enough(said, _yes(said)):
        return said.ended(ApprovalState.APPROVED, now)
    return said.changed()


def _other_input(approval: Approval, vote: Vote) -> Edited | None:
    """Return the edited arguments of a vote, if they differ."""
    edited = vote.edited if vote.verdict == "approve" else None
    return None if edited is None or edited.input == approval.action.input else edited


def _edit(approval: Approval, by: Person, edited: Edited, now: float) -> tuple[Approval, bool]:
    """Change the arguments; return also whether the vote counts as an approval of them.

    Another risk has other terms, on which it is a new question: delegations are void, and its time
    starts anew. After a higher risk, the editor's own vote does not count either.
    """
    raised = edited.risk > approval.risk
    old = approval.action
    edit = Edit(person=by.id, at=now, before=old.input, raised=raised, shown=approval.shown)
    new = replace(
        approval,
        action=replace(old, input=edited.input, revision=old.revision + 1),
        shown=edited.input,
        reasons=edited.reasons,
        edits=(*approval.edits, edit),
    )
    if edited.risk != approval.risk:
        new = replace(
            new,
            risk=edited.risk,
            terms=edited.terms,
            created_at=now,
            delegates=(),
            escalated=False,
            reminded_at=None,
            warned=False,
        )
    return new, not raised and _not_allowed(new, by) is None


def _yes(approval: Approval) -> set[str]:
    """Return who approved the action in its current form."""
    return {
        each.person
        for each in approval.decisions
        if each.verdict == "approve" and each.action_hash == approval.action.hash
    }


def _is_enough(approval: Approval, yes: Collection[str]) -> bool:
    """Whether these people are a quorum; those who raised the risk are not, on their own."""
    raised_by = {each.person for each in approval.edits if each.raised}
    alone = approval.terms.four_eyes and raised_by and raised_by.issuperset(yes)
    return len(yes) >= approval.terms.quorum and not alone


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
        return Refusal("not allowed", "a service account cannot decide")
    if (own := _own(approval, person, "you")) is not None:
        return own
    if not may_decide(approval, person):
        return Refusal("not allowed", "you are not among the people who may decide this")
    return None


def may_vote(approval: Approval, person: Person) -> bool:
    """Whether a vote of this person could count."""
    return _not_allowed(approval, person) is None


def why_not(approval: Approval, person: Person, now: float) -> Refusal | None:
    """Return why a person cannot decide an approval now; None if they can."""
    refusal = _not_allowed(approval, person) or _not_open(approval, now)
    if refusal is None and any(map(person.is_called, _yes(approval))):
        return Refusal("repeated", "you have already approved this; others must too")
    return refusal


def _own(approval: Approval, person: Person, who: str) -> Refusal | None:
    """Refuse everybody who has asked for the job; all, if nobody knows who submitted it."""
    if not approval.terms.four_eyes:
        return None
    if (why := no_four_eyes(approval)) is not None:
        return Refusal("four eyes", why)
    asked = _asked_for(approval, person, who)
    return None if asked is None else Refusal("four eyes", f"{asked}: somebody else must decide")


def _asked_for(approval: Approval, person: Person, who: str) -> str | None:
    """Return how a person has asked for the job; None if they have not."""
    if person.is_called(approval.requester):
        return f"{who} submitted this job"
    if any(map(person.is_called, approval.makers)):
        return f"{who} made the token of {approval.requester}, which submitted this job"
    if any(map(person.is_called, approval.requesters)):
        return f"{who} asked for this job, or made the token of a program that did"
    if same_person(person.makers, {approval.requester, *approval.makers, *approval.requesters}):
        return f"somebody who asked for this job made the token of {who}"
    return None


def no_four_eyes(approval: Approval) -> str | None:
    """Return why nobody can decide an approval; None if somebody can."""
    if not approval.terms.four_eyes or spelled(approval.requester):
        return None
    return (
        f"{approval.title!r} needs four eyes, but nobody knows who submitted the job: cancel it, "
        "and submit it again with user=…, or ask with ApprovalTerms(four_eyes=False)"
    )


def _not_open(approval: Approval, now: float) -> Refusal | None:
    if approval.state is not ApprovalState.PENDING:
        return Refusal("decided", _how_it_ended(approval))
    if approval.expires_at is not None and now >= approval.expires_at:
        return Refusal("expired", "this approval has expired")
    return None


def _other_action(approval: Approval, vote: Vote) -> Refusal | None:
    if vote.action_hash != approval.action.hash:
        return Refusal("changed", "the action has changed since you saw it: look at it again")
    again = vote.verdict == "approve" and _other_input(approval, vote) is None
    if again and any(map(vote.person.is_called, _yes(approval))):
        return Refusal("repeated", "you have already approved this; others must too")
    return None


def may_decide(approval: Approval, person: Person) -> bool:
    """Whether the terms name a person, or somebody delegated to them."""
    gone = {whose for whose, _ in approval.delegates}
    if person.id in gone:
        return False
    return _takes_a_place(approval, person.id) or _has_a_vote(approval, person)


def _takes_a_place(approval: Approval, id: str) -> bool:
    return any(id == to for _, to in approval.delegates)


def _has_a_vote(approval: Approval, person: Person) -> bool:
    """Whether a person may decide without a delegation."""
    terms = approval.terms
    named = terms.approvers | terms.escalate_to if approval.escalated else terms.approvers
    return person.id in named or (not terms.approvers and APPROVER in person.roles)


def _how_it_ended(approval: Approval) -> str:
    if approval.state is ApprovalState.WITHDRAWN:
        return "this is already withdrawn: the job no longer needs an answer"
    who = ", ".join(each.person for each in approval.decisions)
    return f"this is already {approval.state.lower()}" + (f", by {who}" if who else "")


def _distinct(people: Iterable[Person]) -> list[Person]:
    """Return people without those who are listed twice in different spellings."""
    found: list[Person] = []
    for person in people:
        if not any(map(person.is_called, (each.id for each in found))):
            found.append(person)
    return found


# Delegation.


class Delegation(Struct, frozen=True, kw_only=True):
    """Who delegates a decision to whom.

    Attributes:
        by: Who delegates.
        to: Who decides instead.
        reason: For the audit log.
        known: All people of the tenant; empty if they are unknown.
    """

    by: Person
    to: Person
    reason: str = ""
    known: tuple[Person, ...] = ()


def delegate(approval: Approval, delegation: Delegation, now: float) -> Approval | Refusal:
    """Let another person decide instead; the one who delegates loses their vote."""
    by, to = delegation.by, delegation.to
    refusal = _not_allowed(approval, by) or _not_open(approval, now)
    if refusal is not None:
        return refusal
    gone = (by.id, *(whose for whose, _ in approval.delegates))
    if any(map(to.is_called, gone)):
        return Refusal(
            "not allowed", f"{to.id} cannot decide this: they have delegated it themselves"
        )
    if (own := _own(approval, to, to.id)) is not None:
        return own
    if any(map(by.is_called, _yes(approval))):
        return Refusal("repeated", "you have already approved this")
    passed = approval.changed(delegates=(*approval.delegates, (by.id, to.id)))
    if not _is_reachable(passed, approval, delegation):
        text = f"{to.id} already has a vote: then {approval.terms.quorum} people could not approve"
        return Refusal("not allowed", text)
    return passed


def _is_reachable(passed: Approval, before: Approval, delegation: Delegation) -> bool:
    """Whether enough people can still approve."""
    terms, known = passed.terms, delegation.known
    if known or terms.approvers:
        ids = terms.approvers | terms.escalate_to | {each for _, each in passed.delegates}
        people = known or [Person(id=id, tenant=passed.tenant) for id in ids]
        later = replace(passed, escalated=passed.escalated or terms.escalate is not None)
        able = [each for each in people if may_vote(later, each)]
        return len(_distinct(able)) >= terms.quorum
    # The number of approvers is unknown. One person with two votes would be one too few.
    to = delegation.to
    has_one = any(map(to.is_called, (*_yes(before), *(each for _, each in before.delegates))))
    return terms.quorum == 1 or not has_one


def withdraw(approval: Approval, now: float) -> Approval:
    """Return the approval as WITHDRAWN.

    Raises:
        IllegalTransition: It is not pending.
    """
    if approval.state is not ApprovalState.PENDING:
        raise IllegalTransition(f"approval {approval.id} is {approval.state}")
    return approval.ended(ApprovalState.WITHDRAWN, now)


# The check right before the action.

# Finds a person by id as of now; None if they are unknown.
FindPerson: TypeAlias = Callable[[str], Person | None]


def unusable(approval: Approval, asked: str, now: float, lookup: FindPerson) -> str | None:
    """Return why an approval does not allow the action right now; None if it does.

    Args:
        approval: The approval.
        asked: The hash of the action that the job is about to do.
        now: The current time.
        lookup: Finds people as of now: the vote of one who may no longer decide does not count.
    """
    if approval.state is not ApprovalState.APPROVED or approval.decided_at is None:
        return f"it is {approval.state.lower()}"
    if approval.asked.hash != asked:
        return "the action is not the one that was approved"
    if now >= approval.decided_at + approval.terms.valid:
        return "the approval is no longer valid"
    if not _is_enough(approval, {id for id in _yes(approval) if _may_still(approval, id, lookup)}):
        return "people who approved it may no longer decide"
    return None


def _may_still(approval: Approval, id: str, lookup: FindPerson) -> bool:
    """Whether the vote of a person still counts, in their own right or by delegation."""
    person = lookup(id)
    if person is None or _not_allowed(approval, person) is not None:
        return False
    if _has_a_vote(approval, person):
        return True
    froms = [whose for whose, to in approval.delegates if to == id]
    return any(_could_pass_on(approval, whose, lookup) for whose in froms)


def _could_pass_on(approval: Approval, id: str, lookup: FindPerson) -> bool:
    person = lookup(id)
    if person is None:
        return False
    froms = [whose for whose, to in approval.delegates if to == id]
    return _has_a_vote(approval, person) or any(
        _could_pass_on(approval, whose, lookup) for whose in froms
    )


# As time passes, people are reminded, others are asked, all are warned, and then it expires.

# People are warned this long before an approval expires, but not in the first part of its time.
_WARN_BEFORE: Final = 3600.0
_WARN_AFTER: Final = 0.75


class ApprovalTick(Struct, frozen=True):
    """An approval as of some time, and the notices that are due."""

    approval: Approval
    notices: tuple[NoticeKind, ...] = ()


def tick(approval: Approval, now: float) -> ApprovalTick:
    """Return the approval as of `now`: reminded, escalated, warned or expired."""
    if approval.state is not ApprovalState.PENDING:
        return ApprovalTick(approval)
    if _is_past(approval.expires_at, now):
        return ApprovalTick(approval.ended(ApprovalState.EXPIRED, now), (NoticeKind.EXPIRED,))
    notices: list[NoticeKind] = []
    if _is_past(_escalates_at(approval), now):
        approval = approval.changed(escalated=True, reminded_at=now)
        notices.append(NoticeKind.ESCALATED)
    if _is_past(_warns_at(approval), now):
        approval = approval.changed(warned=True, reminded_at=now)
        notices.append(NoticeKind.EXPIRES_SOON)
    if _is_past(_reminds_at(approval), now):
        approval = approval.changed(reminded_at=now)
        notices.append(NoticeKind.REMINDER)
    return ApprovalTick(approval, tuple(notices))


def _is_past(at: float | None, now: float) -> bool:
    return at is not None and now >= at


def next_tick(approval: Approval) -> float | None:
    """Return when to call `tick` next; None if never."""
    if approval.state is not ApprovalState.PENDING:
        return None
    times = (
        approval.expires_at,
        _escalates_at(approval),
        _warns_at(approval),
        _reminds_at(approval),
    )
    return min((each for each in times if each is not None), default=None)


def _escalates_at(approval: Approval) -> float | None:
    after = approval.terms.escalate
    return None if after is None or approval.escalated else approval.created_at + after


def _warns_at(approval: Approval) -> float | None:
    whole = approval.terms.expires
    if whole is None or approval.warned:
        return None
    return approval.created_at + max(whole - _WARN_BEFORE, whole * _WARN_AFTER)


def _reminds_at(approval: Approval) -> float | None:
    every = approval.terms.remind
    return None if every is None else (approval.reminded_at or approval.created_at) + every


# A link lets one person decide one approval, once. Only a hash of its token is stored. The token
# alone decides nothing, since programs that scan mail follow links and some even submit forms: the
# person also types the code from the message.

MOST_WRONG: Final = 5  # wrong codes after which the link is dead
CODE_DIGITS: Final = 8


class ApprovalLink(Struct, frozen=True, kw_only=True):
    """A link as it is stored.

    Attributes:
        id: The hash of its token.
        tenant: The tenant of the approval.
        approval_id: The approval to decide.
        person: Who may use it.
        action_hash: The action that the message described.
        code_hash: The hash of the code, which cannot be guessed without the token.
        expires_at: When it expires.
        wrong: How many wrong codes were typed.
        used_at: When it was used.
    """

    id: str
    tenant: str
    approval_id: str
    person: str
    action_hash: str
    code_hash: str
    expires_at: float
    wrong: int = 0
    used_at: float | None = None


def link_id(token: str) -> str:
    """Return the id of the link with this token."""
    return digest("link", token)


def code_hash(token: str, code: str) -> str:
    """Return the hash of a code, ignoring spaces."""
    return digest("code", token, "".join(code.split()))


def new_link(
    approval: Approval, person: str, token: str, code: str, expires_at: float
) -> ApprovalLink:
    """Return a link for a person that expires no later than the approval."""
    last = expires_at if approval.expires_at is None else min(expires_at, approval.expires_at)
    return ApprovalLink(
        id=link_id(token),
        tenant=approval.tenant,
        approval_id=approval.id,
        person=person,
        action_hash=approval.action.hash,
        code_hash=code_hash(token, code),
        expires_at=last,
    )


def dead_link(link: ApprovalLink, now: float) -> Refusal | None:
    """Return why a link can no longer be used; None if it can."""
    if link.used_at is not None:
        return Refusal("decided", "this link was already used")
    if now >= link.expires_at:
        return Refusal("expired", "this link has expired")
    if link.wrong >= MOST_WRONG:
        return Refusal("not allowed", "too many wrong codes were typed: this link no longer works")
    return None


class LinkUse(Struct, frozen=True, kw_only=True):
    """What is submitted through a link: the hashes of its token and of the typed code."""

    link_id: str
    code_hash: str


def use_of(token: str, code: str) -> LinkUse:
    """Return the hashes of a token and a typed code."""
    return LinkUse(link_id=link_id(token), code_hash=code_hash(token, code))


class LinkCheck(Struct, frozen=True):
    """A link after a code was typed, and why it is refused; None: the code is right."""

    link: ApprovalLink
    refusal: Refusal | None = None


def check_code(link: ApprovalLink, use: LinkUse, now: float) -> LinkCheck:
    """Check a code; a right one changes nothing, a wrong one is counted.

    The caller must hold a lock on the link until the count is written, so that of many concurrent
    guesses each counts. A dead link returns the same answer for every code, right or wrong.
    """
    if (refusal := dead_link(link, now)) is not None:
        return LinkCheck(link, refusal)
    if hmac.compare_digest(link.code_hash, use.code_hash):
        return LinkCheck(link)
    counted = replace(link, wrong=link.wrong + 1)
    wrong = Refusal("wrong code", "this is not the code in the message")
    return LinkCheck(counted, dead_link(counted, now) or wrong)


def used_link(link: ApprovalLink, now: float) -> ApprovalLink:
    """Return the link as used."""
    return replace(link, used_at=now)


# Whether two names mean one person. To *grant* anything, a name must be `spelled` exactly as the
# person's own. To *refuse* a vote (four eyes, a second vote of one person), names that merely could
# be the same count as the same: look-alike letters, accents, an e-mail address beside a name.

# Invisible: control and format characters, such as a zero-width space, and some blanks.
_UNSEEN: Final = frozenset({"Cc", "Cf"})
_BLANKS: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800")
_MARKS: Final = frozenset({"Mn", "Me"})

# Letters of other alphabets that look like Latin ones: first as capitals, then as small letters.
_CAPITALS: Final = str.maketrans(
    "АВЕІЈКМНОРСТУХЅҮԀԚԜ" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",  # noqa: RUF001 - that is what they are for
    "ABEIJKMHOPCTYXSYDQW" + "ABEZHIKMNOPTYX",
)
_SMALL: Final = str.maketrans(
    "авсеорхуіјѕһӏԁԛԝүгкмнтп" + "αβγεηικνορτυχ" + "ıɑɡɩłøđ" + "օոսհ",  # noqa: RUF001
    "abceopxyijshldqwyrkmhtn" + "abyenikvoptux" + "iagilod" + "onuh",
)
_ALIKE: Final = str.maketrans("01i|", "olll")  # among Latin letters and digits themselves


def spelled(name: str) -> str:
    """Return a name in the normal form by which it is looked up."""
    category = unicodedata.category
    seen = "".join(c for c in name if c not in _BLANKS and category(c) not in _UNSEEN)
    return " ".join(unicodedata.normalize("NFKC", seen).casefold().split())


def same_person(one: Iterable[str], other: Iterable[str]) -> bool:
    """Whether two sets of names could belong to one person.

    An e-mail address also counts as its local part, unless both have an address.
    """
    ours, theirs = {_looks(name) for name in one}, {_looks(name) for name in other}
    if ours & theirs:
        return True
    if _addresses(ours) and _addresses(theirs):
        return False
    return bool(_with_local_parts(ours) & _with_local_parts(theirs))


def _looks(name: str) -> str:
    """Return the skeleton of a name: equal for names that look alike."""
    latin = unicodedata.normalize("NFKC", name).translate(_CAPITALS)
    parts = unicodedata.normalize("NFKD", spelled(latin))
    bare = "".join(each for each in parts if unicodedata.category(each) not in _MARKS)
    bare = bare.translate(_SMALL).translate(_ALIKE)
    local, at, domain = bare.replace("rn", "m").replace("vv", "w").partition("@")
    return f"{local.partition('+')[0]}@{domain}" if at else local


def _addresses(names: set[str]) -> bool:
    return any("@" in name for name in names)


def _with_local_parts(names: set[str]) -> set[str]:
    return names | {name.partition("@")[0] for name in names}
