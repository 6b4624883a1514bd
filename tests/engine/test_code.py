"""The code of a job, and what people write in it."""

import asyncio
import re
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, cast

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import JobFailed, StepFailed
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.plan import Plan, PlanCall, Ref
from perdure.jobs.state import JobState
from tests.support.engine import QUICK, durable, nodes, until

ONCE = Retry(attempts=1)


@durable
async def test_branches_of_asyncio_gather_are_replayed_as_they_were(app: App) -> None:
    ran: list[str] = []

    @app.step
    async def note(ctx: StepContext, name: str) -> str:
        ran.append(name)
        return name

    async def branch(ctx: JobContext, name: str) -> str:
        first = await note(name).options(id=name)
        await ctx.sleep("80ms")
        return first + await note(f"{name}!").options(id=f"{name}!")

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return await asyncio.gather(*(branch(ctx, name) for name in "abc"))

    async with app.running():
        assert await (await app.submit(job())).result("10s") == ["aa!", "bb!", "cc!"]
    assert sorted(ran) == ["a", "a!", "b", "b!", "c", "c!"]


@durable
async def test_all_branches_that_wait_put_the_job_aside(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return list(await asyncio.gather(ctx.receive("a"), ctx.receive("b")))

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("b", "second")
        await handle.send("a", "first")
        assert await handle.result("5s") == ["first", "second"]


@durable
async def test_code_goes_on_with_the_branch_that_is_done_first(app: App) -> None:
    @app.step
    async def quick(ctx: StepContext) -> str:
        return "quick"

    @app.step
    async def after(ctx: StepContext) -> str:
        return "after"

    @app.job
    async def job(ctx: JobContext) -> str:
        operation = ctx.start(quick())
        short = asyncio.ensure_future(_wait_for(operation))
        long = asyncio.ensure_future(_wait_and_sleep(ctx, operation))
        done, _ = await asyncio.wait({short, long}, return_when=asyncio.FIRST_COMPLETED)
        assert done == {short}
        result = await after()
        long.cancel()
        return result

    async with app.running():
        assert await (await app.submit(job())).result("10s") == "after"


async def _wait_for(operation: Awaitable[str]) -> str:
    return await operation


async def _wait_and_sleep(ctx: JobContext, operation: Awaitable[str]) -> None:
    await operation
    await ctx.sleep("1h")


@durable
async def test_a_task_group_that_waits_puts_the_job_aside(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> str:
        async with asyncio.TaskGroup() as group:
            one = group.create_task(_receive(ctx, "a"))
            two = group.create_task(_receive(ctx, "b"))
        return one.result() + two.result()

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("a", "x")
        await handle.send("b", "y")
        assert await handle.result("10s") == "xy"


async def _receive(ctx: JobContext, topic: str) -> str:
    return await ctx.receive(topic)


@durable
async def test_code_that_catches_everything_is_put_aside_all_the_same(app: App) -> None:
    tries: list[int] = []

    @app.job
    async def job(ctx: JobContext) -> str:
        while True:
            tries.append(1)
            with suppress(BaseException):
                return await ctx.receive("word")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        assert len(tries) < 100, "it spins"
        async with asyncio.timeout(10):
            while nodes(app)[0].claimed:
                await perdure.process.sleep("5ms")


@durable
async def test_code_that_waits_for_something_else_when_it_is_cancelled_is_interrupted(
    app: App,
) -> None:
    begun = asyncio.Event()

    @app.job
    async def job(ctx: JobContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with app.running():
        handle = await app.submit(job())
        await begun.wait()
        await handle.cancel()
        await until(app, handle.id, JobState.CANCELLED)


@durable
async def test_an_operation_that_nobody_awaits_does_not_happen(app: App) -> None:
    ran: list[str] = []

    @app.step
    async def note(ctx: StepContext, name: str) -> None:
        ran.append(name)

    @app.job
    async def job(ctx: JobContext) -> str:
        note("forgotten")
        await note("awaited")
        await ctx.sleep("60ms")
        return "done"

    async with app.running():
        assert await (await app.submit(job())).result("5s") == "done"
    assert ran == ["awaited"]


@durable
async def test_an_operation_awaited_twice_happens_once(app: App) -> None:
    ran: list[int] = []

    @app.step
    async def count(ctx: StepContext) -> int:
        ran.append(1)
        return len(ran)

    @app.job
    async def job(ctx: JobContext) -> list[int]:
        operation = ctx.start(count())
        return [await operation, await operation, *await asyncio.gather(operation, operation)]

    async with app.running():
        assert await (await app.submit(job())).result("5s") == [1, 1, 1, 1]


@durable
async def test_two_operations_cannot_have_one_identity(app: App) -> None:
    @app.step
    async def note(ctx: StepContext, name: str) -> str:
        return name

    @app.job
    async def job(ctx: JobContext) -> None:
        await note("a")
        await note("b").options(id="1")

    async with app.running():
        handle = await app.submit(job())
        with pytest.raises(JobFailed, match="note#1"):
            await handle.result("5s")


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
def test_a_step_may_raise_anything(url: str, error: BaseException) -> None:
    @durable
    async def case(app: App) -> None:
        @app.step(retry=ONCE)
        async def odd(ctx: StepContext) -> None:
            raise error

        @app.job
        async def job(ctx: JobContext) -> str:
            try:
                await odd()
            except StepFailed as failure:
                return failure.error
            return "?"

        async with app.running():
            assert await (await app.submit(job())).result("5s")

    case(url)


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_code_may_raise_anything(url: str, error: BaseException) -> None:
    @durable
    async def case(app: App) -> None:
        @app.job
        async def job(ctx: JobContext) -> None:
            raise error

        async with app.running():
            with pytest.raises(JobFailed, match=type(error).__name__):
                await (await app.submit(job())).result("5s")

    case(url)


@durable
async def test_a_step_that_cancels_itself_has_failed(app: App) -> None:
    @app.step(retry=ONCE)
    async def odd(ctx: StepContext) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    @app.job
    async def job(ctx: JobContext) -> None:
        await odd()

    async with app.running():
        with pytest.raises(JobFailed, match="cancelled by its own code"):
            await (await app.submit(job())).result("5s")


@durable
async def test_a_step_whose_time_is_up_is_tried_again_beside_a_long_wait(app: App) -> None:
    attempts: list[int] = []

    @app.step(timeout="500ms", retry=Retry(attempts=2, initial_delay="1ms"))
    async def slow(ctx: StepContext) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            lingers = asyncio.ensure_future(_linger())
            await asyncio.Event().wait()
            lingers.cancel()

    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.gather(slow(), ctx.receive("never"))

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        assert attempts == [1, 2]


async def _linger() -> None:
    """Wait, and take a few turns of the loop to end."""
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(10):
            await asyncio.sleep(0)


@durable
async def test_ten_thousand_steps_are_replayed(app: App) -> None:
    ran: list[int] = []

    @app.step
    async def count(ctx: StepContext, number: int) -> int:
        ran.append(number)
        return number

    @app.job
    async def job(ctx: JobContext) -> int:
        for block in range(10):
            await ctx.gather(*(count(block * 1000 + n) for n in range(1000)))
        await ctx.receive("go")
        return len(ran)

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("30s") == 10_000
    assert len(ran) == 10_000


@durable
async def test_a_plan_waits_for_a_worker_that_knows_all_its_steps(
    app: App,
) -> None:
    @app.step
    async def known(ctx: StepContext) -> str:
        return "known"

    @app.step
    async def gone(ctx: StepContext, word: str) -> str:
        return word + " to all"

    plan = Plan(PlanCall("known"), PlanCall("gone", word=Ref("known")), name="p")
    handle = await app.submit(plan)
    other = App(app.url, worker=QUICK)
    other.add(known)
    async with other.running():
        later = await other.submit(Plan(PlanCall("known"), name="later"))
        assert await later.result("10s") == "known"
        assert (await handle.job()).state is JobState.PENDING
    await other.close()
    async with app.running():
        assert await handle.result("10s") == "known to all"


@durable
async def test_a_fork_of_a_plan_has_done_what_came_before(app: App) -> None:
    ran: list[str] = []

    @app.step
    async def first(ctx: StepContext) -> str:
        ran.append("first")
        return "1"

    @app.step
    async def second(ctx: StepContext, word: str) -> str:
        ran.append("second")
        return word + "2"

    async with app.running():
        handle = await app.submit(
            Plan(PlanCall("first"), PlanCall("second", word=Ref("first")), name="p")
        )
        assert await handle.result("5s") == "12"
        fork = await handle.fork("second#second")
        assert await fork.result("5s") == "12"
    assert ran == ["first", "second", "second"]


@durable
async def test_what_is_no_step_or_no_job_is_refused_with_a_hint(app: App) -> None:
    def plain() -> None: ...

    @app.step
    async def step(ctx: StepContext) -> None: ...

    @app.job
    async def inner(ctx: JobContext) -> None: ...

    @app.job
    async def outer(ctx: JobContext) -> list[str]:
        told: list[str] = []
        start, child = cast("Any", ctx.start), cast("Any", ctx.child)
        for call, given in ((start, plain), (start, inner), (child, plain), (child, step())):
            try:
                await call(given)
            except TypeError as error:
                told.append(re.sub(r" at 0x\w+>", "", str(error)))
        return told

    for given in (plain, step, step()):
        with pytest.raises(
            TypeError, match=r"app.submit takes the call of a job made with @app.job"
        ):
            await cast("Any", app.submit)(given)
    async with app.running():
        told = await (await app.submit(outer())).result("10s", if_parked="raise")
    function = "<function test_what_is_no_step_or_no_job_is_refused_with_a_hint.<locals>.plain"
    assert told[0].startswith(function)
    assert "is not an operation of this job: pass calls such as `load(3)`" in told[0]
    assert "<JobDefinition inner> is not an operation of this job" in told[1]
    a_job = "ctx.child takes the call of a job made with @app.job, or a plan, not"
    assert told[2:] == [f"{a_job} {function}", f"{a_job} a call of step 'step'"]
