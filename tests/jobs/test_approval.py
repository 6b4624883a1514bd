import itertools
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.base.errors import IllegalTransition
from perdure.jobs.approval import (
    Action,
    Approval,
    ApprovalState,
    ApprovalTerms,
    Decision,
    Delegation,
    Edited,
    Person,
    Refusal,
    Vote,
    decide,
    delegate,
    next_tick,
    tick,
    unusable,
    withdraw,
)
from perdure.jobs.outbox import NoticeKind
from perdure.jobs.risk import RiskLevel

ACTION = Action(
    tenant="acme",
    job_id="j",
    step="send_mail#1",
    version="1",
    input=b'{"to":"kim"}',
    budget=b'{"usd":5}',
)
ASKED = Approval(
    id="a-1",
    tenant="acme",
    job_id="j",
    step="send_mail#1",
    action=ACTION,
    title="send the contract",
    requester="rob",
    created_at=1000.0,
)


def person(id: str, *roles: str, tenant: str = "acme", is_program: bool = False) -> Person:
    return Person(
        id=id, tenant=tenant, roles=frozenset(roles or {"approver"}), is_program=is_program
    )


def vote(
    id: str | Person = "ann", verdict: Literal["approve", "reject"] = "approve", **more: Any
) -> Vote:
    who = person(id) if isinstance(id, str) else id
    return Vote(
        person=who, verdict=verdict, action_hash=more.pop("action_hash", ACTION.hash), **more
    )


def terms(**more: Any) -> Approval:
    return replace(ASKED, terms=ApprovalTerms(**more))


def decided(approval: Approval, *votes: Vote, now: float = 1001.0) -> Approval:
    for each in votes:
        result = decide(approval, each, now)
        assert isinstance(result, Approval), result
        approval = result
    return approval


def refusal(approval: Approval, cast: Vote, now: float = 1001.0) -> str:
    result = decide(approval, cast, now)
    assert isinstance(result, Refusal)
    return result.code


# What is approved


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "other"},
        {"job_id": "k"},
        {"step": "send_mail#2"},
        {"version": "2"},
        {"input": b'{"to":"lee"}'},
        {"budget": b'{"usd":6}'},
    ],
)
def test_the_hash_changes_with_every_part_of_the_action(other: dict[str, Any]) -> None:
    assert replace(ACTION, **other).hash != ACTION.hash


def test_one_yes_approves() -> None:
    approved = decided(ASKED, vote("ann", channel="slack", reason="fine"))
    assert approved.state is ApprovalState.APPROVED
    (said,) = approved.decisions
    assert (said.person, said.channel, said.reason, said.at) == ("ann", "slack", "fine", 1001.0)
    assert approved.no == ASKED.no + 1


def test_one_no_rejects_also_after_a_yes() -> None:
    two = terms(quorum=2)
    assert decided(two, vote("ann"), vote("bob", "reject")).state is ApprovalState.REJECTED


def test_a_quorum_needs_so_many_different_people() -> None:
    two = decided(terms(quorum=2), vote("ann"))
    assert two.state is ApprovalState.PENDING
    assert refusal(two, vote("ann")) == "repeated"
    assert decided(two, vote("bob")).state is ApprovalState.APPROVED


@pytest.mark.parametrize("state", [each for each in ApprovalState if each != "PENDING"])
def test_nobody_decides_twice(state: ApprovalState) -> None:
    assert refusal(replace(ASKED, state=state), vote("ann")) == "decided"


def test_a_late_answer_does_not_count() -> None:
    soon = terms(expires=60.0)
    assert decided(soon, vote("ann"), now=1059.9).state is ApprovalState.APPROVED
    assert refusal(soon, vote("ann"), now=1060.0) == "expired"


def test_who_asked_for_the_job_does_not_decide_about_it() -> None:
    assert refusal(ASKED, vote("rob")) == "four eyes"
    assert refusal(ASKED, vote("rob", "reject")) == "four eyes"
    alone = decided(terms(four_eyes=False), vote("rob"))
    assert alone.state is ApprovalState.APPROVED


def test_a_program_does_not_decide() -> None:
    agent = person("agent", is_program=True)
    assert refusal(ASKED, vote(agent)) == "not allowed"


def test_another_tenant_does_not_even_learn_that_there_is_something() -> None:
    result = decide(ASKED, vote(person("ann", tenant="other")), 1001.0)
    assert result == Refusal("not found", "there is no such approval")


