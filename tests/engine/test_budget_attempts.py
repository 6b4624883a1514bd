"""Budgets: every attempt costs what it has set aside, whatever became of it."""

import asyncio
import contextlib
import threading
from typing import Any

from perdure import Retry
from perdure.app import App
from perdure.cli.jobs.show import read_view, view_as_json
from perdure.engine.registry import JobRegistry
from perdure.engine.run.context import JobContext, budget_limits
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.budget import BudgetLimits, ModelUsage
from perdure.jobs.transcript import MODEL_CALLED
from tests.engine.test_approval import asked
from tests.engine.test_budget import spent
from tests.support.engine import QUICK, durable

THRICE = Retry(attempts=3, initial_delay="1ms", jitter=0)


@durable
async def test_a_call_that_timed_out_three_times_costs_three_times_what_was_set_aside(
    app: App,
) -> None:
    @app.step(timeout="600ms", retry=THRICE)
    async def think(ctx: StepContext) -> None:
        async with ctx.spend(usd=2):
            await asyncio.Event().wait()

    @app.job(budget=BudgetLimits(usd=100))
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.wait("10s")
    assert await spent(handle) == 6


@durable
async def test_a_timeout_inside_of_the_step_costs_what_was_set_aside(app: App) -> None:
    @app.step
    async def think(ctx: StepContext) -> None:
        for _ in range(3):
            with contextlib.suppress(TimeoutError):
                async with ctx.spend(usd=2), asyncio.timeout(0.001):
                    await asyncio.Event().wait()

    @app.job
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.result("5s")
    assert await spent(handle) == 6


@durable
async def test_what_timed_out_counts_against_the_limit_at_once(app: App) -> None:
    @app.step(timeout="600ms", retry=THRICE)
    async def think(ctx: StepContext) -> None:
        async with ctx.spend(usd=2):
            await asyncio.Event().wait()

    @app.job(budget=BudgetLimits(usd=5))
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        assert "6 usd are needed in total, but only 5 are granted" in (await asked(app)).title
        budget = await handle.budget()
        assert budget is not None
        assert budget.gone.usd == 4
        await handle.cancel()
        await handle.wait("5s")


@durable
async def test_a_place_that_is_reached_again_settles_what_its_last_attempt_left(app: App) -> None:
    open_reservations: list[int] = []

    @app.step(timeout="600ms", retry=THRICE)
    async def think(ctx: StepContext) -> None:
        async with ctx.spend(usd=2):
            budget = await handle.budget()
            assert budget is not None
            open_reservations.append(len(budget.reserved))
            await asyncio.Event().wait()

    @app.job
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.wait("10s")
    assert set(open_reservations) == {1}
    assert await spent(handle) == 6


@durable
async def test_a_thread_that_is_left_behind_sets_nothing_more_aside(app: App) -> None:
    ended, late = threading.Event(), threading.Event()

    @app.step(timeout="600ms", retry=Retry(attempts=1))
    def think(ctx: Any) -> None:
        with ctx.spend(usd=2):
            ended.wait(10)
        try:
            ctx.spend(usd=40)
        finally:
            late.set()

    @app.job
    async def job(ctx: JobContext) -> None:
        try:
            await think()
        except Exception:  # noqa: BLE001  the job goes on without it
            ended.set()
        await ctx.sleep("10ms")

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.result("10s")
        await asyncio.to_thread(late.wait, 10)
    assert await spent(handle) == 2


@durable
async def test_a_worker_that_does_not_know_the_first_job_holds_to_its_limits(app: App) -> None:
    parts = JobRegistry()

    @parts.step
    async def think(ctx: StepContext) -> None:
        await ctx.spend(usd=6)

    @parts.job(queue="other")
    async def child(ctx: JobContext) -> None:
        assert await budget_limits(ctx) == BudgetLimits(usd=5)
        await think()

    app.include(parts)

    @app.job(budget=BudgetLimits(usd=5))
    async def job(ctx: JobContext) -> None:
        await ctx.child(child())

    other = App(app.url, worker=QUICK, queues=["other"])
    other.include(parts)
    async with app.running(), other.running():
        handle = await app.submit(job(), user="kim")
        assert "6 usd are needed in total, but only 5 are granted" in (await asked(app)).title
        await handle.cancel()
        await handle.wait("5s")
    await other.close()


@durable
async def test_a_job_is_shown_with_its_budget(app: App) -> None:
    @app.step
    async def think(ctx: StepContext, usd: float) -> None:
        await ctx.spend(usd=usd, tokens=100)

    @app.job
    async def child(ctx: JobContext) -> None:
        await think(2)

    @app.job(budget=BudgetLimits(usd=10))
    async def job(ctx: JobContext) -> None:
        await think(1)
        await ctx.child(child())

    handle = await app.submit(job(), user="kim")
    before = view_as_json(await read_view(app, handle))["budget"]
    assert (before["limits"]["usd"], before["spent"]["usd"]) == (10, 0)
    async with app.running():
        await handle.result("5s")
        (one,) = [each for each in await app.find_jobs() if each.parent == handle.id]
        fork = await handle.fork("think")
        await fork.result("5s")
    shown = view_as_json(await read_view(app, handle))["budget"]
    assert shown["job"] == handle.id
    assert shown["spent"] == {"usd": 6, "tokens": 400, "calls": 0}
    assert shown["reserved"] == {"usd": 0, "tokens": 0, "calls": 0}
    assert shown["by_others"] == {"usd": 5, "tokens": 300, "calls": 0}
    for other in (one.id, fork.id):
        view = await read_view(app, await app.handle(other))
        assert view_as_json(view)["budget"]["job"] == handle.id


@durable
async def test_a_model_may_have_any_name(app: App) -> None:
    @app.step
    async def think(ctx: StepContext) -> None:
        async with ctx.spend(tokens=5) as held:
            await held.settle(usage=ModelUsage(model="a\0b \ud800", input_tokens=3))

    @app.job
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.result("10s")
    budget = await handle.budget()
    assert budget is not None
    assert budget.spent.tokens == 3
    (called,) = [each for each in await handle.events() if each.type == MODEL_CALLED]
    assert called.data["model"] == "a⟨U+0000⟩b ⟨U+D800⟩"
