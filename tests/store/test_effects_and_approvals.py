"""The ledger of effects, approvals, notices and budgets in the stores."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.base.errors import IllegalTransition, LeaseLost
from perdure.jobs.approval import (
    MOST_WRONG,
    Action,
    Approval,
    ApprovalState,
    ApprovalTerms,
    Person,
    Refusal,
    Vote,
    new_link,
    use_of,
)
from perdure.jobs.budget import Amount, Budget, BudgetLimits, Exceeded
from perdure.jobs.effect import NOT_CALLED, Effect, EffectState, Place, UndoCall
from perdure.jobs.model import Claim, Command, JobEvent
from perdure.jobs.outbox import Notice, NoticeKind, NoticeState
from perdure.jobs.state import JobState
from perdure.store.store import Store
from tests.support.store import (
    QUEUES,
    aside,
    claim_one,
    ends,
    entry,
    notices,
    releases,
    settles,
    sql,
    started,
    write_of,
)

NOW = 1000.0


def effect(key: str = "k1", job: str = "a", **values: Any) -> Effect:
    given: dict[str, Any] = {
        "tenant": "acme",
        "no": 0,
        "place": Place("pay#1", 1),
        "kind": "payment",
        "target": "card",
        "called_at": NOW,
    }
    return Effect(job_id=job, key=key, **(given | values))


async def keep(store: Store, claim: Claim, *effects: Effect) -> None:
    await store.write(write_of(claim, effects=effects))


async def test_the_ledger_is_read_back_as_it_was_written(store: Store) -> None:
    claim = await started(store)
    full = effect(
        details=b'{"amount": 5}',
        undo=UndoCall("refund", b'{"why": "x"}'),
        in_doubt="replay",
        key_ttl=60.0,
    )
    await keep(store, claim, full)
    await keep(store, claim, effect("k2", place=Place("pay#1", 1, "item-7")))
    done = full.to(EffectState.DONE, NOW + 1, result=b'"id-1"', proof="answer")
    await keep(store, claim, done)
    first, second = await store.effects("a")
    assert first == replace(done, no=1)
    assert (second.no, second.place.part, second.state) == (2, "item-7", EffectState.INTENT)
    assert await store.effect_by_key("acme", "k1") == first
    assert [each.no for each in await store.open_effects("acme")] == [2]
    assert await store.open_effects("other") == []


async def test_a_line_that_is_written_twice_is_one(store: Store) -> None:
    claim = await started(store)
    done = effect().to(EffectState.DONE, NOW, result=b"1")
    for line in (effect(), effect(), done, done, effect()):
        await keep(store, claim, line)
    (found,) = await store.effects("a")
    assert (found.state, found.result) == (EffectState.DONE, b"1")


@pytest.mark.parametrize("state", [EffectState.FAILED, EffectState.IN_DOUBT])
async def test_what_is_done_stays_done(store: Store, state: EffectState) -> None:
    claim = await started(store)
    done = effect().to(EffectState.DONE, NOW, result=b"1")
    await keep(store, claim, done)
    for line in (effect().to(state, NOW), effect().to(EffectState.DONE, NOW, result=b"2")):
        with pytest.raises(IllegalTransition, match="never changes"):
            await keep(store, claim, line)
    assert (await store.effects("a"))[0].result == b"1"


async def test_a_key_belongs_to_one_job_of_a_tenant(store: Store) -> None:
    await keep(store, await started(store), effect())
    other = await started(store, "b")
    with pytest.raises(IllegalTransition, match="another job"):
        await keep(store, other, effect(job="b"))
    stranger = await started(store, "c", tenant="other")
    await keep(store, stranger, effect(job="c", tenant="other"))
    assert len(await store.effects("c")) == 1


async def test_a_worker_that_lost_the_job_writes_nothing_into_its_ledger(store: Store) -> None:
    claim = await started(store)
    with pytest.raises(LeaseLost):
        await keep(store, replace(claim, epoch=claim.epoch + 1), effect())
    assert await store.effects("a") == []


async def test_the_ledger_goes_only_with_its_job(store: Store, url: str) -> None:
    claim = await started(store)
    await keep(store, claim, effect())
    with pytest.raises(Exception, match="append-only"):
        sql(url, "DELETE FROM effect")
    await keep(store, claim, effect().to(EffectState.DONE, NOW + 1, result=b"1"))
    await store.write(write_of(claim, job=ends()))
    assert await store.prune(await store.now() + 1, 10) == 1
    assert sql(url, "SELECT count(*) FROM effect") == [(0,)]


@pytest.mark.parametrize("choice", ["happened", "did not happen"])
async def test_a_job_that_has_ended_in_doubt_is_kept_until_somebody_settles_it(
    store: Store, choice: str
) -> None:
    claim = await started(store)
    await keep(store, claim, effect(), effect().to(EffectState.IN_DOUBT, NOW))
    await store.write(write_of(claim, job=ends(JobState.FAILED)))
    assert await store.prune(await store.now() + 1, 10) == 0
    await says(store, choice)
    job = await store.job("a")
    assert job is not None
    assert job.state is JobState.FAILED
    assert await store.prune(await store.now() + 1, 10) == 1


# What a person says


async def in_doubt(store: Store) -> None:
    claim = await started(store)
    await keep(store, claim, effect(), effect().to(EffectState.IN_DOUBT, NOW))
    await store.write(write_of(claim, job=releases(JobState.NEEDS_ATTENTION, error=b'"why"')))


async def says(store: Store, choice: str, output: bytes | None = None) -> None:
    asked = Command(job_id="a", action="resolve", actor="kim", effect=1, choice=choice)
    await store.command(replace(asked, output=output))


@pytest.mark.parametrize(
    ("choice", "state", "job"),
    [
        ("happened", EffectState.DONE, JobState.PENDING),
        ("did not happen", EffectState.FAILED, JobState.PENDING),
        ("compensate", EffectState.IN_DOUBT, JobState.COMPENSATING),
    ],
)
async def test_a_person_settles_what_is_in_doubt(
    store: Store, choice: str, state: EffectState, job: JobState
) -> None:
    await in_doubt(store)
    await says(store, choice, b'"ref-1"' if choice == "happened" else None)
    (found,) = await store.effects("a")
    assert found.state is state
    assert found.result == (b'"ref-1"' if choice == "happened" else None)
    assert (await claim_one(store)).job.id == "a"
    told = await store.job("a")
    assert told is not None
    assert told.state is (JobState.RUNNING if job is JobState.PENDING else job)
    assert (await store.events("a"))[-2].data["choice"] == choice


async def test_only_what_is_in_doubt_can_be_settled(store: Store) -> None:
    await in_doubt(store)
    with pytest.raises(IllegalTransition, match="say one of"):
        await says(store, "perhaps")
    await says(store, "happened")
    with pytest.raises(IllegalTransition, match="not in doubt"):
        await says(store, "did not happen")


# Approvals


ANN = Person(id="ann", tenant="acme", roles=frozenset({"approver"}))
BOB = replace(ANN, id="bob")


async def asked(store: Store, *channels: str, ago: float = 0.0, **terms: Any) -> Approval:
    claim = await started(store)
    now = await store.now()
    action = Action(tenant="acme", job_id="a", step="pay#1", input=b'{"usd": 5}')
    made = Approval(
        id="ap1",
        tenant="acme",
        job_id="a",
        step="pay#1",
        action=action,
        title="Pay?",
        created_at=now - ago,
        requester="kim",
        terms=ApprovalTerms(**terms),
    )
    notices = tuple(
        Notice(
            id=f"n-{name}",
            tenant="acme",
            kind=NoticeKind.ASKED,
            job_id="a",
            channel=name,
            due_at=now,
            approval_id="ap1",
        )
        for name in channels
    )
    await store.write(
        write_of(claim, approvals=(made,), notices=notices, job=releases(), news_seen=claim.news)
    )
    return made


def yes(approval: Approval, person: Person = ANN, **values: Any) -> Vote:
    return Vote(person=person, verdict="approve", action_hash=approval.action.hash, **values)


async def test_a_decision_wakes_the_job_and_is_audited(store: Store) -> None:
    made = await asked(store)
    assert await store.claim("w1", QUEUES, 1, 60) == []
    result = await store.vote("ap1", yes(made, channel="api", reason="fine"))
    assert isinstance(result, Approval)
    assert result.state is ApprovalState.APPROVED
    assert await store.approval("ap1") == result == await store.approval_of_step("a", "pay#1")
    assert (await claim_one(store)).job.id == "a"
    event = next(each for each in await store.events("a") if each.type == "approval.approve")
    assert (event.actor, event.data["reason"]) == ("ann", "fine")


async def test_of_two_decisions_at_once_one_counts(store: Store, other: Store) -> None:
    made = await asked(store)
    no = Vote(person=BOB, verdict="reject", action_hash=made.action.hash)
    results = await asyncio.gather(store.vote("ap1", yes(made)), other.vote("ap1", no))
    assert sorted(isinstance(each, Refusal) for each in results) == [False, True]
    kinds = [each.type for each in await store.events("a")]
    assert kinds.count("approval.refused") == 1
    assert kinds.count("approval.approve") + kinds.count("approval.reject") == 1


async def test_what_was_asked_last_is_the_latest_also_if_the_clock_was_set_back(
    store: Store,
) -> None:
    made = await asked(store)
    await store.vote("ap1", yes(made))
    again = replace(made, id="ap2", created_at=made.created_at - 3600)
    await store.write(write_of(await claim_one(store), approvals=(again,)))
    latest = await store.approval_of_step("a", "pay#1")
    assert latest is not None
    assert latest.id == "ap2"


async def test_the_same_question_is_asked_once(store: Store) -> None:
    made = await asked(store)
    await store.send("a", "wake", b"1")
    claim = await claim_one(store)
    again = replace(made, id="ap2")
    await store.write(write_of(claim, approvals=(again,)))
    assert [each.id for each in await store.approvals()] == ["ap1"]
    assert await store.approvals(ApprovalState.APPROVED) == []
    assert await store.approvals(tenant="other") == []


async def test_time_reminds_and_expires_and_tells_by_the_same_channels(store: Store) -> None:
    await asked(store, "slack", expires=-1.0)
    assert await store.run_approval_timers() == 1
    found = await store.approval("ap1")
    assert found is not None
    assert found.state is ApprovalState.EXPIRED
    assert {each.kind for each in await notices(store, "a")} == {
        NoticeKind.ASKED,
        NoticeKind.EXPIRED,
    }
    assert await store.run_approval_timers() == 0
    assert (await claim_one(store)).job.id == "a"


async def test_people_are_warned_once_before_a_question_expires(store: Store) -> None:
    await asked(store, "slack", "mail", expires=3600.0, ago=3000.0)
    assert await store.run_approval_timers() == 1
    assert await store.run_approval_timers() == 0
    warned = [each for each in await notices(store, "a") if each.kind is NoticeKind.EXPIRES_SOON]
    assert sorted(each.channel for each in warned) == ["mail", "slack"]
    assert {each.approval_id for each in warned} == {"ap1"}
    kinds = [each.type for each in await store.events("a")]
    assert kinds.count("alert.expires_soon") == 1
    assert await store.claim("w1", QUEUES, 1, 60) == []  # the job waits on


async def test_an_entry_takes_back_only_its_own_question(store: Store) -> None:
    await asked(store)
    claim = await claim_one(store) if (await store.send("a", "wake", b"1")) else None
    assert claim is not None
    found = await store.approval("ap1")
    assert found is not None
    for step, state in (("other#1", ApprovalState.PENDING), (found.step, ApprovalState.WITHDRAWN)):
        await store.write(write_of(claim, withdraws=step))
        now = await store.approval("ap1")
        assert now is not None
        assert now.state is state


async def test_an_ended_job_takes_its_question_back(store: Store) -> None:
    await asked(store)
    await store.send("a", "wake", b"1")
    claim = await claim_one(store)
    await store.write(write_of(claim, job=ends(JobState.FAILED), withdraws=True))
    found = await store.approval("ap1")
    assert found is not None
    assert found.state is ApprovalState.WITHDRAWN


async def test_a_notice_is_taken_by_one_and_comes_again_until_it_is_delivered(
    store: Store, other: Store
) -> None:
    made = await asked(store, "slack", "mail")
    assert await store.take_notices(["hook"]) == []
    taken, none = await store.take_notices(["slack"]), await other.take_notices(["slack"])
    assert ([each.id for each in taken], none) == (["n-slack"], [])
    await store.settle_notice(taken[0].failed("down", await store.now() - 100))
    (again,) = await store.take_notices(["slack"])
    assert (again.tries, again.error, again.state) == (1, "down", NoticeState.SENDING)
    await store.settle_notice(again.delivered("C1/17"))
    assert await store.take_notices(["slack"]) == []
    assert isinstance(await store.vote("ap1", yes(made)), Approval)
    told = await store.take_notices(["slack", "mail"], lease=0)
    assert {(each.channel, each.kind) for each in told} == {
        ("slack", NoticeKind.DECIDED),
        ("mail", NoticeKind.DECIDED),
        ("mail", NoticeKind.ASKED),
    }


async def addressed(store: Store, channel: str, *recipients: str) -> None:
    """Give every recipient a notice, as a courier does."""
    for notice in await store.take_notices([channel]):
        assert notice.recipient == ""
        rows = [notice.to(each) for each in recipients]
        await store.settle_notice(notice.addressed(), *rows)


async def test_after_a_crash_only_those_are_told_who_were_not(store: Store, other: Store) -> None:
    await asked(store, "mail")
    await addressed(store, "mail", "ann", "bob", "kim")
    taken = {each.recipient: each for each in await store.take_notices(["mail"], lease=0)}
    assert set(taken) == {"ann", "bob", "kim"}
    for name in ("ann", "kim"):
        await store.settle_notice(taken[name].delivered(name))
    # The worker is dead.
    assert [each.recipient for each in await other.take_notices(["mail"])] == ["bob"]
    assert await store.take_notices(["mail"]) == []


async def test_recipients_are_found_out_once(store: Store, other: Store) -> None:
    await asked(store, "mail")
    (one,), (two,) = (
        await store.take_notices(["mail"], lease=0),
        await other.take_notices(["mail"], lease=0),
    )
    for desk, notice in ((store, one), (other, two)):
        await desk.settle_notice(notice.addressed(), notice.to("ann"), notice.to("bob"))
    taken = await store.take_notices(["mail"])
    assert sorted(each.recipient for each in taken) == ["ann", "bob"]


async def test_a_decision_waits_for_the_question_that_is_being_sent(store: Store) -> None:
    made = await asked(store, "slack")
    await addressed(store, "slack", "C1")
    (question,) = await store.take_notices(["slack"])
    assert isinstance(await store.vote("ap1", yes(made)), Approval)
    await addressed(store, "slack", "C1")
    assert await store.take_notices(["slack"]) == []
    await store.settle_notice(question.delivered("C1/17"))
    (decided,) = await store.take_notices(["slack"])
    assert (decided.kind, decided.asked) == (NoticeKind.DECIDED, "C1/17")


async def test_each_recipient_gets_one_notice_at_a_time(store: Store, other: Store) -> None:
    made = await asked(store, "mail")
    await addressed(store, "mail", "ann", "bob")
    assert isinstance(await store.vote("ap1", yes(made)), Approval)
    taken = await store.take_notices(["mail"], lease=0)  # both questions, and the decision
    (decision,) = [each for each in taken if not each.recipient]
    rows = [decision.to(each) for each in ("ann", "bob")]
    await store.settle_notice(decision.addressed(), *rows)
    first = await store.take_notices(["mail"])
    assert sorted((each.recipient, each.kind) for each in first) == [
        ("ann", NoticeKind.ASKED),
        ("bob", NoticeKind.ASKED),
    ]
    await store.settle_notice(first[0].delivered())
    (second,) = await other.take_notices(["mail"])
    assert (second.recipient, second.kind) == (first[0].recipient, NoticeKind.DECIDED)
    # What fails is tried later; until then others may go first.
    await store.settle_notice(first[1].failed("no", await store.now() + 1000))
    (third,) = await other.take_notices(["mail"])
    assert (third.recipient, third.kind) == (first[1].recipient, NoticeKind.DECIDED)


async def test_a_link_decides_once(store: Store) -> None:
    made = await asked(store)
    link = new_link(made, "ann", "token", "1234", await store.now() + 60)
    await store.keep_link(link)
    assert await store.link(link.id) == (link, made)
    unknown = await store.vote("ap1", yes(made), use_of("another token", "1234"))
    assert isinstance(unknown, Refusal)
    assert isinstance(await store.vote("ap1", yes(made), use_of("token", "1234")), Approval)
    found = await store.link(link.id)
    assert found is not None
    assert found[0].used_at is not None


async def test_wrong_codes_from_several_programs_at_once_are_each_counted(
    store: Store, other: Store
) -> None:
    made = await asked(store)
    link = new_link(made, "ann", "token", "1234", await store.now() + 60)
    await store.keep_link(link)
    wrong = use_of("token", "4321")
    votes = [each.vote("ap1", yes(made), wrong) for _ in range(10) for each in (store, other)]
    answers = await asyncio.gather(*votes)
    codes = [each.code for each in answers if isinstance(each, Refusal)]
    assert codes.count("wrong code") == MOST_WRONG - 1
    assert codes.count("not allowed") == 20 - MOST_WRONG + 1  # the link is dead
    right = await other.vote("ap1", yes(made), use_of("token", "1234"))
    assert right == await store.vote("ap1", yes(made), wrong)
    found = await store.link(link.id)
    assert found is not None
    assert found[0].wrong == MOST_WRONG
    assert len(await store.approvals(ApprovalState.PENDING)) == 1
    kinds = [each.type for each in await store.events("a")]
    assert kinds.count("approval.turned_away") == 22


async def test_a_link_of_another_approval_opens_nothing(store: Store) -> None:
    made = await asked(store)
    await store.keep_link(new_link(replace(made, id="ap2"), "ann", "token", "1234", 1e12))
    assert isinstance(await store.vote("ap1", yes(made), use_of("token", "1234")), Refusal)


async def test_all_goes_with_its_job(store: Store, url: str) -> None:
    made = await asked(store, "slack")
    await store.keep_link(new_link(made, "ann", "token", "1234", 1e12))
    await store.send("a", "wake", b"1")
    claim = await claim_one(store)
    await store.reserve(aside(claim, "a/x", 1), Budget())
    await store.write(write_of(claim, job=ends()))
    await store.prune(await store.now() + 1, 10)
    for table in ("approval", "link", "notice", "budget"):
        assert sql(url, f"SELECT count(*) FROM {table}") == [(0,)]


# Budgets


async def test_a_budget_holds_for_many_at_once(store: Store, other: Store) -> None:
    new, claim = Budget(limits=BudgetLimits(usd=5)), await started(store)
    calls = [
        one.reserve(aside(claim, f"a/step#{n}", 1), new) for n, one in enumerate([store, other] * 5)
    ]
    results = await asyncio.gather(*calls)
    assert sum(isinstance(each, Exceeded) for each in results) == 5
    held = next(iter(await _reserved(store)))
    await store.write(write_of(claim, spending=(settles("a", held, Amount.of(usd=0.25)),)))
    await store.raise_limits("a", BudgetLimits(usd=6), new)
    found = await store.budget("a")
    assert found is not None
    assert (found.limits.usd, found.gone.usd) == (6, 4.25)


async def test_a_write_reserves_and_settles_and_a_second_settlement_counts_for_nothing(
    store: Store,
) -> None:
    claim, note = await started(store), JobEvent(type="model.called")
    held = settles("a", "a/x$1/1", Amount.of(usd=2), reserved=Amount.of(usd=3), note=note)
    again = settles("a", "a/x$1/1", Amount.of(usd=5), note=note)
    await store.write(write_of(claim, entry(0), spending=(held,)))
    await store.write(write_of(claim, spending=(again,)))
    found = await store.budget("a")
    assert found is not None
    assert (found.spent.usd, found.reserved) == (2, {})
    assert [each.type for each in await store.events("a")].count("model.called") == 1


async def test_what_a_refused_write_spends_is_not_spent(store: Store) -> None:
    claim = await started(store)
    spent = settles("a", "a/x$1/1", Amount.of(usd=2), reserved=Amount.of(usd=3))
    with pytest.raises(LeaseLost):
        await store.write(replace(write_of(claim, spending=(spent,)), epoch=claim.epoch + 1))
    assert await store.budget("a") is None


async def test_what_a_job_reserved_with_its_last_write_is_spent_when_it_ends(store: Store) -> None:
    claim = await started(store)
    held = replace(settles("a", "a/x$1/1", Amount(), reserved=Amount.of(usd=3)), settled=None)
    await store.write(write_of(claim, spending=(held,), job=ends()))
    found = await store.budget("a")
    assert found is not None
    assert (found.spent.usd, found.reserved) == (3, {})


async def _reserved(store: Store) -> list[str]:
    found = await store.budget("a")
    assert found is not None
    return list(found.reserved)


async def test_lines_are_numbered_without_gaps(store: Store) -> None:
    claim = await started(store)
    first, second, third = (effect(key, place=Place(key, 1)) for key in ("k1", "k2", "k3"))
    await keep(store, claim, first)
    done = first.to(EffectState.DONE, NOW + 1, result=b"1")
    await keep(store, claim, done, second, third)
    assert [line.no for line in await store.effects("a")] == [1, 2, 3]
    assert [line.key for line in await store.effects("a")] == ["k1", "k2", "k3"]


async def test_a_key_belongs_to_one_place_of_its_job(store: Store) -> None:
    claim = await started(store)
    await keep(store, claim, effect())
    for place in (Place("pay#2", 1), Place("pay#1", 2), Place("pay#1", 1, "item-7")):
        with pytest.raises(IllegalTransition, match="another place"):
            await keep(store, claim, effect(place=place))
    (line,) = await store.effects("a")
    assert line.place == Place("pay#1", 1)


async def test_who_was_ended_before_a_call_says_nothing_about_the_call_of_another(
    store: Store,
) -> None:
    await keep(store, await started(store), effect())
    other = await started(store, "b")
    line = effect(job="b").to(EffectState.FAILED, NOW, proof=NOT_CALLED)
    await keep(store, other, line)
    await keep(store, other, effect("k2", job="b").to(EffectState.FAILED, NOW, proof=NOT_CALLED))
    assert [each.state for each in await store.effects("a")] == [EffectState.INTENT]
    assert [each.key for each in await store.effects("b")] == ["k2"]


async def test_what_is_undone_stays_undone(store: Store) -> None:
    claim = await started(store)
    done = effect().to(EffectState.DONE, NOW, result=b"1")
    undone = done.to(EffectState.UNDONE, NOW + 1)
    for line in (done, undone, undone, effect()):
        await keep(store, claim, line)
    for state in (EffectState.DONE, EffectState.FAILED, EffectState.IN_DOUBT):
        with pytest.raises(IllegalTransition, match="never changes"):
            await keep(store, claim, effect().to(state, NOW, result=b"1"))
    (found,) = await store.effects("a")
    assert (found.state, found.result) == (EffectState.UNDONE, b"1")


async def test_what_a_person_found_not_to_have_happened_is_not_undone(store: Store) -> None:
    claim = await started(store)
    await keep(store, claim, effect().to(EffectState.FAILED, NOW))
    doubt = effect().to(EffectState.IN_DOUBT, NOW)
    await keep(store, claim, doubt.to(EffectState.UNDONE, NOW))  # by one who has not heard of it
    assert [line.state for line in await store.effects("a")] == [EffectState.FAILED]


async def test_of_a_business_key_the_latest_generation_is_found(store: Store) -> None:
    claim = await started(store)
    for generation in (1, 3, 2):
        line = effect(f"k{generation}", generation=generation, business="order 7")
        await keep(store, claim, line)
    found = await store.effect_of_business("acme", "order 7")
    assert found is not None
    assert found.generation == 3
    assert await store.effect_of_business("other", "order 7") is None


@pytest.mark.parametrize(("kept_until", "left"), [(None, 1), (NOW, 0), (1e12, 1)])
async def test_a_business_key_outlives_its_job(
    store: Store, url: str, kept_until: float | None, left: int
) -> None:
    claim = await started(store)
    shared = effect("k1", business="order 7", kept_until=kept_until, details=b"{}")
    for line in (shared, effect("k2")):
        await keep(store, claim, line.to(EffectState.DONE, NOW + 1, result=b"1"))
    await store.write(write_of(claim, job=ends()))
    assert await store.prune(await store.now() + 1, 10) == 1
    kept = sql(url, "SELECT key, target, details, result FROM effect")
    assert [tuple(each) for each in kept] == [("k1", "(deleted)", None, "1")] * left
