"""Approvals: one question to people about exactly one action; pure.

    PENDING ── APPROVED    enough people said yes, to this very action
        ├───── REJECTED    one said no
        ├───── EXPIRED     nobody said enough in time, which is not a no
        └───── WITHDRAWN   the job needs no answer any more

An approval is bound to a hash of all that will be done. Whoever decides, decides about the hash
that they saw; what is run later must have it, or is asked about anew.

Arguments can be edited while it waits. Edited arguments are another action: what was said about
the old one does not count, and if they are more dangerous, people are asked anew on new terms.
"""

import hmac
import unicodedata
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import digest
from perdure.base.errors import IllegalTransition
from perdure.jobs.outbox import NoticeKind
from perdure.jobs.risk import RiskLevel

# Who is who: whether two names mean one person; pure.
#
# Names are compared in two ways. To *grant* anything, a name must be `spelled` as the person's own.
# To *refuse* a vote (four eyes, a second vote of one person), everything that could be the same
# person is: look-alike letters, accents, an e-mail address beside a name.

# What is not seen: control and format characters, such as a zero-width space; and some blanks.
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
    """Give a name in the one spelling by which it is looked up."""
    category = unicodedata.category
    seen = "".join(c for c in name if c not in _BLANKS and category(c) not in _UNSEEN)
    return " ".join(unicodedata.normalize("NFKC", seen).casefold().split())


def same_person(one: Iterable[str], other: Iterable[str]) -> bool:
    """Tell whether the names of two could be names of one person.

    An e-mail address also counts as its part before the `@`, unless both have an address.
    """
    ours, theirs = {_looks(name) for name in one}, {_looks(name) for name in other}
    if ours & theirs:
        return True
    if _addresses(ours) and _addresses(theirs):
        return False
    return bool(_with_local_parts(ours) & _with_local_parts(theirs))


def _looks(name: str) -> str:
    """Give what a name looks like."""
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


VoteVerdict: TypeAlias = Literal["approve", "reject"]

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
    revision: int = 0  # so often was the input edited: to edit it back is not to undo the edit

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
            str(self.revision),
        )


class ApprovalTerms(Struct, frozen=True, kw_only=True):
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
    """Who decides, as the channel has proved it. An account of a program is no person.

    Attributes:
        id: By which the terms of an approval name them.
        tenant: Where they may decide.
        roles: What they may do there.
        is_program: Whether this is the account of a program.
        names: How they are called elsewhere: an e-mail address, an account of Slack.
    """

    id: str
    tenant: str
    roles: frozenset[str] = frozenset()
    is_program: bool = False
    names: frozenset[str] = frozenset()

    def is_called(self, name: str) -> bool:
        """Tell whether a name could be one of this person's, however it is spelled."""
        return same_person({self.id, *self.names}, {name})


class Decision(Struct, frozen=True, kw_only=True):
    """What one person said."""

    person: str
    verdict: VoteVerdict
    action_hash: str  # to which action
    at: float
    channel: str = ""  # "slack", "mail", "api", "cli"
    reason: str = ""
    roles: frozenset[str] = frozenset()  # of the person, when it was said


class Edit(Struct, frozen=True, kw_only=True):
    """Who has edited the arguments, and what they were before."""

    person: str
    at: float
    before: bytes
    raised: bool = False  # to a higher risk


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
        edits: Who has edited the arguments, the first one first.
        risk: How dangerous it is …
        reasons: … and why.
        requester: Who asked for the job.
        terms: Who must say yes.
        state: Where it stands.
        created_at: When it was asked; on new terms, it is asked anew.
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
    edits: tuple[Edit, ...] = ()
    risk: RiskLevel = RiskLevel.HIGH
    reasons: tuple[str, ...] = ()
    requester: str = ""
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
        """When it stops waiting."""
        return None if self.terms.expires is None else self.created_at + self.terms.expires

    @property
    def asked(self) -> Action:
        """What the job asked about, before anybody edited it."""
        if not self.edits:
            return self.action
        return replace(self.action, input=self.edits[0].before, revision=0)

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


