"""Budgets: set aside before, settled after, and at the limit a person decides."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from perdure import Partial, Retry
from perdure.app import App
from perdure.base.errors import ArgumentError, JobFailed, LeaseLost, StepFailed
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.budget import Amount, Budget, BudgetLimits, Reservation
from perdure.jobs.state import JobState
from perdure.process import sleep
from perdure.testing.watched_store import WatchedStore
from tests.engine.test_approval import ANN, asked
from tests.support.engine import durable, until


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
        return await think(4)

    @app.job(budget=BudgetLimits(usd=5))
    async def job(ctx: JobContext) -> list[int]:
        first = await think(2)
        second = await ctx.child(child())
        return [first, second, await think(4)]

    async with app.running():
        handle = await app.submit(job(), user="kim")
        approval = await asked(app)
        await until(app, handle.id, JobState.WAITING)
        assert calls == [2, 4]
        assert "7 usd are needed in total, but only 5 are granted" in approval.title
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

    @app.job(budget=BudgetLimits(tokens=10))
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await app.decide(await asked(app), "reject", by=ANN, reason="enough")
        with pytest.raises(JobFailed, match="ann said no: enough"):
            await handle.result("5s")


async def spent(handle: Handle[Any]) -> float:
    """Give what the books of a job that has ended say; nothing is open there."""
    budget = await handle.budget()
    assert budget is not None
    assert budget.reserved == {}
    return budget.spent.usd


@durable
async def test_every_attempt_counts(app: App) -> None:
    paid: list[int] = []

    @app.step(retry=Retry(attempts=10, initial_delay="1ms", jitter=0))
    async def think(ctx: StepContext) -> None:
        async with ctx.spend(usd=3):
            paid.append(3)
            if ctx.attempt < 10:
                raise RuntimeError("again")

    @app.job(budget=BudgetLimits(usd=100))
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.result("5s")
    assert await spent(handle) == sum(paid) == 30


@durable
async def test_what_is_spent_behind_every_checkpoint_counts(app: App) -> None:
    paid: list[int] = []

    @app.step
    async def think(ctx: StepContext) -> Partial[None] | None:
        done = ctx.load_checkpoint() or 0
        await ctx.spend(usd=3)
        paid.append(3)
        return Partial(None, done + 1) if done < 3 else None

    @app.step
    async def each(ctx: StepContext) -> None:
        async for _ in ctx.items(["a", "b", "b"], every=1):
            await ctx.spend(usd=1)
            paid.append(1)

    @app.job
    async def job(ctx: JobContext) -> None:
        await think()
        await each()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.result("5s")
    assert await spent(handle) == sum(paid) == 15


@durable
async def test_what_a_cancelled_job_has_set_aside_counts_as_spent(app: App) -> None:
    begun = asyncio.Event()

    @app.step
    async def think(ctx: StepContext) -> None:
        async with ctx.spend(usd=3):
            begun.set()
            await asyncio.Event().wait()

    @app.job
    async def child(ctx: JobContext) -> None:
        await think()

    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.child(child())

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await begun.wait()
        await handle.cancel()
        assert await handle.wait("5s") is JobState.CANCELLED
        (other,) = [each for each in await app.find_jobs() if each.parent is not None]
        await (await app.handle(other.id)).wait("5s")
    assert await spent(handle) == 3
    assert await spent(await app.handle(other.id)) == 3


@durable
async def test_a_step_that_spends_on_its_way_to_the_limit_asks_once(app: App) -> None:
    paid: list[int] = []

    @app.step
    async def think(ctx: StepContext) -> None:
        for usd in (2, 4):
            async with ctx.spend(usd=usd):
                paid.append(usd)

    @app.job(budget=BudgetLimits(usd=5))
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        approval = await asked(app)
        assert "8 usd are needed in total, but only 5 are granted" in approval.title
        await app.decide(approval, "approve", by=ANN)
        await handle.result("5s")
    assert paid == [2, 2, 4]
    assert await spent(handle) == 8
    assert len(await app.approvals(None)) == 1


@durable
async def test_a_no_at_the_limit_is_heard_though_more_was_spent_since(app: App) -> None:
    @app.step(retry=Retry(attempts=1))
    async def think(ctx: StepContext) -> None:
        await ctx.spend(usd=2)
        await ctx.spend(usd=4)

    @app.job(budget=BudgetLimits(usd=5))
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await app.decide(await asked(app), "reject", by=ANN, reason="enough")
        with pytest.raises(JobFailed, match="ann said no: enough"):
            await handle.result("5s")
        await handle.retry(by="kim")  # asks again
        assert "6 usd are needed" in (await asked(app)).title


@durable
async def test_who_grants_no_more_than_is_granted_is_told(app: App) -> None:
    @app.step
    async def think(ctx: StepContext) -> None:
        await ctx.spend(usd=6)

    @app.job(budget=BudgetLimits(usd=5))
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        approval = await asked(app)
        for too_low in ({"usd": 5}, {"tokens": 100}):
            with pytest.raises(ArgumentError, match="`usd` must be more than 5, or reject it"):
                await app.decide(approval, "approve", by=ANN, arguments=too_low)
        await app.decide(approval, "approve", by=ANN, arguments={"usd": 6})
        await handle.result("5s")


@durable
async def test_forks_spend_of_the_budget_of_the_tree_that_they_come_from(app: App) -> None:
    @app.step
    async def think(ctx: StepContext) -> None:
        await ctx.spend(usd=2)

    @app.job(budget=BudgetLimits(usd=100))
    async def child(ctx: JobContext) -> None:
        await think()

    @app.job(budget=BudgetLimits(usd=7))
    async def job(ctx: JobContext) -> None:
        await ctx.child(child())

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.result("5s")
        fork = await handle.fork("child:child")
        await fork.result("5s")
        (one, *_) = [each for each in await app.find_jobs() if each.parent == fork.id]
        second = await (await app.handle(one.id)).fork("think")
        await second.result("5s")
        third = await second.fork("think")
        assert "8 usd are needed in total, but only 7 are granted" in (await asked(app)).title
        await third.cancel()
        await third.wait("5s")
    assert [await spent(each) for each in (handle, fork, second, third)] == [6] * 4


@durable
async def test_a_step_in_a_thread_settles_what_it_spends(app: App) -> None:
    @app.step
    def plain(ctx: Any) -> None:
        with ctx.spend(usd=3) as spent:
            spent.settle(usd=1)
        with ctx.spend(usd=2):
            pass
        assert ctx.spend(usd=1) is not None

    @app.step(isolation="thread")
    async def elsewhere(ctx: StepContext) -> None:
        async with ctx.spend(usd=3) as spent:
            await spent.settle(usd=1)
        await ctx.spend(usd=1)

    @app.job
    async def job(ctx: JobContext) -> None:
        await plain()
        await elsewhere()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.result("5s")
    assert await spent(handle) == 6


@durable
async def test_who_has_lost_a_job_sets_nothing_aside_for_it(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None: ...

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.result("5s")
    ended, store = await handle.job(), await app.store()
    late = Reservation(
        job_id=handle.id,
        owner="nobody",
        epoch=ended.epoch,
        root_id=handle.id,
        id=f"{handle.id}/late",
        amount=Amount.of(usd=1),
    )
    with pytest.raises(LeaseLost):
        await store.reserve(late, Budget())
    assert await handle.budget() is None


@durable
async def test_what_a_step_has_settled_makes_room_at_once_for_what_is_spent_next(app: App) -> None:
    settled, done = asyncio.Event(), asyncio.Event()

    @app.step
    async def first(ctx: StepContext) -> None:
        for _ in range(3):
            async with ctx.spend(usd=3) as spent:
                await spent.settle(usd=1)
        settled.set()
        await done.wait()

    @app.step
    async def second(ctx: StepContext) -> None:
        await settled.wait()
        await ctx.spend(usd=2)
        done.set()

    @app.job(budget=BudgetLimits(usd=5))
    async def job(ctx: JobContext) -> None:
        await ctx.gather(first(), second())

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.result("10s")
    assert await spent(handle) == 5


@durable
async def test_what_was_settled_counts_even_if_the_step_fails_or_is_cancelled(app: App) -> None:
    await _fails_and_is_cancelled(app, None)


@durable
async def test_under_a_limit_too_it_counts_though_the_step_fails_or_is_cancelled(app: App) -> None:
    await _fails_and_is_cancelled(app, BudgetLimits(usd=9))


async def _fails_and_is_cancelled(app: App, limit: BudgetLimits | None) -> None:
    settled = asyncio.Event()

    @app.step(retry=Retry(attempts=1))
    async def fails(ctx: StepContext) -> None:
        async with ctx.spend(usd=3) as spent:
            await spent.settle(usd=1)
        raise ValueError("no")

    @app.step
    async def waits(ctx: StepContext) -> None:
        async with ctx.spend(usd=3) as spent:
            await spent.settle(usd=1)
            settled.set()
            await asyncio.Event().wait()

    @app.job(budget=limit)
    async def job(ctx: JobContext) -> None:
        with contextlib.suppress(StepFailed):
            await fails()
        await waits()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await settled.wait()
        await handle.cancel()
        assert await handle.wait("5s") is JobState.CANCELLED
    assert await spent(handle) == 2


@durable
async def test_without_a_limit_a_reservation_is_seen_once_the_call_takes_a_while(app: App) -> None:
    done = asyncio.Event()

    @app.step
    async def think(ctx: StepContext) -> None:
        async with ctx.spend(usd=3) as spent:
            await done.wait()
            await spent.settle(usd=1)

    @app.job
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        while (budget := await handle.budget()) is None:
            await sleep("2ms")
        assert (budget.spent.usd, budget.gone.usd) == (0, 3)
        done.set()
        await handle.result("5s")
    assert await spent(handle) == 1


@durable
async def test_what_a_call_spends_is_recorded_by_the_write_of_its_result(app: App) -> None:
    assert await _writes(app, None) == ["think#1 SUCCEEDED, spending"]


@durable
async def test_under_a_limit_a_call_is_reserved_first_and_settled_with_its_result(app: App) -> None:
    expected = ["reserve", "think#1 SUCCEEDED, spending"]
    assert await _writes(app, BudgetLimits(usd=9)) == expected


async def _writes(app: App, limit: BudgetLimits | None) -> list[str]:
    unhurried = replace(app.worker_settings, start_record_after=3600.0)
    mine = App(app.url, worker=unhurried)

    @mine.step
    async def think(ctx: StepContext) -> None:
        async with ctx.spend(usd=3) as spent:
            await spent.settle(usd=1)

    @mine.job(budget=limit)
    async def job(ctx: JobContext) -> None:
        await think()

    watched = WatchedStore(await mine.store())
    await mine.run(job())
    await mine.close()
    return watched.writes[:-1]
