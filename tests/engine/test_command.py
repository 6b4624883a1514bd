"""What people tell a job: cancel, pause, resume, retry, skip, fork."""

import asyncio

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import IllegalTransition, JobNotFound
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState
from tests.support.engine import durable, obeyed, until


@durable
async def test_cancel_reaches_the_running_step(app: App) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.step
    async def hang(ctx: StepContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @app.job
    async def job(ctx: JobContext) -> None:
        await hang()

    async with app.running():
        handle = await app.submit(job())
        await begun.wait()
        await handle.cancel("wrong customer", by="kim")
        await until(app, handle.id, JobState.CANCELLED)
    assert ended.is_set()
    told = [event for event in await handle.events() if event.actor == "kim"]
    assert told
    assert told[0].data["reason"] == "wrong customer"


@durable
async def test_a_step_that_reads_its_events_gets_cancel_first(app: App) -> None:
    begun = asyncio.Event()
    got: list[object] = []

    @app.step
    async def polite(ctx: StepContext) -> None:
        events = perdure.process.events()
        begun.set()
        got.append(await events.receive())

    @app.job
    async def job(ctx: JobContext) -> None:
        await polite()

    async with app.running():
        handle = await app.submit(job())
        await begun.wait()
        await handle.cancel()
        await until(app, handle.id, JobState.CANCELLED)
    assert isinstance(got[0], perdure.process.Cancel)


@durable
async def test_a_waiting_job_can_be_cancelled(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.sleep("1h")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await handle.cancel()
        await until(app, handle.id, JobState.CANCELLED)


@durable
async def test_a_job_that_never_ran_is_cancelled_at_once(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None: ...

    handle = await app.submit(job())
    await handle.cancel()
    assert await handle.status() is JobState.CANCELLED


@durable
async def test_a_paused_job_finishes_its_step_and_then_waits_for_resume(app: App) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @app.step
    async def step(ctx: StepContext, name: str) -> None:
        begun.set()
        await gate.wait()
        ran.append(name)

    @app.job
    async def job(ctx: JobContext) -> str:
        await step("a")
        await step("b")
        return "done"

    async with app.running():
        handle = await app.submit(job())
        await begun.wait()
        await handle.pause("look at it first")
        await obeyed(app, handle.id)
        gate.set()
        await until(app, handle.id, JobState.PAUSED)
        assert ran == ["a"]
        await handle.resume()
        assert await handle.result("5s") == "done"
    assert ran == ["a", "b"]


@durable
async def test_a_failed_job_can_be_retried_from_where_it_failed(app: App) -> None:
    healthy = False
    ran: list[str] = []

    @app.step
    async def first(ctx: StepContext) -> None:
        ran.append("first")

    @app.step(retry=Retry(attempts=1))
    async def second(ctx: StepContext) -> str:
        ran.append("second")
        if not healthy:
            raise RuntimeError("down")
        return "up"

    @app.job
    async def job(ctx: JobContext) -> str:
        await first()
        return await second()

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.FAILED)
        healthy = True
        await handle.retry(reason="it is up again", by="kim")
        assert await handle.result("5s") == "up"
    assert ran == ["first", "second", "second"]


@durable
async def test_a_step_done_by_hand_can_be_skipped_with_its_output(app: App) -> None:
    @app.step(retry=Retry(attempts=1))
    async def broken(ctx: StepContext) -> str:
        raise RuntimeError("down")

    @app.job
    async def job(ctx: JobContext) -> str:
        return await broken()

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.FAILED)
        await handle.skip("broken", "done by hand", output="by hand", by="kim")
        assert await handle.result("5s") == "by hand"


@durable
async def test_a_fork_has_done_what_came_before_and_takes_other_arguments(app: App) -> None:
    ran: list[str] = []

    @app.step
    async def prepare(ctx: StepContext) -> str:
        ran.append("prepare")
        return "ready"

    @app.step
    async def act(ctx: StepContext, word: str) -> str:
        ran.append(word)
        return word

    @app.job
    async def job(ctx: JobContext, word: str) -> str:
        await prepare()
        return await act(word)

    async with app.running():
        handle = await app.submit(job("old"))
        await handle.result("5s")
        fork = await handle.fork("act", "new")
        assert await fork.result("5s") == "new"
    assert ran == ["prepare", "old", "new"]


@durable
async def test_commands_that_make_no_sense_say_why(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None: ...

    async with app.running():
        handle = await app.submit(job())
        await handle.result("5s")
        with pytest.raises(IllegalTransition, match="COMPLETED"):
            await handle.cancel()
        with pytest.raises(IllegalTransition, match="COMPLETED"):
            await handle.retry()
    with pytest.raises(JobNotFound):
        await app.handle("nobody")