class Edited(Struct, frozen=True, kw_only=True):
    """Other arguments, which fit the step, and how dangerous the call is with them."""

    input: bytes
    risk: RiskLevel
    reasons: tuple[str, ...] = ()
    terms: ApprovalTerms  # those of this risk


class Vote(Struct, frozen=True, kw_only=True):
    """What a person wants to say: a decision that is not yet judged."""

    person: Person
    verdict: VoteVerdict
    action_hash: str  # of the action that the person has seen
    channel: str = ""
    reason: str = ""
    edited: Edited | None = None  # approve, but with other arguments


def decide(approval: Approval, vote: Vote, now: float) -> Approval | Refusal:
    """Judge a vote.

    Returns:
        The approval with the vote in it, to be written over the version that it was judged by;
        or the reason why it does not count.
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
    """Give what a vote changes, if it changes anything."""
    edited = vote.edited if vote.verdict == "approve" else None
    return None if edited is None or edited.input == approval.action.input else edited


def _edit(approval: Approval, by: Person, edited: Edited, now: float) -> tuple[Approval, bool]:
    """Change the arguments; tells whether it is a yes to them, too.

    Another risk has other terms. On those, it is a new question: whoever took somebody's place
    has lost it, and the time begins anew. A higher risk also needs a new yes of everybody.
    """
    raised = edited.risk > approval.risk
    edit = Edit(person=by.id, at=now, before=approval.action.input, raised=raised)
    old = approval.action
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
    """Tell who has approved the action as it is now."""
    return {
        each.person
        for each in approval.decisions
        if each.verdict == "approve" and each.action_hash == approval.action.hash
    }


def _is_enough(approval: Approval, yes: Collection[str]) -> bool:
    """Tell whether so many are a quorum; who has raised the risk does not suffice alone."""
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
        return Refusal("not allowed", "an account of a program cannot decide")
    if (own := _own(approval, person, "you")) is not None:
        return own
    if not may_decide(approval, person):
        return Refusal("not allowed", "you are not among those who may decide about this")
    return None


def may_vote(approval: Approval, person: Person) -> bool:
    """Tell whether what a person says about an approval would count."""
    return _not_allowed(approval, person) is None


def _own(approval: Approval, person: Person, who: str) -> Refusal | None:
    """Refuse who asked for the job, and everybody if nobody knows who that is."""
    if not approval.terms.four_eyes:
        return None
    if (why := no_four_eyes(approval)) is not None:
        return Refusal("four eyes", why)
    if person.is_called(approval.requester):
        return Refusal("four eyes", f"{who} asked for this job: somebody else must decide")
    return None


def no_four_eyes(approval: Approval) -> str | None:
    """Tell why nobody can decide about an approval; None: somebody can."""
    if not approval.terms.four_eyes or spelled(approval.requester):
        return None
    return (
        f"{approval.title!r} needs four eyes, and nobody knows who asked for the job: "
        "cancel this one and submit it again with user=…, or ask with Terms(four_eyes=False)"
    )


def _not_open(approval: Approval, now: float) -> Refusal | None:
    if approval.state is not ApprovalState.PENDING:
        return Refusal("decided", _how_it_ended(approval))
    if approval.expires_at is not None and now >= approval.expires_at:
        return Refusal("expired", "nobody may decide about this any more: its time is over")
    return None


def _other_action(approval: Approval, vote: Vote) -> Refusal | None:
    if vote.action_hash != approval.action.hash:
        return Refusal("changed", "the action is not the one that you saw: look at it again")
    again = vote.verdict == "approve" and _other_input(approval, vote) is None
    if again and any(map(vote.person.is_called, _yes(approval))):
        return Refusal("repeated", "you have approved this already; others must, too")
    return None


def may_decide(approval: Approval, person: Person) -> bool:
    """Tell whether the terms name a person, or somebody whose place the person takes."""
    gone = {whose for whose, _ in approval.delegates}
    if person.id in gone:
        return False
    return _takes_a_place(approval, person.id) or _has_a_vote(approval, person)


def _takes_a_place(approval: Approval, id: str) -> bool:
    return any(id == to for _, to in approval.delegates)


def _has_a_vote(approval: Approval, person: Person) -> bool:
    """Tell whether a person may decide in their own right."""
    terms = approval.terms
    named = terms.approvers | terms.escalate_to if approval.escalated else terms.approvers
    return person.id in named or (not terms.approvers and APPROVER in person.roles)


def _how_it_ended(approval: Approval) -> str:
    who = ", ".join(each.person for each in approval.decisions)
    return f"this is {approval.state.lower()} already" + (f", by {who}" if who else "")


def _distinct(people: Iterable[Person]) -> list[Person]:
    """Count nobody twice who is listed twice, in another spelling."""
    found: list[Person] = []
    for person in people:
        if not any(map(person.is_called, (each.id for each in found))):
            found.append(person)
    return found


class Delegation(Struct, frozen=True, kw_only=True):
    """Who wants to leave a question to whom.

    Attributes:
        by: Who passes it on.
        to: Who is to decide instead.
        reason: For the audit log.
        known: All people of the tenant; none: nobody knows who they are.
    """

    by: Person
    to: Person
    reason: str = ""
    known: tuple[Person, ...] = ()


def delegate(approval: Approval, handover: Delegation, now: float) -> Approval | Refusal:
    """Let another person decide instead of one who may; who has passed it on has no vote."""
    by, to = handover.by, handover.to
    refusal = _not_allowed(approval, by) or _not_open(approval, now)
    if refusal is not None:
        return refusal
    gone = (by.id, *(whose for whose, _ in approval.delegates))
    if any(map(to.is_called, gone)):
        return Refusal("not allowed", f"{to.id} cannot take it: it was passed on by them")
    if (own := _own(approval, to, to.id)) is not None:
        return own
    if any(map(by.is_called, _yes(approval))):
        return Refusal("repeated", "you have approved this already")
    passed = approval.changed(delegates=(*approval.delegates, (by.id, to.id)))
    if not _is_reachable(passed, approval, handover):
        text = f"{to.id} has a vote already: {approval.terms.quorum} people could not approve then"
        return Refusal("not allowed", text)
    return passed


def _is_reachable(passed: Approval, before: Approval, handover: Delegation) -> bool:
    """Tell whether there can still be a quorum."""
    terms, known = passed.terms, handover.known
    if known or terms.approvers:
        ids = terms.approvers | terms.escalate_to | {each for _, each in passed.delegates}
        people = known or [Person(id=id, tenant=passed.tenant) for id in ids]
        later = replace(passed, escalated=passed.escalated or terms.escalate is not None)
        able = [each for each in people if may_vote(later, each)]
        return len(_distinct(able)) >= terms.quorum
    # Nobody knows how many there are: one person in the place of two is one too few.
    to = handover.to
    has_one = any(map(to.is_called, (*_yes(before), *(each for _, each in before.delegates))))
    return terms.quorum == 1 or not has_one


def withdraw(approval: Approval, now: float) -> Approval:
    """Give the approval as one that nobody needs any more.

    Raises:
        IllegalTransition: It is decided.
    """
    if approval.state is not ApprovalState.PENDING:
        raise IllegalTransition(f"approval {approval.id} is {approval.state}")
    return approval.ended(ApprovalState.WITHDRAWN, now)


# Use


# Who somebody is as of now, by their id; None: nobody knows them any more.
FindPerson: TypeAlias = Callable[[str], Person | None]


def unusable(approval: Approval, asked: str, now: float, lookup: FindPerson) -> str | None:
    """Tell, right before the action, why this approval does not allow it; None: it does.

    Args:
        approval: The approval.
        asked: The hash of the action that the job wants to do.
        now: The time.
        lookup: Finds people as of now: who may not decide any more has not decided.
    """
    if approval.state is not ApprovalState.APPROVED or approval.decided_at is None:
        return f"it is {approval.state.lower()}"
    if approval.asked.hash != asked:
        return "the action is not the one that was approved"
    if now >= approval.decided_at + approval.terms.valid:
        return "the approval is too old"
    if not _is_enough(approval, {id for id in _yes(approval) if _may_still(approval, id, lookup)}):
        return "those who approved may not do so any more"
    return None


def _may_still(approval: Approval, id: str, lookup: FindPerson) -> bool:
    """Tell whether the vote of a person counts as of now, and who gave them theirs has one."""
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


# What time does to an approval: people are reminded, others asked, all warned, then it expires.
#
# Pure: whoever looks at the clock says what time it is.

# People are warned so long before an approval expires, but not in the first part of its time.
_WARN_BEFORE: Final = 3600.0
_WARN_AFTER: Final = 0.75


class ApprovalTick(Struct, frozen=True):
    """An approval after a look at the clock, and what people must be told."""

    approval: Approval
    notices: tuple[NoticeKind, ...] = ()


def tick(approval: Approval, now: float) -> ApprovalTick:
    """Let time pass: remind, ask others, warn, expire."""
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
    """Tell when to look at the clock again; None: there is nothing to look for."""
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


# A link by which one person may decide about one approval, once; pure.
#
# Only a hash of the link's token is stored. The token alone decides nothing: programs follow links,
# and some press buttons. A person also types the code that stands in the message beside the link.

MOST_WRONG: Final = 5  # codes; then the link is dead
CODE_DIGITS: Final = 8


class ApprovalLink(Struct, frozen=True, kw_only=True):
    """What is stored of a link.

    Attributes:
        id: The hash of its token.
        tenant: The tenant of the approval.
        approval_id: The approval that it is about.
        person: Who may use it.
        action_hash: The action that its holder was told of.
        code_hash: The hash of the code, which cannot be found out without the token.
        expires_at: When it is over.
        wrong: How often a wrong code was typed.
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
    """Give the name under which the link of a token is stored."""
    return digest("link", token)


