"""Jobs in a test: hours are skipped, and what is due in them happens in its order."""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

import perdure
from perdure import Retry, WorkerSettings
from perdure.app import App
from perdure.base.errors import JobFailed, StoreError
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.state import JobState
from perdure.testing import Deadlock, Environment, environment, simulated
from tests.support.job_environment import (
    NEVER_OPENED,
    answering,
    in_environment,
    looked_often,
)

ALMOST = timedelta(minutes=1)


@in_environment
async def test_a_job_that_sleeps_eight_hours_ends_at_once(app: App, env: Environment) -> None:
    @app.job
    async def night(ctx: JobContext) -> str:
        await ctx.sleep("8h")
        return "morning"

    assert await (await app.submit(night())).result() == "morning"
    assert timedelta(hours=8) - ALMOST < env.skipped < timedelta(hours=8) + ALMOST


@in_environment
async def test_a_timeout_that_was_skipped_says_so(app: App, env: Environment) -> None:
    @app.job
    async def night(ctx: JobContext) -> str:
        await ctx.sleep("8h")
        return "morning"

    handle = await app.submit(night())
    with pytest.raises(TimeoutError, match=r"has not ended within 20s\. In this environment time"):
        await handle.result("20s")
    assert await handle.result() == "morning"


@in_environment
async def test_jobs_wake_in_the_order_of_their_times(app: App, env: Environment) -> None:
    woken: list[str] = []

    @app.step
    async def note(ctx: StepContext, name: str) -> None:
        woken.append(name)

    @app.job
    async def sleeper(ctx: JobContext, hours: int) -> None:
        await ctx.sleep(hours * 3600)
        await note(f"{hours} h")

    handles = [await app.submit(sleeper(hours)) for hours in (30, 2, 9)]
    for handle in handles:
        await handle.result()
    assert woken == ["2 h", "9 h", "30 h"]


@in_environment
async def test_the_delays_of_retries_are_skipped(app: App, env: Environment) -> None:
    @app.step(retry=Retry(attempts=4, initial_delay="1h", jitter=0))
    async def flaky(ctx: StepContext) -> int:
        if ctx.attempt < 4:
            raise ConnectionError("not yet")
        return ctx.attempt

    @app.job
    async def job(ctx: JobContext) -> int:
        return await flaky()

    assert await (await app.submit(job())).result() == 4
    assert env.skipped > timedelta(hours=3)


@in_environment
async def test_the_timeout_of_a_step_that_hangs_is_skipped(app: App, env: Environment) -> None:
    @app.step(timeout="45m", retry=Retry(attempts=1))
    async def hangs(ctx: StepContext) -> None:
        await asyncio.get_running_loop().create_future()

    @app.job
    async def job(ctx: JobContext) -> None:
        await hangs()

    with pytest.raises(JobFailed, match="took longer than 2700 s"):
        await (await app.submit(job())).result()
    assert env.skipped > timedelta(minutes=44)


@in_environment
async def test_a_step_may_sleep_in_skipped_time_and_keeps_its_lease(
    app: App, env: Environment
) -> None:
    @app.step
    async def polls(ctx: StepContext) -> int:
        for _ in range(3):
            await perdure.process.sleep(3600)
            await ctx.save_checkpoint(1)
        return ctx.attempt

    @app.job
    async def job(ctx: JobContext) -> int:
        return await polls()

    handle = await app.submit(job())
    assert await handle.result() == 1
    assert [each.type for each in await handle.events()].count("claimed") == 1


@in_environment
async def test_the_deadline_of_a_job_comes_in_skipped_time(app: App, env: Environment) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.receive("never")

    handle = await app.submit(job(), deadline="2d")
    assert await handle.wait() is JobState.FAILED
    assert env.skipped > timedelta(days=2) - ALMOST


@in_environment
async def test_a_schedule_submits_its_jobs_while_a_test_sleeps(app: App, env: Environment) -> None:
    @app.job
    async def daily(ctx: JobContext) -> None: ...

    await app.schedules.put("report", "0 3 * * *", daily())
    await env.sleep("3d")
    assert len(await app.find_jobs()) == 3


@in_environment
async def test_sleepers_that_look_at_the_same_moments_all_wake(app: App, env: Environment) -> None:
    # Timers of the same millisecond fire in one turn of the loop: each finds the others there.
    for _ in range(50):
        await asyncio.gather(env.sleep("1m"), env.sleep("1m"))
    assert env.skipped > timedelta(minutes=49)


@in_environment
async def test_an_approval_expires_in_skipped_time(app: App, env: Environment) -> None:
    @app.job
    async def job(ctx: JobContext) -> str:
        try:
            await ctx.approve("Delete everything?", expires="4h")
        except perdure.errors.ApprovalExpired:
            return "nobody answered"
        return "deleted"

    assert await (await app.submit(job(), user="u-17")).result() == "nobody answered"
    assert env.skipped > timedelta(hours=4) - ALMOST


@in_environment
async def test_time_stands_while_the_test_does_not_wait(app: App, env: Environment) -> None:
    @app.job
    async def night(ctx: JobContext) -> str:
        await ctx.sleep("8h")
        return await ctx.receive("greeting", timeout="1h")

    handle = await app.submit(night())
    assert await handle.until(JobState.WAITING) is JobState.WAITING
    skipped = env.skipped
    await looked_often()  # but nobody waits for the job
    assert env.skipped == skipped < ALMOST
    await handle.send("greeting", "hello")
    assert await handle.result() == "hello"


