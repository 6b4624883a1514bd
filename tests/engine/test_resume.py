"""Going on where a job stood: replay, checkpoints, drift."""

import asyncio
from collections.abc import Awaitable, Callable

import perdure
from perdure import Retry
from perdure.app import App
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.definition import JobCall
from perdure.jobs.failure import Failure
from perdure.jobs.parameters import Partial
from perdure.jobs.state import JobState
from perdure.testing import Environment
from tests.support.engine import durable, until
from tests.support.job_environment import in_environment


@durable
async def test_finished_steps_do_not_run_again(app: App) -> None:
    ran: list[str] = []

    @app.step
    async def step(ctx: StepContext, name: str) -> str:
        ran.append(name)
        return name.upper()

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        first = await step("a")
        await ctx.sleep("60ms")
        return [first, await step("b")]

    async with app.running():
        assert await (await app.submit(job())).result("5s") == ["A", "B"]
    assert ran == ["a", "b"]


@durable
async def test_a_worker_that_stops_hands_its_job_over_at_a_checkpoint(app: App) -> None:
    seen: list[int] = []
    begun = asyncio.Event()

    @app.step
    async def count(ctx: StepContext) -> int:
        done = ctx.load_checkpoint() or 0
        for number in range(done, 50):
            seen.append(number)
            begun.set()
            await perdure.process.sleep("10ms")
            await ctx.save_checkpoint(number + 1)
        return 50

    @app.job
    async def job(ctx: JobContext) -> int:
        return await count()

    handle = await app.submit(job())
    async with app.running():
        await begun.wait()
    assert 0 < len(seen) < 50
    async with app.running():
        assert await handle.result("5s") == 50
    assert seen == list(range(50))


@durable
async def test_an_attempt_goes_on_from_the_checkpoint_of_the_last(app: App) -> None:
    seen: list[int] = []

    @app.step(retry=Retry(attempts=3, initial_delay="1ms"))
    async def count(ctx: StepContext) -> str:
        for number in range(ctx.load_checkpoint() or 0, 6):
            if number == 3 and ctx.attempt == 1:
                raise RuntimeError("half-way")
            seen.append(number)
            await ctx.save_checkpoint(number + 1)
        return "all"

    @app.job
    async def job(ctx: JobContext) -> str:
        return await count()

    async with app.running():
        assert await (await app.submit(job())).result("5s") == "all"
    assert seen == [0, 1, 2, 3, 4, 5]


@durable
async def test_a_partial_result_goes_on_from_its_checkpoint(app: App) -> None:
    @app.step
    async def page(ctx: StepContext) -> int | Partial[int]:
        number = (ctx.load_checkpoint() or 0) + 1
        return number if number == 4 else Partial(number, number)

    @app.job
    async def job(ctx: JobContext) -> int:
        return await page()

    async with app.running():
        assert await (await app.submit(job())).result("5s") == 4


def converting(app: App, done: list[str], fails: Callable[[], Awaitable[None]]) -> JobCall[int]:
    """Return a call of a job whose step saves every second item, and fails once, at "d"."""

    @app.step(retry=Retry(attempts=2, initial_delay="1ms"))
    async def convert(ctx: StepContext, names: list[str]) -> int:
        async for name in ctx.items(names, every=2):
            if name == "d" and len(done) == 3:
                await fails()
            done.append(name)
        return len(done)

    @app.job
    async def job(ctx: JobContext) -> int:
        return await convert(list("abcdef"))

    return job()


@durable
async def test_items_continue_at_the_one_that_failed(app: App) -> None:
    done: list[str] = []
    failures: list[None] = []

    async def fails() -> None:
        if not failures:
            failures.append(None)
            raise RuntimeError("it fails once")

    async with app.running():
        await (await app.submit(converting(app, done, fails))).result("20s")
    assert done == ["a", "b", "c", "d", "e", "f"]


@in_environment
async def test_items_resume_after_the_last_one_that_was_saved(app: App, env: Environment) -> None:
    done: list[str] = []
    there = asyncio.Event()

    async def hangs() -> None:
        there.set()
        await asyncio.get_running_loop().create_future()

    handle = await app.submit(converting(app, done, hangs))
    await there.wait()
    await env.crash()
    await handle.result()
    assert done == ["a", "b", "c", "c", "d", "e", "f"]


async def _swap(app: App, before: str, after: str) -> Failure:
    """Run a job half with one code, half with another, and give the report."""

    @app.step
    async def one(ctx: StepContext, word: str) -> str:
        return word

    @app.step
    async def two(ctx: StepContext, word: str) -> str:
        return word

    steps = {"one": one, "two": two}
    plan = before.split()

    @app.job
    async def job(ctx: JobContext) -> None:
        for call in plan:
            name, word = call.split(":")
            await steps[name](word)
        await ctx.receive("go")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
    plan[:] = after.split()
    async with app.running():
        await handle.send("go")
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    error = (await handle.job()).error
    assert error is not None
    return Failure.unpack(error)


@durable
async def test_code_that_calls_with_other_arguments_than_its_journal_is_parked(app: App) -> None:
    report = await _swap(app, "one:a two:b", "one:a two:c")
    assert "two#1" in report.message
    assert '"b"' in report.message
    assert '"c"' in report.message


@durable
async def test_code_that_lost_a_step_is_parked(app: App) -> None:
    report = await _swap(app, "one:a two:b", "one:a")
    assert "two#1" in report.message


@durable
async def test_code_that_got_a_step_before_what_is_done_is_parked(app: App) -> None:
    report = await _swap(app, "one:a", "two:new one:a")
    assert "two#1" in report.message
    assert "one#1" in report.message