def code_hash(token: str, code: str) -> str:
    """Give what is stored of a code."""
    return digest("code", token, "".join(code.split()))


def new_link(
    approval: Approval, person: str, token: str, code: str, expires_at: float
) -> ApprovalLink:
    """Make a link for a person, not longer alive than the approval."""
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
    """Tell why a link is of no use any more; None: it is."""
    if link.used_at is not None:
        return Refusal("decided", "this link was used already")
    if now >= link.expires_at:
        return Refusal("expired", "the time of this link is over")
    if link.wrong >= MOST_WRONG:
        return Refusal("not allowed", "too many wrong codes were typed: this link is dead")
    return None


class LinkUse(Struct, frozen=True, kw_only=True):
    """What somebody shows to decide by a link: the hashes of its token and of the code."""

    link_id: str
    code_hash: str


def use_of(token: str, code: str) -> LinkUse:
    """Make what a token and a typed code come to."""
    return LinkUse(link_id=link_id(token), code_hash=code_hash(token, code))


class LinkCheck(Struct, frozen=True):
    """A link after a code was typed, and why that is refused; None: the code is right."""

    link: ApprovalLink
    refusal: Refusal | None = None


def check_code(link: ApprovalLink, use: LinkUse, now: float) -> LinkCheck:
    """Judge a code; a right one changes nothing, a wrong one is counted.

    The link must be locked until it is written: of many codes at once, each counts.
    A dead link answers every code alike, and so does the wrong code that kills it.
    """
    if (refusal := dead_link(link, now)) is not None:
        return LinkCheck(link, refusal)
    if hmac.compare_digest(link.code_hash, use.code_hash):
        return LinkCheck(link)
    counted = replace(link, wrong=link.wrong + 1)
    wrong = Refusal("wrong code", "this is not the code of the message")
    return LinkCheck(counted, dead_link(counted, now) or wrong)


def used_link(link: ApprovalLink, now: float) -> ApprovalLink:
    """Give the link as one that has done its work."""
    return replace(link, used_at=now)
