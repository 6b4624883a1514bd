"""A yes that is too old, or given by people who may not decide any more, is asked for anew."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import perdure
from perdure import Retry
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import Approval, ApprovalTerms, Person
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.definition import JobDefinition
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from perdure.notify.people import Contact, People
from tests.engine.test_approval import ANN, BOB, asked, paying
from tests.support.engine import durable, until

Make = Callable[[App, list[Any]], JobDefinition[..., Any]]


def gate(app: App, ran: list[Any]) -> JobDefinition[..., Any]:
    @app.step(tags={"financial"})
    async def pay(ctx: StepContext) -> None:
        ran.append("paid")

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()

    return job


def by_code(app: App, ran: list[Any]) -> JobDefinition[..., Any]:
    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.approve("Ship it?")
        ran.append("shipped")

    return job


def in_a_step(app: App, ran: list[Any]) -> JobDefinition[..., Any]:
    @app.step
    async def ship(ctx: StepContext) -> None:
        if await ctx.approve("Ship it?"):
            ran.append("shipped")

    @app.job
    async def job(ctx: JobContext) -> None:
        await ship()

    return job


def budget(app: App, ran: list[Any]) -> JobDefinition[..., Any]:
    @app.step(retry=Retry(attempts=1))
    async def think(ctx: StepContext) -> None:
        await ctx.spend(usd=7)
        ran.append("spent")

    @app.job(budget=BudgetLimits(usd=5))
    async def job(ctx: JobContext) -> None:
        await think()

    return job


every_way = pytest.mark.parametrize("make", [gate, by_code, in_a_step, budget])


def staff(*people: Person) -> People:
    return People(Contact(person=each) for each in people)


async def answered(app: App, make: Make) -> tuple[Handle[Any], Approval, list[Any]]:
    """Have a question answered by ann while no worker looks."""
    ran: list[Any] = []
    job = make(app, ran)
    async with app.running():
        handle = await app.submit(job(), user="kim")
        approval = await asked(app)
        await until(app, handle.id, JobState.WAITING)
    await app.decide(approval, "approve", by="ann")
    return handle, approval, ran


async def is_asked_again(app: App, handle: Handle[Any], first: Approval, ran: list[Any]) -> None:
    """See that the first yes does nothing, and that another one does."""
    async with app.running():
        while not (found := await app.approvals()):
            assert ran == []
            await perdure.process.sleep("5ms")
        (again,) = found
        assert again.id != first.id
        assert (again.title, again.shown) == (first.title, first.shown)
        assert ran == []
        await app.decide(again, "approve", by="bob")
        await handle.result("5s")
    assert len(ran) == 1


@every_way
def test_a_yes_of_one_who_has_lost_the_role_is_asked_for_anew(url: str, make: Make) -> None:
    @durable
    async def test(app: App) -> None:
        app.policy = Policy(people=staff(ANN, BOB))
        handle, first, ran = await answered(app, make)
        app.policy = Policy(people=staff(replace(ANN, roles=frozenset({"viewer"})), BOB))
        await is_asked_again(app, handle, first, ran)

    test(url)


@every_way
def test_a_yes_of_one_who_was_removed_is_asked_for_anew(url: str, make: Make) -> None:
    @durable
    async def test(app: App) -> None:
        app.policy = Policy(people=staff(ANN, BOB))
        handle, first, ran = await answered(app, make)
        app.policy = Policy(people=staff(BOB))
        await is_asked_again(app, handle, first, ran)

    test(url)


@every_way
def test_a_yes_that_is_too_old_is_asked_for_anew(url: str, make: Make) -> None:
    @durable
    async def test(app: App) -> None:
        people = staff(ANN, BOB)
        app.policy = Policy(people=people, terms={RiskLevel.HIGH: ApprovalTerms(valid=1e-6)})
        handle, first, ran = await answered(app, make)
        app.policy = Policy(people=people)
        await is_asked_again(app, handle, first, ran)

    test(url)


@every_way
def test_a_yes_of_one_who_turns_out_to_be_the_requester_is_asked_for_anew(
    url: str, make: Make
) -> None:
    @durable
    async def test(app: App) -> None:
        app.policy = Policy(people=staff(ANN, BOB))
        handle, first, ran = await answered(app, make)
        app.policy = Policy(people=staff(replace(ANN, names=frozenset({"kim"})), BOB))
        await is_asked_again(app, handle, first, ran)

    test(url)


@every_way
def test_a_good_yes_is_used_by_a_worker_that_comes_later(url: str, make: Make) -> None:
    @durable
    async def test(app: App) -> None:
        app.policy = Policy(people=staff(ANN, BOB))
        handle, _, ran = await answered(app, make)
        async with app.running():
            await handle.result("5s")
        assert len(ran) == 1
        assert len(await app.approvals(None)) == 1

    test(url)


@durable
async def test_what_the_code_has_opened_closes_when_the_yes_is_void(app: App) -> None:
    ran: list[str] = []

    @app.step(irreversible=True)
    async def ship(ctx: StepContext) -> None:
        ran.append("shipped")

    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.approve("All of them?", opens=[ship])
        await ship()
        await ctx.receive("more")
        await ship()

    app.policy = Policy(people=staff(ANN, BOB))
    async with app.running():
        handle = await app.submit(job(), user="kim")
        await app.decide(await asked(app), "approve", by="ann")
        while not ran:
            await perdure.process.sleep("5ms")
    assert ran == ["shipped"]
    app.policy = Policy(people=staff(BOB))
    await handle.send("more")
    async with app.running():
        again = await asked(app)
        assert (again.step, ran) == ("ship#2", ["shipped"])
        await app.decide(again, "approve", by="bob")
        await handle.result("5s")
    assert ran == ["shipped", "shipped"]


# A no


@durable
async def test_a_no_is_asked_about_again_after_a_retry(app: App) -> None:
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(5), user="kim")
        await app.decide(await asked(app), "reject", by=ANN)
        await until(app, handle.id, JobState.FAILED)
        await handle.retry()
        await app.decide(await asked(app), "approve", by=ANN)
        assert await handle.result("5s") == 5
    assert ran == [5]


@durable
async def test_a_refund_that_was_refused_is_asked_about_again_after_a_resume(app: App) -> None:
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(5, fail=True), user="kim")
        await app.decide(await asked(app), "approve", by=ANN)
        refund = await asked(app)
        await app.decide(refund, "reject", by=ANN)
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.resume()
        again = await asked(app)
        assert (again.step, again.id != refund.id) == (refund.step, True)
        await app.decide(again, "approve", by=ANN)
        await until(app, handle.id, JobState.COMPENSATED)
    assert ran == [5, ("refund", 5, 5)]


@durable
async def test_a_budget_that_was_refused_is_asked_about_again_after_a_retry(app: App) -> None:
    ran: list[Any] = []
    job = budget(app, ran)
    async with app.running():
        handle = await app.submit(job(), user="kim")
        await app.decide(await asked(app), "reject", by=ANN)
        await until(app, handle.id, JobState.FAILED)
        await handle.retry()
        await app.decide(await asked(app), "approve", by=ANN)
        await handle.result("5s")
    assert ran == ["spent"]
