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
    Person,
    Refusal,
    Terms,
    Vote,
    decide,
    delegate,
    unusable,
    withdraw,
)
from perdure.jobs.approval_time import next_tick, tick
from perdure.jobs.outbox import NoticeKind

ACTION = Action(
    tenant="acme",
    job_id="j",
    step="send_mail#1",
    version="1",
    input=b'{"to":"kim"}',
    effects=("email",),
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
    return replace(ASKED, terms=Terms(**more))


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
        {"effects": ()},
        {"effects": ("email", "email")},
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

EDITED = replace(ACTION, input=b'{"to":"lee"}')


def test_a_yes_with_other_arguments_is_a_yes_to_another_action() -> None:
    approved = decided(ASKED, vote("ann", edited=EDITED))
    assert approved.state is ApprovalState.APPROVED
    assert approved.action == EDITED
    assert unusable(approved, ACTION, 1002.0) == "the action is not the one that was approved"
    assert unusable(approved, EDITED, 1002.0) is None


def test_an_edit_voids_what_others_said_before() -> None:
    two = decided(terms(quorum=2), vote("ann"), vote("bob", edited=EDITED))
    assert two.state is ApprovalState.PENDING
    assert refusal(two, vote("ann")) == "changed"
    assert decided(two, vote("ann", action_hash=EDITED.hash)).state is ApprovalState.APPROVED


def test_nothing_but_the_arguments_can_be_edited() -> None:
    for other in (replace(EDITED, job_id="k"), replace(EDITED, budget=b'{"usd":500}')):
        assert refusal(ASKED, vote("ann", edited=other)) == "changed"


# Delegation


def test_who_passes_it_on_has_no_vote_and_the_other_has_one() -> None:
    passed = delegate(ASKED, person("ann"), "eve", 1001.0)
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
    result = delegate(ASKED, by, to, 1001.0)
    assert isinstance(result, Refusal)
    assert result.code == code


def test_it_does_not_come_back_to_who_passed_it_on() -> None:
    passed = delegate(ASKED, person("ann"), "eve", 1001.0)
    assert isinstance(passed, Approval)
    assert isinstance(delegate(passed, person("eve"), "ann", 1002.0), Refusal)
    again = delegate(passed, person("eve"), "flo", 1002.0)
    assert isinstance(again, Approval)
    assert refusal(again, vote("eve")) == "not allowed"
    assert decided(again, vote(person("flo", "viewer"))).state is ApprovalState.APPROVED


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
    assert unusable(approved, ACTION, 1002.0) is None
    assert unusable(ASKED, ACTION, 1002.0) == "it is pending"
    changed = replace(ACTION, input=b"{}")
    assert unusable(approved, changed, 1002.0) == "the action is not the one that was approved"
    assert unusable(approved, ACTION, 1001.0 + 24 * 3600) == "the approval is too old"
    assert unusable(approved, ACTION, 1002.0, revoked=["ann"]) is not None


@pytest.mark.parametrize("state", [each for each in ApprovalState if each != "APPROVED"])
def test_only_a_yes_allows(state: ApprovalState) -> None:
    assert unusable(replace(ASKED, state=state, decided_at=1001.0), ACTION, 1002.0)


def test_terms_that_nobody_can_fulfil_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Terms(quorum=0)
    with pytest.raises(ValueError, match="fewer are named"):
        Terms(quorum=2, approvers=frozenset({"ann"}))


def test_every_refusal_leaves_the_approval_as_it_is() -> None:
    cases = itertools.product([ASKED], [vote("rob"), vote("ann", action_hash="x")])
    for approval, cast in cases:
        before = replace(approval)
        decide(approval, cast, 1001.0)
        assert approval == before