def test_only_those_with_the_role_or_those_who_are_named_decide() -> None:
    assert refusal(ASKED, vote(person("ann", "viewer"))) == "not allowed"
    named = terms(approvers=frozenset({"bob"}))
    assert refusal(named, vote("ann")) == "not allowed"
    assert decided(named, vote(person("bob", "viewer"))).state is ApprovalState.APPROVED


def test_a_vote_about_another_action_does_not_count() -> None:
    other = replace(ACTION, input=b'{"to":"everybody"}')
    assert refusal(ASKED, vote("ann", action_hash=other.hash)) == "changed"


@given(st.permutations(["ann", "bob", "cid", "dan"]), st.integers(1, 4))
def test_whatever_the_order_the_quorum_decides_once(order: list[str], quorum: int) -> None:
    approval, count = terms(quorum=quorum), 0
    for who in order:
        result = decide(approval, vote(who), 1001.0)
        if isinstance(result, Approval):
            approval, count = result, count + 1
    assert count == quorum
    assert approval.state is ApprovalState.APPROVED


def test_of_two_versions_made_from_the_same_one_only_one_can_be_written() -> None:
    one, other = decided(ASKED, vote("ann")), decided(ASKED, vote("bob", "reject"))
    assert one.no == other.no == ASKED.no + 1


# Edited arguments

EDITED = replace(ACTION, input=b'{"to":"lee"}', revision=1)


def edit(input: bytes = EDITED.input, risk: RiskLevel = RiskLevel.HIGH, **more: Any) -> Edited:
    return Edited(input=input, risk=risk, reasons=("judged anew",), terms=ApprovalTerms(**more))


def test_a_yes_with_other_arguments_is_a_yes_to_another_action() -> None:
    approved = decided(ASKED, vote("ann", edited=edit()))
    assert approved.state is ApprovalState.APPROVED
    assert (approved.action, approved.asked) == (EDITED, ACTION)
    assert approved.shown == EDITED.input
    assert [(each.person, each.before) for each in approved.edits] == [("ann", ACTION.input)]
    assert unusable(approved, ACTION.hash, 1002.0, person) is None
    other = replace(ACTION, input=b'{"to":"everybody"}')
    assert unusable(approved, other.hash, 1002.0, person) is not None


def test_an_edit_of_the_same_risk_is_shown_with_its_own_reasons() -> None:
    asked = replace(terms(quorum=2), reasons=("it moves 5000 USD",))
    assert decided(asked, vote("ann", edited=edit())).reasons == ("judged anew",)


def test_an_edit_voids_what_others_said_before() -> None:
    two = decided(terms(quorum=2), vote("ann"), vote("bob", edited=edit()))
    assert two.state is ApprovalState.PENDING
    assert refusal(two, vote("ann")) == "changed"
    assert decided(two, vote("ann", action_hash=EDITED.hash)).state is ApprovalState.APPROVED


def test_to_edit_an_action_back_does_not_revive_what_was_said_about_it() -> None:
    two = decided(terms(quorum=2), vote("ann"), vote("bob", edited=edit()))
    back = vote("cid", action_hash=EDITED.hash, edited=edit(ACTION.input))
    two = decided(two, back)
    assert (two.state, two.action.input) == (ApprovalState.PENDING, ACTION.input)
    assert refusal(two, vote("ann")) == "changed"


def test_to_edit_nothing_is_no_second_vote() -> None:
    two = decided(terms(quorum=2), vote("ann"))
    assert refusal(two, vote("ann", edited=edit(ACTION.input))) == "repeated"


def test_a_no_edits_nothing() -> None:
    rejected = decided(ASKED, vote("ann", "reject", edited=edit()))
    assert (rejected.state, rejected.action) == (ApprovalState.REJECTED, ACTION)


def test_an_edit_that_raises_the_risk_is_a_new_question_on_new_terms() -> None:
    asked = replace(ASKED, escalated=True, warned=True)
    critical = edit(risk=RiskLevel.CRITICAL, quorum=2, expires=60.0)
    raised = decided(asked, vote("ann", edited=critical), now=5000.0)
    assert (raised.state, raised.decisions) == (ApprovalState.PENDING, ())
    assert (raised.risk, raised.reasons, raised.terms.quorum) == (
        RiskLevel.CRITICAL,
        ("judged anew",),
        2,
    )
    assert (raised.expires_at, raised.escalated, raised.warned) == (5060.0, False, False)
    seen = raised.action.hash
    one = decided(raised, vote("ann", action_hash=seen), now=5001.0)
    assert one.state is ApprovalState.PENDING
    two = decided(one, vote("bob", action_hash=seen), now=5002.0)
    assert two.state is ApprovalState.APPROVED


