"""Four eyes: who asked for a job does not decide about it, under no name."""

from typing import Any

import pytest
from msgspec.structs import replace

from perdure.app import App
from perdure.base.errors import DecisionRefused, DefinitionError
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import ApprovalTerms, Person
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from perdure.notify.people import Contact, People
from tests.engine.test_approval import ANN, BOB, asked, paying
from tests.engine.test_void_yes import Make, every_way
from tests.support.engine import durable

KIM = replace(ANN, id="kim")


@every_way
def test_without_a_requester_nobody_is_asked_and_the_job_says_what_to_do(
    url: str, make: Make
) -> None:
    @durable
    async def test(app: App) -> None:
        ran: list[Any] = []
        job = make(app, ran)
        async with app.running():
            handle = await app.submit(job())
            reached = await handle.until(JobState.NEEDS_ATTENTION, JobState.WAITING)
            assert reached is JobState.NEEDS_ATTENTION
            failure = await handle.failure()
            assert failure is not None
            assert "submit it again with user=" in failure.summary()
            assert (await app.approvals(None), ran) == ([], [])
        app.policy = Policy(terms={RiskLevel.HIGH: ApprovalTerms(four_eyes=False)})
        async with app.running():
            await handle.resume()
            await app.decide(await asked(app), "approve", by=ANN)
            await handle.result("5s")
        assert len(ran) == 1

    test(url)


def listed(app: App) -> None:
    app.policy = Policy(
        people=People(
            [
                Contact(person=KIM, email="Kim.Smith@example.com", slack=("T1", "U7")),
                Contact(person=BOB, email="bob@example.com"),
            ]
        )
    )


@pytest.mark.parametrize(
    "requester",
    [
        "kim",
        "Kim",
        "kim ",
        "K\u0131m",  # a dotless i
        "\u043aim",  # a Cyrillic letter
        "ki\u200bm",
        "\uff4b\uff49\uff4d",
        "kim.smith@example.com",
        "KIM.SMITH@EXAMPLE.COM",
        "kim.smith+jobs@example.com",
        "U7",
        "T1/U7",
    ],
)
def test_no_spelling_and_no_account_of_the_requester_decides(url: str, requester: str) -> None:
    @durable
    async def test(app: App) -> None:
        listed(app)
        job, ran = paying(app, tags={"financial"})
        async with app.running():
            handle = await app.submit(job(5), user=requester)
            approval = await asked(app)
            for by in ("kim", "Kim.Smith@example.com", "u7", KIM):
                with pytest.raises(DecisionRefused) as refusal:
                    await app.decide(approval, "approve", by=by)
                assert refusal.value.code == "four eyes"
            with pytest.raises(DecisionRefused) as refusal:
                await app.delegate(approval, to="Kim.Smith@example.com", by="bob")
            assert refusal.value.code == "four eyes"
            assert ran == []
            await app.decide(approval, "approve", by="Bob@Example.com ")
            assert await handle.result("5s") == 5
            (said,) = (await app.approvals(None))[0].decisions
            assert said.person == "bob"

    test(url)


@pytest.mark.parametrize("spelling", ["Ann", "ann ", "\u0430nn", "ann@example.com"])
def test_one_person_in_two_spellings_is_not_two_people(url: str, spelling: str) -> None:
    @durable
    async def test(app: App) -> None:
        app.policy = Policy(terms={RiskLevel.HIGH: ApprovalTerms(quorum=2)})
        job, ran = paying(app, tags={"financial"})
        async with app.running():
            handle = await app.submit(job(5), user="kim")
            approval = await asked(app)
            await app.decide(approval, "approve", by=ANN)
            with pytest.raises(DecisionRefused, match="you have already approved this"):
                await app.decide(approval, "approve", by=replace(ANN, id=spelling))
            assert ran == []
            await app.decide(approval, "approve", by=BOB)
            assert await handle.result("5s") == 5

    test(url)


@durable
async def test_where_people_are_listed_nobody_brings_a_role_along(app: App) -> None:
    listed(app)
    job, ran = paying(app, tags={"financial"})
    eve = replace(ANN, id="eve")
    app.policy.people.contacts.append(Contact(person=replace(eve, roles=frozenset({"viewer"}))))
    async with app.running():
        handle = await app.submit(job(5), user="lee")
        approval = await asked(app)
        for stranger, why in ((ANN, "unknown person"), (eve, "not among the people")):
            with pytest.raises(DecisionRefused, match=why):
                await app.decide(approval, "approve", by=stranger)
        assert ran == []
        await app.decide(approval, "approve", by=BOB)
        await handle.result("5s")


def test_a_person_is_listed_once() -> None:
    twice = Contact(person=BOB, email="ANN@example.com")
    with pytest.raises(DefinitionError, match=r"are both called 'ann@example\.com'"):
        People([Contact(person=ANN, email="ann@example.com"), twice])
    with pytest.raises(DefinitionError, match="list a person once"):
        People([Contact(person=ANN), Contact(person=replace(ANN, id="Ann "))])
    other = Person(id="ann", tenant="other")
    assert len(People([Contact(person=ANN), Contact(person=other)]).contacts) == 2


@durable
async def test_who_forks_a_job_with_other_arguments_cannot_approve_them(app: App) -> None:
    ran: list[int] = []

    @app.step(irreversible=True)
    async def pay(ctx: StepContext, usd: int) -> None:
        ran.append(usd)

    @app.job
    async def job(ctx: JobContext, usd: int) -> None:
        await pay(usd)

    async with app.running():
        handle = await app.submit(job(1), user="kim")
        await app.decide(await asked(app), "reject", by=ANN)
        await handle.wait("5s")
        fork = await handle.fork("pay", 1000, by="bob")
        approval = await asked(app)
        with pytest.raises(DecisionRefused, match="you submitted this job"):
            await app.decide(approval, "approve", by=BOB)
        await app.decide(approval, "approve", by=ANN)
        await fork.result("5s")
        nobodys = await handle.fork("pay", 2000)
        assert (
            await nobodys.until(JobState.NEEDS_ATTENTION, JobState.WAITING)
            is JobState.NEEDS_ATTENTION
        )
    assert ran == [1000]
