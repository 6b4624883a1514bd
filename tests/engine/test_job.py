"""Jobs, steps, results, failures, retries."""

import asyncio

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import JobFailed, KeyConflict, Permanent, StepFailed
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.state import JobState, StepState
from tests.support.engine import durable

FAST = Retry(attempts=3, initial_delay="1ms")


@durable
async def test_a_job_gives_the_result_of_its_steps(app: App) -> None:
    @app.step
    async def double(ctx: StepContext, number: int) -> int:
        return 2 * number

    @app.job
    async def twice(ctx: JobContext, number: int) -> int:
        return await double(await double(number))

    async with app.running():
        handle = await app.submit(twice(5))
        assert await handle.result("5s") == 20
    journal = await handle.journal()
    assert [entry.id for entry in journal] == ["double#1", "double#2"]
    assert all(entry.state is StepState.SUCCEEDED for entry in journal)


@pytest.mark.parametrize("awaits", [True, False])
def test_what_a_job_never_awaits_is_not_done_and_is_warned_of(
    url: str, caplog: pytest.LogCaptureFixture, awaits: bool
) -> None:
    calls: list[str] = []

    @durable
    async def case(app: App) -> None:
        @app.step
        async def mail(ctx: StepContext, to: str) -> None:
            calls.append(to)

        @app.job
        async def tell(ctx: JobContext) -> None:
            operation = mail("kim")
            await mail("lee")
            if awaits:
                await operation

        async with app.running():
            handle = await app.submit(tell())
            await handle.result("5s")

    case(url)
    assert calls == (["lee", "kim"] if awaits else ["lee"])
    told = "mail('kim') was never awaited, so nothing of it was done"
    assert (told in caplog.text) is not awaits


@durable
async def test_a_step_that_fails_is_tried_again(app: App) -> None:
    calls: list[int] = []

    @app.step(retry=FAST)
    async def shaky(ctx: StepContext) -> str:
        calls.append(ctx.attempt)
        if ctx.attempt < 3:
            raise RuntimeError("not yet")
        return "done"

    @app.job
    async def job(ctx: JobContext) -> str:
        return await shaky()

    async with app.running():
        assert await (await app.submit(job())).result("5s") == "done"
    assert calls == [1, 2, 3]


@durable
async def test_a_permanent_error_is_not_tried_again(app: App) -> None:
    calls: list[int] = []

    @app.step(retry=FAST)
    async def refused(ctx: StepContext) -> None:
        calls.append(ctx.attempt)
        raise Permanent("no such account")

    @app.job
    async def job(ctx: JobContext) -> None:
        await refused()

    async with app.running():
        handle = await app.submit(job())
        with pytest.raises(JobFailed, match="no such account"):
            await handle.result("5s")
    assert calls == [1]
    assert await handle.status() is JobState.FAILED


@durable
async def test_the_code_may_handle_a_failed_step(app: App) -> None:
    @app.step(retry=FAST)
    async def broken(ctx: StepContext) -> None:
        raise ValueError("bad")

    @app.step
    async def plan_b(ctx: StepContext, why: str) -> str:
        return f"instead of {why}"

    @app.job
    async def job(ctx: JobContext) -> str:
        try:
            await broken()
        except StepFailed as failure:
            return await plan_b(failure.error)
        return "never"

    async with app.running():
        assert await (await app.submit(job())).result("5s") == "instead of bad"


@durable
async def test_parallel_steps_run_at_once_and_give_their_results_in_order(app: App) -> None:
    together = asyncio.Barrier(3)

    @app.step
    async def part(ctx: StepContext, number: int) -> int:
        await together.wait()
        return number

    @app.job
    async def job(ctx: JobContext) -> list[int]:
        return list(await ctx.gather(*(part(number) for number in range(3))))

    async with app.running():
        assert await (await app.submit(job())).result("5s") == [0, 1, 2]


@durable
async def test_gather_sees_all_to_their_end_and_raises_the_first_failure(app: App) -> None:
    ended: list[int] = []

    @app.step(retry=Retry(attempts=1))
    async def part(ctx: StepContext, number: int) -> None:
        ended.append(number)
        if number:
            raise ValueError(f"part {number}")

    @app.job
    async def job(ctx: JobContext) -> str:
        try:
            await ctx.gather(*(part(number) for number in range(3)))
        except StepFailed as failure:
            return failure.error
        return "none"

    async with app.running():
        assert await (await app.submit(job())).result("5s") == "part 1"
    assert sorted(ended) == [0, 1, 2]


@durable
async def test_a_step_that_takes_too_long_fails(app: App) -> None:
    @app.step(timeout="30ms", retry=Retry(attempts=1))
    async def slow(ctx: StepContext) -> None:
        await asyncio.Event().wait()

    @app.job
    async def job(ctx: JobContext) -> None:
        await slow()

    async with app.running():
        with pytest.raises(JobFailed, match="took longer"):
            await (await app.submit(job())).result("5s")


@durable
async def test_a_sync_step_runs_in_a_thread_and_can_use_its_context(app: App) -> None:
    @app.step
    def convert(ctx: SyncStepContext, text: str) -> str:
        ctx.save_checkpoint({"seen": 1})
        return f"{text}:{ctx.attempt}"

    @app.job
    async def job(ctx: JobContext) -> str:
        return await convert("a")

    async with app.running():
        assert await (await app.submit(job())).result("5s") == "a:1"


@durable
async def test_the_same_key_twice_is_one_job(app: App) -> None:
    @app.job
    async def job(ctx: JobContext, number: int) -> int:
        return number

    first = await app.submit(job(1), key="k")
    second = await app.submit(job(1), key="k")
    assert (first.id, first.new, second.new) == (second.id, True, False)
    with pytest.raises(KeyConflict):
        await app.submit(job(2), key="k")


@durable
async def test_a_job_that_raises_is_failed_with_its_reason(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        raise LookupError("nothing there")

    async with app.running():
        handle = await app.submit(job())
        with pytest.raises(JobFailed, match="nothing there"):
            await handle.result("5s")


@durable
async def test_a_result_that_cannot_be_stored_fails_the_step_for_good(app: App) -> None:
    calls: list[int] = []

    @app.step(retry=FAST)
    async def odd(ctx: StepContext) -> float:
        calls.append(1)
        return float("nan")

    @app.job
    async def job(ctx: JobContext) -> float:
        return await odd()

    async with app.running():
        with pytest.raises(JobFailed, match=r"nan|NaN"):
            await (await app.submit(job())).result("5s")
    assert calls == [1]
