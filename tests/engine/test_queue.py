"""Who runs when: limits, priority, turns of tenants, many at once."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

import perdure
from perdure.app import App
from perdure.base.errors import ArgumentError
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.model import QueueLimit
from perdure.jobs.state import JobState
from tests.support.engine import QUICK, durable


class Crowd:
    """Steps that count how many of them run at once, in each group."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.order: list[str] = []

    async def pass_through(self, *groups: str) -> None:
        self.order.append(groups[-1])
        for group in groups:
            self.now[group] = self.now.get(group, 0) + 1
            self.most[group] = max(self.most.get(group, 0), self.now[group])
        await perdure.process.sleep("20ms")  # long enough for others to come in, if they may
        for group in groups:
            self.now[group] -= 1


def define(app: App, crowd: Crowd) -> None:
    @app.step
    async def visit(ctx: StepContext, name: str) -> None:
        await crowd.pass_through("all", ctx.tenant, name)

    @app.job
    async def job(ctx: JobContext, name: str) -> None:
        await visit(name)


async def settle(app: App) -> None:
    """Wait until all jobs have ended."""
    while set(await (await app.store()).counts()) != {JobState.COMPLETED}:
        await perdure.process.sleep("5ms")


@durable
async def test_a_worker_runs_no_more_jobs_at_once_than_it_may(app: App) -> None:
    crowd = Crowd()
    define(app, crowd)
    await app.submit_many([app.find_job("job")(str(n)) for n in range(8)])
    async with app.running(replace(QUICK, concurrency=2)):
        await settle(app)
    assert crowd.most["all"] == 2


@durable
async def test_a_fleet_runs_no_more_jobs_of_a_queue_at_once_than_it_may(app: App) -> None:
    crowd = Crowd()
    define(app, crowd)
    app.queues = {"default": QueueLimit(running=3)}
    await app.submit_many([app.find_job("job")(str(n)) for n in range(12)])
    async with app.running(), app.running():
        await settle(app)
    assert crowd.most["all"] == 3


@durable
async def test_a_tenant_has_no_more_jobs_running_at_once_than_it_may(app: App) -> None:
    crowd = Crowd()
    define(app, crowd)
    app.queues = {"default": QueueLimit(running_per_tenant=2)}
    for tenant in ("acme", "umbra"):
        calls = [(str(n),) for n in range(6)]
        await app.submit_many([app.find_job("job")(*each) for each in calls], tenant=tenant)
    async with app.running():
        await settle(app)
    assert crowd.most["acme"] == crowd.most["umbra"] == 2
    assert crowd.most["all"] > 2


@durable
async def test_no_more_jobs_start_than_the_rate_of_their_queue_allows(app: App) -> None:
    crowd = Crowd()
    define(app, crowd)
    app.queues = {"default": QueueLimit(rate=3, per=3600)}
    handles = await app.submit_many([app.find_job("job")(str(n)) for n in range(6)])
    async with app.running():
        for _ in range(3):
            await asyncio.wait(
                [asyncio.ensure_future(handle.wait()) for handle in handles],
                return_when=asyncio.FIRST_COMPLETED,
            )
        while (await (await app.store()).counts()).get(JobState.COMPLETED) != 3:
            await perdure.process.sleep("5ms")
        await perdure.process.sleep(3 * QUICK.poll)
    assert len(crowd.order) == 3
    assert (await (await app.store()).counts())[JobState.PENDING] == 3


@durable
async def test_a_higher_priority_goes_first(app: App) -> None:
    crowd = Crowd()
    define(app, crowd)
    for name, priority in (("low", -1), ("usual", 0), ("high", 5)):
        await app.submit(app.find_job("job")(name), priority=priority)
    async with app.running(replace(QUICK, concurrency=1)):
        await settle(app)
    assert crowd.order == ["high", "usual", "low"]


@durable
async def test_a_tenant_with_many_jobs_does_not_keep_the_others_waiting(app: App) -> None:
    crowd = Crowd()
    define(app, crowd)
    job = app.find_job("job")
    await app.submit_many([job(f"big{n}") for n in range(15)], tenant="big")
    await app.submit_many([job("small1"), job("small2")], tenant="small")
    async with app.running(replace(QUICK, concurrency=1)):
        await settle(app)
    assert max(crowd.order.index("small1"), crowd.order.index("small2")) < 5


@durable
async def test_many_jobs_are_submitted_all_or_none(app: App) -> None:
    @app.job
    async def double(ctx: JobContext, number: int) -> int:
        return 2 * number

    async with app.running():
        handles = await app.submit_many([double(n) for n in range(200)], tenant="acme")
        assert [await handle.result("20s") for handle in handles] == [2 * n for n in range(200)]
    with pytest.raises(ArgumentError):
        await app.submit_many([double(1), cast("Any", double)("two")])
    with pytest.raises(ValueError, match="no key"):
        await app.submit_many([double(1), double(2)], key="one")
    assert len(await app.find_jobs()) <= 200
    assert await app.submit_many([]) == []


@durable
async def test_a_delayed_job_waits_for_its_time(app: App) -> None:
    ran: list[str] = []

    @app.job
    async def job(ctx: JobContext, name: str) -> None:
        ran.append(name)

    async with app.running():
        later = await app.submit(job("later"), delay="1h")
        late = await app.submit(job("late"), delay="100ms")
        await late.result("5s")
    assert ran == ["late"]
    assert await later.status() is JobState.PENDING


@durable
async def test_a_burst_of_messages_reaches_its_job_whole_and_in_order(app: App) -> None:
    @app.job
    async def collect(ctx: JobContext, count: int) -> list[int]:
        return [await ctx.receive("n") for _ in range(count)]

    async with app.running():
        handle = await app.submit(collect(200))
        for number in range(200):
            await handle.send("n", number)
        assert await handle.result("30s") == list(range(200))