@in_environment
async def test_a_step_in_a_thread_gets_real_time(app: App, env: Environment) -> None:
    begun, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @app.step(timeout="30m")
    def blocks(ctx: SyncStepContext) -> str:
        loop.call_soon_threadsafe(begun.set)
        gate.wait(30)
        return "done"

    @app.job
    async def job(ctx: JobContext) -> str:
        return await blocks()

    result = asyncio.ensure_future((await app.submit(job())).result())
    await begun.wait()
    await looked_often()
    gate.set()
    assert await result == "done"
    assert env.skipped < ALMOST


@in_environment
async def test_a_step_that_calls_a_server_gets_real_time(app: App, env: Environment) -> None:
    begun, gate = asyncio.Event(), threading.Event()

    @app.step(timeout="30m")
    async def fetch(ctx: StepContext, url: str) -> str:
        begun.set()
        async with httpx.AsyncClient(timeout=1200) as client:
            return (await client.get(url)).text

    @app.job
    async def job(ctx: JobContext, url: str) -> str:
        return await fetch(url)

    with answering(gate) as url:
        result = asyncio.ensure_future((await app.submit(job(url))).result())
        await begun.wait()
        await looked_often()
        gate.set()
        assert await result == "late but well"
    assert env.skipped < ALMOST


@in_environment
async def test_a_test_that_would_wait_for_ever_is_told_why(app: App, env: Environment) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.receive("go")

    handle = await app.submit(job())
    with pytest.raises(Deadlock, match=r"\(job\) is WAITING, and waits for message 'go'"):
        await handle.result()
    await handle.send("go")
    assert await handle.wait() is JobState.COMPLETED


@in_environment
async def test_a_parked_job_does_not_let_a_test_wait_for_ever(app: App, env: Environment) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        raise perdure.errors.Drift("made up")

    with pytest.raises(Deadlock, match=r"NEEDS_ATTENTION: .*made up"):
        await (await app.submit(job())).result()


def test_an_app_works_in_a_simulated_test(url: str) -> None:
    app = App(NEVER_OPENED)

    @app.job
    async def night(ctx: JobContext) -> str:
        await ctx.sleep("8h")
        return "morning"

    @simulated(seed=3)
    async def test() -> None:
        async with environment(app, url=url):
            assert await (await app.submit(night())).result() == "morning"
        await perdure.process.sleep(3600)

    test()


def test_a_worker_in_virtual_time_alone_is_refused(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @simulated
    async def test() -> None:
        with pytest.raises(RuntimeError, match=r"perdure\.testing\.environment"):
            async with app.running():
                pass
        await app.close()

    test()


def test_an_environment_never_uses_a_schema_that_exists(postgres_url: str) -> None:
    async def main() -> None:
        async with App(postgres_url) as real:
            await real.store()
            with pytest.raises(StoreError, match="exists already"):
                async with environment(App(NEVER_OPENED), url=postgres_url):
                    pass

    asyncio.run(main())


def test_timers_of_the_loop_keep_their_time_after_an_environment() -> None:
    app = App(NEVER_OPENED)

    @app.job
    async def night(ctx: JobContext) -> None:
        await ctx.sleep("8h")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with environment(app):
            await (await app.submit(night())).result()
            left = loop.time() + 1000
            timer = loop.call_at(left, print)
        assert timer.when() - loop.time() == pytest.approx(1000, abs=60)
        timer.cancel()

    asyncio.run(main())


def test_a_store_that_cannot_be_opened_is_told_at_once() -> None:
    async def main() -> None:
        async with environment(App(NEVER_OPENED), url=NEVER_OPENED):
            pass

    with pytest.raises(StoreError, match="there is no folder"):
        asyncio.run(main())


def test_a_test_may_end_while_a_step_hangs(url: str) -> None:
    app, ended = App(NEVER_OPENED), list[str]()
    begun = asyncio.Event()

    @app.step
    async def hangs() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("the step")

    @app.job
    async def job() -> None:
        await hangs()

    async def main() -> None:
        async with environment(app, url=url):
            await app.submit(job())
            await begun.wait()

    asyncio.run(main())
    assert ended == ["the step"]


def test_an_environment_is_opened_used_and_closed_in_different_tasks_as_a_fixture_is(
    url: str,
) -> None:
    app = App(NEVER_OPENED)

    @app.job
    async def night(ctx: JobContext) -> str:
        await ctx.sleep("8h")
        return "morning"

    async def use() -> str:
        return await (await app.submit(night())).result()

    async def main() -> None:
        for _ in range(2):
            manager = environment(app, url=url if url.startswith("postgres") else None)
            await asyncio.ensure_future(manager.__aenter__())
            assert await asyncio.ensure_future(use()) == "morning"
            await asyncio.ensure_future(manager.__aexit__(None, None, None))

    asyncio.run(main())


def test_a_job_is_deleted_when_it_is_old_although_none_had_ended_at_the_last_look(url: str) -> None:
    async def main() -> None:
        app = App(NEVER_OPENED, worker=WorkerSettings(keep="10m"))

        @app.job
        async def job(ctx: JobContext) -> str:
            return "done"

        async with environment(app, url=url) as env:
            handle = await app.submit(job())
            assert await handle.result() == "done"
            await env.sleep("9m")
            assert len(await app.find_jobs()) == 1
            await env.sleep("3m")  # every minute, workers look
            async with asyncio.timeout(20):
                while await app.find_jobs():
                    await looked_often()

    asyncio.run(main())
