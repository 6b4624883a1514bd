"""Things that happen at the same time: whoever wins, the job is in one legal state."""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import perdure
from perdure.app import App
from perdure.base.errors import IllegalTransition, JobFailed
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.model import JobQuery
from perdure.jobs.state import ENDED, JobState
from tests.support.engine import QUICK, durable, obeyed, until

ROUNDS = 25


@durable
async def test_a_cancel_that_races_with_the_end_gives_one_of_both(app: App) -> None:
    chance = random.Random(5)

    @app.step
    async def step(ctx: StepContext) -> None:
        await perdure.process.sleep(0.004 * chance.random())

    @app.job
    async def job(ctx: JobContext) -> str:
        await step()
        return "done"

    ends: list[JobState] = []
    async with app.running():
        for _ in range(ROUNDS):
            handle = await app.submit(job())
            await perdure.process.sleep(0.008 * chance.random())
            with suppress(IllegalTransition):
                await handle.cancel()
            ends.append(await handle.wait("10s"))
            last = await handle.job()
            assert (last.owner, last.state) == (None, ends[-1])
            assert (last.result is not None) == (ends[-1] is JobState.COMPLETED)
    assert set(ends) <= {JobState.CANCELLED, JobState.COMPLETED}


@durable
async def test_a_deadline_that_races_with_the_end_gives_one_of_both(app: App) -> None:
    chance = random.Random(6)

    @app.step
    async def step(ctx: StepContext) -> None:
        await perdure.process.sleep(0.02 * chance.random())

    @app.job
    async def job(ctx: JobContext) -> str:
        await step()
        return "done"

    async with app.running():
        for _ in range(ROUNDS):
            handle = await app.submit(job(), deadline=0.001 + 0.03 * chance.random())
            ended = await handle.wait("10s")
            if ended is JobState.COMPLETED:
                assert await handle.result() == "done"
            else:
                with pytest.raises(JobFailed, match=r"FAILED.*deadline"):
                    await handle.result()
            assert (await handle.job()).owner is None


@durable
async def test_a_message_is_heard_however_close_to_the_wait_it_comes(app: App) -> None:
    chance = random.Random(7)

    @app.step
    async def step(ctx: StepContext) -> None:
        await perdure.process.sleep(0.003 * chance.random())

    @app.job
    async def job(ctx: JobContext) -> str:
        await step()
        return await ctx.receive("word")

    # Nothing is found by polling: who misses the news waits for ever.
    async with app.running(replace(QUICK, poll="1h")):
        for number in range(3 * ROUNDS):
            handle = await app.submit(job())
            await perdure.process.sleep(0.012 * chance.random())
            await handle.send("word", f"hello {number}")
            assert await handle.result("10s") == f"hello {number}"


@durable
async def test_the_end_of_a_child_is_heard_however_close_to_the_wait_it_comes(app: App) -> None:
    chance = random.Random(8)

    @app.step
    async def step(ctx: StepContext) -> None:
        await perdure.process.sleep(0.003 * chance.random())

    @app.job
    async def leaf(ctx: JobContext) -> int:
        await step()
        return 1

    @app.job
    async def top(ctx: JobContext) -> int:
        return sum(await ctx.gather(*(ctx.child(leaf()) for _ in range(4))))

    async with app.running(replace(QUICK, poll="1h")):
        for _ in range(ROUNDS):
            assert await (await app.submit(top())).result("10s") == 4


@durable
async def test_a_worker_that_stops_leaves_no_job_behind(app: App) -> None:
    @app.step
    async def step(ctx: StepContext, number: int) -> int:
        await perdure.process.sleep("2ms")
        return number

    @app.job
    async def job(ctx: JobContext) -> int:
        return sum([await step(number) for number in range(5)])

    chance = random.Random(9)
    handles = await app.submit_many([job() for _ in range(60)])
    for _ in range(8):
        async with app.running():
            await perdure.process.sleep(0.03 * chance.random())
        for found in await app.find_jobs(JobQuery(limit=100)):
            assert found.owner is None, "the next one would have to wait for its lease"
    async with app.running():
        assert {await handle.result("20s") for handle in handles} == {10}


@durable
async def test_a_paused_job_keeps_what_comes_for_it_until_it_is_resumed(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> str:
        return await ctx.receive("word")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await handle.pause()
        assert await handle.status() is JobState.PAUSED
        await handle.send("word", "kept")
        await perdure.process.sleep(2 * QUICK.poll)
        assert await handle.status() is JobState.PAUSED
        await handle.resume()
        assert await handle.result("5s") == "kept"


@pytest.mark.parametrize("heard", [False, True], ids=["at once", "when it was heard"])
def test_a_job_that_is_resumed_before_it_rests_goes_on(url: str, *, heard: bool) -> None:
    @durable
    async def case(app: App) -> None:
        begun, gate = asyncio.Event(), asyncio.Event()

        @app.step
        async def step(ctx: StepContext, name: str) -> str:
            begun.set()
            await gate.wait()
            return name

        @app.job
        async def job(ctx: JobContext) -> str:
            return await step("a") + await step("b")

        async with app.running():
            handle = await app.submit(job())
            await begun.wait()
            await handle.pause()
            if heard:
                await obeyed(app, handle.id)
            await handle.resume()
            gate.set()
            assert await handle.result("10s") == "ab"

    case(url)


@durable
async def test_jobs_are_cancelled_paused_and_resumed_at_random_and_all_end(app: App) -> None:
    chance = random.Random(10)

    @app.step
    async def step(ctx: StepContext, number: int) -> int:
        await perdure.process.sleep(0.004 * chance.random())
        return number

    @app.job
    async def job(ctx: JobContext) -> int:
        first = await step(1)
        await ctx.sleep("5ms")
        parts = await ctx.gather(step(2), step(3), ctx.sleep("30ms"))
        return first + sum(part for part in parts if part is not None)

    async with app.running():
        handles = [await app.submit(job()) for _ in range(ROUNDS)]
        for _ in range(4 * ROUNDS):
            handle = chance.choice(handles)
            verb = chance.choice([handle.pause, handle.resume, handle.resume, handle.cancel])
            with suppress(IllegalTransition):
                await verb("at random")
            await perdure.process.sleep(0.003 * chance.random())
        for handle in handles:
            while await handle.status() not in ENDED:
                with suppress(IllegalTransition):
                    await handle.resume()
                await perdure.process.sleep("5ms")
            assert await handle.status() in (JobState.COMPLETED, JobState.CANCELLED)


@durable
async def test_a_message_that_comes_while_its_job_is_claimed_is_received(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> Any:
        return await ctx.receive("go")

    sender = App(app.url)
    async with sender, app.running():
        handles: list[Handle[Any]] = []
        for number in range(200):
            handle = await app.submit(job())
            await sender.send(handle.id, "go", number)
            handles.append(handle)
        assert [await handle.result("20s") for handle in handles] == list(range(200))
