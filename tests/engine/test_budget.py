"""Budgets: set aside before, settled after, and at the limit a person decides."""

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import ArgumentError, JobFailed
from perdure.engine.context import JobContext
from perdure.engine.step_context import StepContext
from perdure.jobs.budget import Limits
from perdure.jobs.state import JobState
from tests.engine.rig import durable, until
from tests.engine.test_approval import ANN, asked


@durable
async def test_a_tree_of_jobs_has_one_budget_and_pauses_at_its_limit(app: App) -> None:
    calls: list[float] = []

    @app.step(retry=Retry(attempts=1))
    async def think(ctx: StepContext, usd: float) -> int:
        async with ctx.spend(usd=usd, tokens=100, calls=1) as spent:
            calls.append(usd)
            await spent.settle(usd=usd / 2, tokens=80)
        return ctx.attempt

    @app.job
    async def child(ctx: JobContext) -> int:
        return await ctx.run(think, 4)

    @app.job(budget=Limits(usd=5))
    async def job(ctx: JobContext) -> list[int]:
        first = await ctx.run(think, 2)
        second = await ctx.child(child)
        return [first, second, await ctx.run(think, 4)]

    async with app.running():
        handle = await app.submit(job, user="kim")
        approval = await asked(app)
        await until(app, handle.id, JobState.WAITING)
        assert calls == [2, 4]
        assert "7 usd are needed in all, and 5 are granted" in approval.title
        with pytest.raises(ArgumentError, match="usd"):
            await app.decide(approval, "approve", by=ANN, arguments={"usd": "much"})
        await app.decide(approval, "approve", by=ANN, arguments={"usd": 6.5})
        again = await asked(app)
        assert "6.5 are granted" in again.title
        await app.decide(again, "approve", by=ANN)
        assert await handle.result("5s") == [1, 1, 1]
    budget = await handle.budget()
    assert budget is not None
    assert (budget.spent.usd, budget.spent.tokens, budget.spent.calls) == (5, 240, 3)
    assert (budget.limits.usd, budget.reserved) == (7, {})


@durable
async def test_a_no_ends_the_step(app: App) -> None:
    @app.step
    async def think(ctx: StepContext) -> None:
        await ctx.spend(tokens=11)

    @app.job(budget=Limits(tokens=10))
    async def job(ctx: JobContext) -> None:
        await ctx.run(think)

    async with app.running():
        handle = await app.submit(job, user="kim")
        await app.decide(await asked(app), "reject", by=ANN, reason="enough")
        with pytest.raises(JobFailed, match="ann said no: enough"):
            await handle.result("5s")


@durable
async def test_what_an_attempt_set_aside_is_not_counted_twice(app: App) -> None:
    @app.step(retry=Retry(attempts=3, first="1ms"))
    async def think(ctx: StepContext) -> None:
        await ctx.spend(usd=4)
        if ctx.attempt < 3:
            raise RuntimeError("again")

    @app.job(budget=Limits(usd=5))
    async def job(ctx: JobContext) -> None:
        await ctx.run(think)

    async with app.running():
        handle = await app.submit(job, user="kim")
        await handle.result("5s")
    budget = await handle.budget()
    assert budget is not None
    assert budget.gone.usd == 4