def test_who_takes_a_place_loses_it_when_the_terms_change() -> None:
    named = terms(approvers=frozenset({"bob"}))
    passed = handed(named, person("bob"), person("eve", "viewer"))
    assert isinstance(passed, Approval)
    boss = frozenset({"boss"})
    cast = vote(person("eve", "viewer"), edited=edit(risk=RiskLevel.CRITICAL, approvers=boss))
    raised = decided(passed, cast)
    again = vote(person("eve", "viewer"), action_hash=raised.action.hash)
    assert refusal(raised, again) == "not allowed"


def test_who_has_raised_the_risk_does_not_suffice_alone() -> None:
    raised = decided(ASKED, vote("ann", edited=edit(risk=RiskLevel.CRITICAL)))
    alone = decided(raised, vote("ann", action_hash=raised.action.hash))
    assert alone.state is ApprovalState.PENDING
    # Nor by another edit, which is not more dangerous than the first.
    again = edit(b'{"to":"everybody"}', RiskLevel.CRITICAL)
    alone = decided(alone, vote("ann", action_hash=alone.action.hash, edited=again))
    assert alone.state is ApprovalState.PENDING
    both = decided(alone, vote("bob", action_hash=alone.action.hash))
    assert both.state is ApprovalState.APPROVED


def test_an_edit_that_lowers_the_risk_is_decided_on_the_terms_of_the_lower_one() -> None:
    two = replace(terms(quorum=2), risk=RiskLevel.CRITICAL)
    assert decided(two, vote("ann", edited=edit())).state is ApprovalState.APPROVED
    boss = edit(approvers=frozenset({"boss"}))  # but not by who may not decide on them
    lowered = decided(two, vote("ann", edited=boss))
    assert (lowered.state, lowered.decisions) == (ApprovalState.PENDING, ())
    seen = lowered.action.hash
    assert refusal(lowered, vote("ann", action_hash=seen)) == "not allowed"
    assert decided(lowered, vote("boss", action_hash=seen)).state is ApprovalState.APPROVED


# Four eyes


@pytest.mark.parametrize(
    "spelling",
    ["Rob", "rob ", "ROB", "r\u200bob", "r\u043eb", "\uff52\uff4f\uff42", "r0b", "rob@example.com"],
)
def test_another_spelling_of_the_requester_does_not_decide(spelling: str) -> None:
    assert refusal(ASKED, vote(spelling)) == "four eyes"
    assert refusal(replace(ASKED, requester=spelling), vote("rob")) == "four eyes"


def test_who_is_the_requester_by_another_name_does_not_decide() -> None:
    robin = replace(person("robin"), names=frozenset({"R.Smith@example.com", "U7"}))
    for name in ("robin", "r.smith@example.com", "U7", "r.smith+1@example.com"):
        assert refusal(replace(ASKED, requester=name), vote(robin)) == "four eyes"
    other = replace(ASKED, requester="robin@elsewhere.example")  # who has an address of their own
    assert decided(other, vote(robin)).state is ApprovalState.APPROVED


@pytest.mark.parametrize("nobody", ["", "  ", "\u200b"])
def test_without_a_requester_there_are_no_four_eyes(nobody: str) -> None:
    result = decide(replace(ASKED, requester=nobody), vote("ann"), 1001.0)
    assert isinstance(result, Refusal)
    assert (result.code, "user=" in result.text) == ("four eyes", True)
    alone = replace(terms(four_eyes=False), requester=nobody)
    assert decided(alone, vote("ann")).state is ApprovalState.APPROVED


@pytest.mark.parametrize("spelling", ["Ann", " ann", "\u0430nn", "ann@example.com"])
def test_one_person_in_two_spellings_is_no_quorum_of_two(spelling: str) -> None:
    two = decided(terms(quorum=2), vote("ann"))
    assert refusal(two, vote(spelling)) == "repeated"


# Delegation


def handed(approval: Approval, by: Person, to: str | Person, *known: Person) -> Approval | Refusal:
    other = Person(id=to, tenant="acme") if isinstance(to, str) else to
    return delegate(approval, Delegation(by=by, to=other, known=known), 1001.0)


def test_who_passes_it_on_has_no_vote_and_the_other_has_one() -> None:
    passed = handed(ASKED, person("ann"), "eve")
    assert isinstance(passed, Approval)
    assert refusal(passed, vote("ann")) == "not allowed"
    assert decided(passed, vote(person("eve", "viewer"))).state is ApprovalState.APPROVED


