"""Jobs of jobs: what becomes of children."""

import asyncio

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import JobFailed
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.model import JobQuery
from perdure.jobs.state import JobState
from tests.support.engine import QUICK, durable, until


@durable
async def test_a_child_may_have_children(app: App) -> None:
    @app.job
    async def power(ctx: JobContext, base: int, exponent: int) -> int:
        return 1 if exponent == 0 else base * await ctx.child(power(base, exponent - 1))

    async with app.running():
        assert await (await app.submit(power(2, 5))).result("10s") == 32
    assert len(await app.find_jobs(JobQuery())) == 6


@durable
async def test_the_children_of_a_cancelled_job_are_cancelled_too(app: App) -> None:
    begun = asyncio.Semaphore(0)

    @app.step
    async def hang(ctx: StepContext) -> None:
        begun.release()
        await asyncio.Event().wait()

    @app.job
    async def leaf(ctx: JobContext) -> None:
        await hang()

    @app.job
    async def middle(ctx: JobContext) -> None:
        await ctx.gather(ctx.child(leaf()), ctx.child(leaf()))

    @app.job
    async def top(ctx: JobContext) -> None:
        await ctx.child(middle())

    async with app.running():
        handle = await app.submit(top())
        await begun.acquire()
        await begun.acquire()
        await handle.cancel("enough")
        while {job.state for job in await app.find_jobs()} != {JobState.CANCELLED}:
            await perdure.process.sleep("5ms")
    assert len(await app.find_jobs()) == 4


@durable
async def test_the_children_of_a_job_past_its_deadline_are_cancelled(app: App) -> None:
    @app.job
    async def leaf(ctx: JobContext) -> None:
        await ctx.receive("never")

    @app.job
    async def top(ctx: JobContext) -> None:
        await ctx.child(leaf())

    async with app.running():
        handle = await app.submit(top(), deadline="200ms")
        with pytest.raises(JobFailed, match="deadline"):
            await handle.result("5s")
        (child,) = [job for job in await app.find_jobs() if job.parent == handle.id]
        await until(app, child.id, JobState.CANCELLED)


@durable
async def test_a_child_is_submitted_once_however_often_its_parent_is_run(app: App) -> None:
    @app.job
    async def leaf(ctx: JobContext) -> str:
        return await ctx.receive("word")

    @app.job
    async def top(ctx: JobContext) -> str:
        return await ctx.child(leaf())

    handle = await app.submit(top())
    for _ in range(3):
        async with app.running():
            while len(await app.find_jobs()) < 2:
                await perdure.process.sleep("5ms")
            await until(app, handle.id, JobState.WAITING)
    (child,) = [job for job in await app.find_jobs() if job.parent == handle.id]
    async with app.running():
        await app.send(child.id, "word", "hello")
        assert await handle.result("5s") == "hello"
    assert len(await app.find_jobs()) == 2


@durable
async def test_a_retried_parent_retries_its_failed_child(app: App) -> None:
    healthy = False

    @app.step(retry=Retry(attempts=1))
    async def shaky(ctx: StepContext) -> str:
        if not healthy:
            raise ValueError("down")
        return "up"

    @app.job
    async def leaf(ctx: JobContext) -> str:
        return await shaky()

    @app.job
    async def top(ctx: JobContext) -> str:
        return await ctx.child(leaf())

    async with app.running():
        handle = await app.submit(top())
        await until(app, handle.id, JobState.FAILED)
        healthy = True
        await handle.retry(reason="mended")
        assert await handle.result("5s") == "up"
    assert len(await app.find_jobs()) == 2


@durable
async def test_a_fork_submits_a_child_of_its_own(app: App) -> None:
    @app.step
    async def last(ctx: StepContext) -> str:
        return "last"

    @app.job
    async def leaf(ctx: JobContext) -> str:
        return await ctx.receive("word")

    @app.job
    async def top(ctx: JobContext) -> list[str]:
        return list(await ctx.gather(ctx.child(leaf()), last()))

    async with app.running():
        handle = await app.submit(top())
        await until(app, handle.id, JobState.WAITING)
        fork = await handle.fork("last")
        await until(app, fork.id, JobState.WAITING)
        for job in await app.find_jobs():
            if job.parent is not None:
                await app.send(job.id, "word", job.parent)
        assert await handle.result("5s") == [handle.id, "last"]
        assert await fork.result("5s") == [fork.id, "last"]


@durable
async def test_a_replay_raises_what_a_cancelled_child_raised_first(app: App) -> None:
    seen: list[str] = []

    @app.job
    async def leaf(ctx: JobContext) -> None:
        await ctx.receive("never")

    @app.job
    async def parent(ctx: JobContext) -> str:
        try:
            await ctx.child(leaf())
        except JobFailed as failure:
            seen.append(str(failure))
            await ctx.sleep("60ms")
            return failure.state
        return "?"

    async with app.running():
        handle = await app.submit(parent())
        while len(await app.find_jobs()) < 2:
            await perdure.process.sleep("5ms")
        (child,) = [job for job in await app.find_jobs() if job.parent == handle.id]
        await (await app.handle(child.id)).cancel()
        assert await handle.result("5s") == "CANCELLED"
    assert len(seen) == 2
    assert len(set(seen)) == 1


@durable
async def test_two_apps_share_a_store(app: App) -> None:
    @app.step
    async def here(ctx: StepContext) -> str:
        return "here"

    @app.job(queue="one")
    async def first(ctx: JobContext) -> str:
        return await here()

    other = App(app.url, worker=QUICK, queues=["two"])

    @other.job(queue="two")
    async def second(ctx: JobContext) -> str:
        return "there"

    app.queues = {"one": app.queues["default"]}
    async with app.running(), other.running():
        one, two = await app.submit(first()), await other.submit(second())
        assert await one.result("5s") == "here"
        assert await two.result("5s") == "there"
        assert await (await app.handle(two.id)).result("5s") == "there"
    await other.close()
