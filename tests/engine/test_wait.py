"""Sleeps, messages, children: waits that hold no worker."""

import pytest

import perdure
from perdure.app import App
from perdure.base.errors import IllegalTransition, JobFailed, StepTimeout, WrongType
from perdure.client import Client
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState, StepState
from tests.support.engine import durable, until


@durable
async def test_a_sleeping_job_holds_no_worker(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.sleep("1h")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        assert (await handle.job()).owner is None


@durable
async def test_a_sleeping_job_goes_on_in_time(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> str:
        await ctx.sleep("150ms")
        return "woke"

    async with app.running():
        assert await (await app.submit(job())).result("20s") == "woke"


@durable
async def test_a_sleep_does_not_begin_anew_after_a_restart(app: App) -> None:
    runs: list[None] = []

    @app.job
    async def job(ctx: JobContext) -> None:
        runs.append(None)
        sleep = ctx.sleep("1h")
        await ctx.gather(sleep, ctx.receive("again"))

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
    before = (await handle.journal())[0].wake_at
    await handle.send("again")
    async with app.running():
        while (await handle.journal())[1].state is not StepState.SUCCEEDED:
            await perdure.process.sleep("5ms")
        await until(app, handle.id, JobState.WAITING)
    assert len(runs) > 1
    assert (await handle.journal())[0].wake_at == before


@durable
async def test_a_message_wakes_a_job_that_waits_for_it(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> str:
        answer = await ctx.receive("answer")
        return f"got {answer}"

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await app.send(handle.id, "answer", "yes")
        assert await handle.result("5s") == "got yes"


@durable
async def test_a_message_that_comes_first_waits_for_the_job(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> list[int]:
        return [await ctx.receive("n"), await ctx.receive("n")]

    handle = await app.submit(job())
    await handle.send("n", 1)
    await handle.send("n", 2)
    async with app.running():
        assert await handle.result("5s") == [1, 2]


@durable
async def test_the_same_message_key_twice_is_one_message(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return [await ctx.receive("n"), await ctx.receive("n")]

    handle = await app.submit(job())
    assert await handle.send("n", "a", key="1")
    assert not await handle.send("n", "a", key="1")
    assert await handle.send("n", "b", key="2")
    async with app.running():
        assert await handle.result("5s") == ["a", "b"]


@durable
async def test_an_ended_job_knows_the_keys_it_has_and_takes_nothing_new(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> str:
        return await ctx.receive("n")

    handle = await app.submit(job())
    assert await handle.send("n", "a", key="1")
    async with app.running():
        assert await handle.result("5s") == "a"
    async with Client(app.url) as client:
        for caller in (app, client):
            assert not await caller.send(handle.id, "n", "a", key="1")
            for key in ("2", None):
                with pytest.raises(IllegalTransition, match="receives no more messages"):
                    await caller.send(handle.id, "n", "b", key=key)


@durable
async def test_a_message_reaches_a_job_while_a_step_of_it_works(app: App) -> None:
    gate = perdure.process.Channel[None](1)

    @app.step
    async def work(ctx: StepContext) -> str:
        await gate.receive()
        return "worked"

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return list(await ctx.gather(work(), ctx.receive("word")))

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.RUNNING)
        await handle.send("word", "hello")
        while not any(e.output == b'"hello"' for e in await handle.journal()):
            await perdure.process.sleep("5ms")
        await gate.send(None)
        assert await handle.result("5s") == ["worked", "hello"]


@durable
async def test_a_message_that_does_not_come_in_time_raises_in_the_job(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> str:
        try:
            await ctx.receive("never", timeout="30ms")
        except StepTimeout:
            return "gave up"
        return "?"

    async with app.running():
        assert await (await app.submit(job())).result("5s") == "gave up"


@durable
async def test_a_child_job_gives_its_result_to_its_parent(app: App) -> None:
    @app.job
    async def square(ctx: JobContext, number: int) -> int:
        return number * number

    @app.job
    async def parent(ctx: JobContext) -> int:
        return sum(await ctx.gather(*(ctx.child(square(n)) for n in range(4))))

    async with app.running():
        assert await (await app.submit(parent())).result("5s") == 14


@durable
async def test_a_child_that_fails_raises_in_its_parent(app: App) -> None:
    @app.job
    async def bad(ctx: JobContext) -> None:
        raise ValueError("broken child")

    @app.job
    async def parent(ctx: JobContext) -> str:
        try:
            await ctx.child(bad())
        except JobFailed as failure:
            return failure.failure
        return "?"

    async with app.running():
        assert "broken child" in await (await app.submit(parent())).result("5s")


@durable
async def test_time_and_chance_are_the_same_at_every_replay(app: App) -> None:
    seen: list[tuple[object, ...]] = []

    @app.job
    async def job(ctx: JobContext) -> None:
        seen.append((ctx.now(), ctx.uuid(), ctx.random().random()))
        await ctx.receive("go")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        await handle.result("20s")
    assert len(seen) > 1
    assert len(set(seen)) == 1


@durable
async def test_a_job_past_its_deadline_is_failed(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.receive("never")

    async with app.running():
        handle = await app.submit(job(), deadline="100ms")
        with pytest.raises(JobFailed, match="deadline"):
            await handle.result("5s")


@durable
async def test_a_message_of_another_type_raises_in_the_job_and_is_taken(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> int:
        try:
            await ctx.receive("n", kind=int)
        except WrongType:
            await ctx.sleep("30ms")  # a replay raises the same
            return await ctx.receive("n", kind=int)
        return -1

    async with app.running():
        handle = await app.submit(job())
        await handle.send("n", "seven")
        await handle.send("n", 7)
        assert await handle.result("5s") == 7


def test_a_job_that_goes_on_from_a_step_to_a_wait_frees_its_worker(url: str) -> None:
    async def main() -> None:
        # Not one that soon takes a job for stuck, and so frees itself.
        async with App(url, worker=WorkerSettings(keep_in_memory="20ms")) as app:

            @app.step
            async def first(ctx: StepContext) -> str:
                return "a"

            @app.job
            async def job(ctx: JobContext) -> list[str]:
                return list(await ctx.gather(first(), ctx.receive("second")))

            handle = await app.submit(job())
            async with app.running():
                assert await handle.until(JobState.WAITING, timeout="10s") is JobState.WAITING
                await handle.send("second", "b")
                assert await handle.result("10s") == ["a", "b"]

    perdure.run(main)