@pytest.mark.parametrize(
    ("by", "to", "code"),
    [
        (person("ann"), "ann", "not allowed"),
        (person("ann"), "rob", "four eyes"),
        (person("rob"), "eve", "four eyes"),
        (person("vic", "viewer"), "eve", "not allowed"),
        (person("ann", tenant="other"), "eve", "not found"),
    ],
)
def test_it_is_passed_on_only_by_and_to_those_who_may_decide(
    by: Person, to: str, code: str
) -> None:
    result = handed(ASKED, by, to)
    assert isinstance(result, Refusal)
    assert result.code == code


def test_it_does_not_come_back_to_who_passed_it_on() -> None:
    passed = handed(ASKED, person("ann"), "eve")
    assert isinstance(passed, Approval)
    assert isinstance(handed(passed, person("eve"), "ann"), Refusal)
    again = handed(passed, person("eve"), "flo")
    assert isinstance(again, Approval)
    assert refusal(again, vote("eve")) == "not allowed"
    assert decided(again, vote(person("flo", "viewer"))).state is ApprovalState.APPROVED


ANN, BOB, CAS, DAN = (person(id) for id in ("ann", "bob", "cas", "dan"))
TWO = terms(quorum=2, approvers=frozenset({"ann", "bob"}))


@pytest.mark.parametrize(
    ("approval", "known"),
    [
        (TWO, ()),
        (TWO, (ANN, BOB, CAS)),
        (terms(quorum=2), (ANN, BOB, person("cas", "viewer"))),
        (terms(quorum=2), ()),  # nobody knows how many there are
    ],
)
def test_a_quorum_of_two_is_not_left_to_one_person(
    approval: Approval, known: tuple[Person, ...]
) -> None:
    cas = person("cas", "viewer")
    first = handed(approval, ANN, cas, *known)
    assert isinstance(first, Approval)
    for same in (cas, replace(cas, id="Cas")):
        second = handed(first, BOB, same, *known)
        assert isinstance(second, Refusal)
        assert (second.code, "2 people" in second.text) == ("not allowed", True)
    listed = (*known, DAN) if known else ()
    assert isinstance(handed(first, BOB, DAN, *listed), Approval)


def test_nor_is_it_left_to_who_has_a_vote_already() -> None:
    assert isinstance(handed(TWO, ANN, BOB), Refusal)
    assert isinstance(handed(TWO, ANN, BOB, ANN, BOB, CAS), Refusal)
    three = terms(quorum=2, approvers=frozenset({"ann", "bob", "cas"}))
    assert isinstance(handed(three, ANN, BOB), Approval)
    said = decided(terms(quorum=2), vote("ann"))
    assert isinstance(handed(said, BOB, ANN), Refusal)


def test_those_to_whom_it_will_be_escalated_count_for_the_quorum() -> None:
    named = {"approvers": frozenset({"ann", "bob"}), "escalate_to": frozenset({"boss"})}
    assert isinstance(handed(terms(quorum=2, escalate=9.0, **named), ANN, BOB), Approval)
    assert isinstance(handed(terms(quorum=2, **named), ANN, BOB), Refusal)


# Time


def test_expired_is_not_rejected() -> None:
    soon = terms(expires=60.0)
    assert tick(soon, 1059.0).approval.state is ApprovalState.PENDING
    late = tick(soon, 1060.0)
    assert late.approval.state is ApprovalState.EXPIRED
    assert late.notices == (NoticeKind.EXPIRED,)


@pytest.mark.parametrize(("expires", "warns"), [(60.0, 45.0), (7200.0, 5400.0), (86400.0, 82800.0)])
def test_people_are_warned_once_before_it_expires(expires: float, warns: float) -> None:
    asked = terms(expires=expires)
    assert next_tick(asked) == 1000.0 + warns
    assert tick(asked, 999.0 + warns).approval is asked
    warned = tick(asked, 1000.0 + warns)
    assert warned.notices == (NoticeKind.EXPIRES_SOON,)
    assert next_tick(warned.approval) == 1000.0 + expires
    assert tick(warned.approval, 1001.0 + warns).notices == ()


def test_a_warning_is_a_reminder_too() -> None:
    asked = terms(expires=400.0, remind=300.0)
    assert tick(asked, 1300.0).notices == (NoticeKind.EXPIRES_SOON,)


def test_without_a_limit_it_waits_for_ever() -> None:
    assert next_tick(ASKED) is None
    assert tick(ASKED, 1e12).approval is ASKED


