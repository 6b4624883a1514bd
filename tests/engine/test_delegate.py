"""A question that one person leaves to another."""

import asyncio

import pytest
from msgspec.structs import replace

from perdure.app import App
from perdure.base.errors import DecisionRefused
from perdure.engine.handle import Handle
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.jobs.approval import Approval, ApprovalTerms, Person
from perdure.jobs.outbox import NoticeKind
from perdure.jobs.risk import RiskLevel
from perdure.notify.people import Contact, People
from tests.engine.test_approval import ANN, BOB, Loud, asked, soon
from tests.support.engine import durable

CAS = replace(ANN, id="cas", roles=frozenset[str]())  # may decide only if somebody says so


async def ask(app: App, expires: str = "1h") -> tuple[Handle[list[str]], Approval]:
    """Let a job of kim ask something."""

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return list((await ctx.approve("Ship it?", expires=expires)).by)

    handle = await app.submit(job(), user="kim")
    (approval,) = await soon(lambda: app.approvals(None), bool)
    return handle, approval


async def audit(handle: Handle[list[str]], kind: str) -> list[tuple[str, str]]:
    events = [each for each in await handle.events() if each.type == kind]
    return [(each.actor, each.data.get("why") or each.data.get("reason", "")) for each in events]


@durable
async def test_who_gets_it_decides_and_who_passed_it_on_does_not(app: App) -> None:
    slack = Loud("slack")
    app.policy = Policy(channels=(slack,))
    async with app.running():
        handle, approval = await ask(app)
        with pytest.raises(DecisionRefused, match="not among the people"):
            await app.decide(approval, "approve", by=CAS)
        passed = await app.delegate(approval, to="cas", by=ANN, reason="on holiday")
        assert passed.delegates == (("ann", "cas"),)
        await slack.has_told(2)
        with pytest.raises(DecisionRefused, match="not among the people"):
            await app.decide(approval, "approve", by=ANN)
        await app.decide(approval, "approve", by=CAS)
        assert await handle.result("5s") == ["cas"]
    assert [kind for kind, _ in slack.told][:2] == [NoticeKind.ASKED, NoticeKind.DELEGATED]
    assert await audit(handle, "approval.delegated") == [("ann", "on holiday")]
    assert [actor for actor, _ in await audit(handle, "approval.refused")] == ["cas", "ann"]


@pytest.mark.parametrize(
    ("by", "to", "code"),
    [
        (CAS, "bob", "not allowed"),  # who may not decide has nothing to pass on
        (replace(ANN, id="kim"), "bob", "four eyes"),
        (ANN, "kim", "four eyes"),
        (ANN, "ann", "not allowed"),
        (replace(ANN, is_program=True), "bob", "not allowed"),
        (replace(ANN, tenant="other"), "bob", "not found"),
    ],
)
def test_the_wrong_person_passes_nothing_on(url: str, by: Person, to: str, code: str) -> None:
    @durable
    async def refused(app: App) -> None:
        async with app.running():
            handle, approval = await ask(app)
            with pytest.raises(DecisionRefused) as refusal:
                await app.delegate(approval, to=to, by=by)
            assert refusal.value.code == code
            assert (await asked(app)).delegates == ()
        assert [actor for actor, _ in await audit(handle, "approval.refused")] == [by.id]

    refused(url)


@durable
async def test_what_is_late_is_not_passed_on(app: App) -> None:
    async with app.running():
        _, approval = await ask(app, expires="1ms")
        with pytest.raises(DecisionRefused) as refusal:
            await app.delegate(approval, to="cas", by=BOB)
        assert refusal.value.code in ("expired", "decided")  # before and after it is written down


@durable
async def test_what_is_decided_is_not_passed_on(app: App) -> None:
    async with app.running():
        handle, approval = await ask(app)
        await app.decide(approval, "approve", by=ANN)
        with pytest.raises(DecisionRefused, match="already approved"):
            await app.delegate(approval, to="cas", by=BOB)
        await handle.result("5s")
    with pytest.raises(DecisionRefused, match="no such approval"):
        await app.delegate("nope", to="cas", by=BOB)


@durable
async def test_an_app_that_knows_its_people_leaves_it_to_nobody_else(app: App) -> None:
    robot = replace(BOB, id="robot", is_program=True)
    contacts = [Contact(person=each) for each in (ANN, CAS, robot)]
    app.policy = Policy(people=People(contacts))
    async with app.running():
        handle, approval = await ask(app)
        for stranger in ("eve", "robot"):
            with pytest.raises(DecisionRefused, match=r"unknown person|a service account"):
                await app.delegate(approval, to=stranger, by="ann")
        with pytest.raises(DecisionRefused, match="unknown person"):
            await app.delegate(approval, to="cas", by="eve")
        await app.delegate(approval, to="cas", by="ann")
        await app.decide(approval, "approve", by="cas")
        assert await handle.result("5s") == ["cas"]
    assert len(await audit(handle, "approval.turned_away")) == 3


@durable
async def test_of_a_decision_and_a_delegation_at_once_one_counts(app: App) -> None:
    async with app.running():
        handle, approval = await ask(app)
        both = await asyncio.gather(
            app.delegate(approval, to="cas", by=ANN),
            app.decide(approval, "approve", by=ANN),
            return_exceptions=True,
        )
        assert sorted(isinstance(each, DecisionRefused) for each in both) == [False, True]
        if isinstance(both[1], DecisionRefused):
            await app.decide(approval, "approve", by=CAS)
        await handle.result("5s")


@pytest.mark.parametrize("named", [frozenset({"ann", "bob"}), frozenset[str]()])
@pytest.mark.parametrize("listed", [False, True])
def test_two_approvers_do_not_leave_a_quorum_of_two_to_one_person(
    url: str, named: frozenset[str], *, listed: bool
) -> None:
    @durable
    async def test(app: App) -> None:
        dan = replace(CAS, id="dan")
        people = [Contact(person=each) for each in (ANN, BOB, CAS, dan)] if listed else []
        terms = {RiskLevel.HIGH: ApprovalTerms(quorum=2, approvers=named)}
        app.policy = Policy(people=People(people), terms=terms)
        async with app.running():
            handle, approval = await ask(app)
            await app.delegate(approval, to="cas", by=ANN)
            with pytest.raises(DecisionRefused, match="then 2 people could not approve"):
                await app.delegate(approval, to="cas", by=BOB)
            assert (await asked(app)).delegates == (("ann", "cas"),)
            await app.delegate(approval, to="dan", by=BOB)
            for by in (CAS, dan):
                await app.decide(approval, "approve", by=by)
            assert await handle.result("5s") == ["cas", "dan"]

    test(url)


@durable
async def test_of_two_delegations_to_one_person_at_once_one_counts(app: App) -> None:
    app.policy = Policy(
        terms={RiskLevel.HIGH: ApprovalTerms(quorum=2, approvers=frozenset({"ann", "bob"}))}
    )
    async with app.running():
        handle, approval = await ask(app)
        both = await asyncio.gather(
            app.delegate(approval, to="cas", by=ANN),
            app.delegate(approval, to="cas", by=BOB),
            return_exceptions=True,
        )
        assert sorted(isinstance(each, DecisionRefused) for each in both) == [False, True]
        left = ANN if isinstance(both[0], DecisionRefused) else BOB
        for by in (CAS, left):
            await app.decide(approval, "approve", by=by)
        await handle.result("5s")