def test_people_are_reminded_and_others_are_asked_in_time() -> None:
    approval = terms(remind=100.0, escalate=250.0, escalate_to=frozenset({"boss"}), expires=400.0)
    told: list[tuple[float, NoticeKind]] = []
    while (at := next_tick(approval)) is not None:
        passed = tick(approval, at)
        assert passed.approval is not approval
        approval = passed.approval
        told += [(at, notice) for notice in passed.notices]
    assert told == [
        (1100.0, NoticeKind.REMINDER),
        (1200.0, NoticeKind.REMINDER),
        (1250.0, NoticeKind.ESCALATED),
        (1300.0, NoticeKind.EXPIRES_SOON),
        (1400.0, NoticeKind.EXPIRED),
    ]


def test_those_to_whom_it_is_escalated_decide_only_then() -> None:
    named = frozenset({"bob"})
    approval = terms(approvers=named, escalate=10.0, escalate_to=frozenset({"boss"}))
    assert refusal(approval, vote("boss")) == "not allowed"
    later = tick(approval, 1010.0).approval
    assert decided(later, vote("boss"), now=1011.0).state is ApprovalState.APPROVED


def test_what_nobody_needs_any_more_is_withdrawn_unless_it_is_decided() -> None:
    gone = withdraw(ASKED, 1001.0)
    assert gone.state is ApprovalState.WITHDRAWN
    assert refusal(gone, vote("ann")) == "decided"
    with pytest.raises(IllegalTransition):
        withdraw(decided(ASKED, vote("ann")), 1002.0)


# Use


def test_an_approval_is_checked_right_before_the_action() -> None:
    approved = decided(ASKED, vote("ann"))
    assert unusable(approved, ACTION.hash, 1002.0, person) is None
    assert unusable(ASKED, ACTION.hash, 1002.0, person) == "it is pending"
    changed = replace(ACTION, input=b"{}").hash
    other = "the action is not the one that was approved"
    assert unusable(approved, changed, 1002.0, person) == other
    late = unusable(approved, ACTION.hash, 1001.0 + 24 * 3600, person)
    assert late == "the approval is no longer valid"


@pytest.mark.parametrize(
    "now",
    [
        None,  # was removed
        person("ann", "viewer"),  # has lost the role
        person("ann", is_program=True),
        person("ann", tenant="other"),
        replace(person("ann"), names=frozenset({"rob"})),  # turns out to be the requester
    ],
)
def test_who_may_not_decide_any_more_has_not_decided(now: Person | None) -> None:
    approved = decided(terms(quorum=2), vote("ann"), vote("bob"))
    people = {"ann": now, "bob": person("bob")}
    assert unusable(approved, ACTION.hash, 1002.0, person) is None
    assert unusable(approved, ACTION.hash, 1002.0, people.get) is not None


def test_a_vote_that_was_passed_on_counts_as_long_as_who_passed_it_on_has_one() -> None:
    cas = person("cas", "viewer")
    passed = handed(ASKED, person("ann"), cas)
    assert isinstance(passed, Approval)
    again = handed(passed, cas, person("dan", "viewer"))
    assert isinstance(again, Approval)
    approved = decided(again, vote(person("dan", "viewer")))
    people = {"ann": person("ann"), "cas": cas, "dan": person("dan", "viewer")}
    assert unusable(approved, ACTION.hash, 1002.0, people.get) is None
    without = {**people, "ann": person("ann", "viewer")}
    assert unusable(approved, ACTION.hash, 1002.0, without.get) is not None
    for gone in people:
        left = {id: each for id, each in people.items() if id != gone}
        assert unusable(approved, ACTION.hash, 1002.0, left.get) is not None


def test_a_decision_that_was_not_made_about_this_action_is_no_vote_for_it() -> None:
    approved = decided(ASKED, vote("ann"))
    forged = Decision(person="bob", verdict="approve", action_hash="x", at=1001.0)
    alone = replace(
        approved, terms=ApprovalTerms(quorum=2), decisions=(*approved.decisions, forged)
    )
    assert unusable(alone, ACTION.hash, 1002.0, person) is not None


@pytest.mark.parametrize("state", [each for each in ApprovalState if each != "APPROVED"])
def test_only_a_yes_allows(state: ApprovalState) -> None:
    ended = replace(decided(ASKED, vote("ann")), state=state)
    assert unusable(ended, ACTION.hash, 1002.0, person)


def test_terms_that_nobody_can_fulfil_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ApprovalTerms(quorum=0)
    with pytest.raises(ValueError, match="needs at least as many approvers"):
        ApprovalTerms(quorum=2, approvers=frozenset({"ann"}))


def test_every_refusal_leaves_the_approval_as_it_is() -> None:
    cases = itertools.product([ASKED], [vote("rob"), vote("ann", action_hash="x")])
    for approval, cast in cases:
        before = replace(approval)
        decide(approval, cast, 1001.0)
        assert approval == before
