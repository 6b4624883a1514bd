"""Resume and retry: what a job stopped at gets fresh attempts, the rest stays as it was."""

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import JobFailed, StepFailed
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState
from tests.support.engine import durable, until

TWICE = Retry(attempts=2, initial_delay="1ms")


class World:
    """Systems that are away until they are not; `calls` says who was asked, in order."""

    def __init__(self, app: App, *away: str, error: type[Exception] = ConnectionError) -> None:
        self.away = set(away)
        self.calls: list[str] = []

        @app.step(retry=TWICE)
        async def call(ctx: StepContext, name: str) -> str:
            self.calls.append(name)
            if name in self.away:
                raise error(f"{name} is away")
            return name

        self.call = call


@durable
async def test_a_job_that_an_outage_parked_goes_on_when_it_is_resumed(app: App) -> None:
    world = World(app, "bank")

    @app.job
    async def pays(ctx: JobContext) -> str:
        await world.call("shop")
        return await world.call("bank")

    handle = await app.submit(pays())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        world.away.clear()
        await handle.resume("the bank is back", by="kim")
        assert await handle.result("10s") == "bank"
    assert world.calls == ["shop", "bank", "bank", "bank"]


@durable
async def test_a_resumed_job_gets_all_its_attempts_before_it_is_parked_again(app: App) -> None:
    world = World(app, "bank")

    @app.job
    async def pays(ctx: JobContext) -> str:
        return await world.call("bank")

    handle = await app.submit(pays())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.resume()
        while len(world.calls) < 4:
            await perdure.process.sleep("2ms")
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    (entry,) = await handle.journal()
    assert (entry.attempt, len(world.calls)) == (2, 4)


@durable
async def test_all_that_an_outage_stopped_at_once_goes_on_at_one_resume(app: App) -> None:
    world = World(app, "bank", "shop")

    @app.job
    async def pays(ctx: JobContext) -> list[str]:
        names = ("mail", "bank", "shop")
        return list(await ctx.gather(*(world.call(name) for name in names)))

    handle = await app.submit(pays())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        world.away.clear()
        await handle.resume()
        assert await handle.result("10s", if_parked="raise") == ["mail", "bank", "shop"]
    assert world.calls.count("mail") == 1


async def with_a_way_around(app: App, world: World) -> Handle[str]:
    """Have a job that stopped on its second way, when the first one was closed."""

    @app.job
    async def pays(ctx: JobContext) -> str:
        try:
            return await world.call("first bank")
        except StepFailed:
            return await world.call("second bank")

    return await app.submit(pays())


@durable
async def test_resume_leaves_a_failure_that_the_job_has_passed(app: App) -> None:
    world = World(app, "first bank", "second bank")
    handle = await with_a_way_around(app, world)
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        world.away.clear()
        await handle.resume()
        assert await handle.result("10s", if_parked="raise") == "second bank"


@durable
async def test_retry_leaves_a_failure_that_the_job_has_passed(app: App) -> None:
    world = World(app, "first bank", "second bank", error=ValueError)
    handle = await with_a_way_around(app, world)
    async with app.running():
        await until(app, handle.id, JobState.FAILED)
        world.away.clear()
        await handle.retry()
        assert await handle.result("10s", if_parked="raise") == "second bank"


@durable
async def test_a_child_that_failed_behind_the_pivot_is_run_again_on_resume(app: App) -> None:
    world = World(app, "bank", error=ValueError)

    @app.step(pivot=True)
    async def sign(ctx: StepContext) -> None: ...

    @app.job
    async def pays(ctx: JobContext) -> str:
        return await world.call("bank")

    @app.job
    async def buys(ctx: JobContext) -> str:
        await sign()
        return await ctx.child(pays())

    handle = await app.submit(buys())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        world.away.clear()
        await handle.resume()
        assert await handle.result("10s", if_parked="raise") == "bank"


@durable
async def test_an_undo_that_stopped_is_tried_again_on_resume(app: App) -> None:
    world = World(app, "refund", error=ValueError)

    @app.step
    async def pay(ctx: StepContext) -> None: ...

    @pay.compensate(retry=TWICE)
    async def refund(ctx: StepContext, output: None) -> None:
        await world.call.fn(ctx, "refund")

    @app.job
    async def buys(ctx: JobContext) -> None:
        await pay()
        raise ValueError("sold out")

    handle = await app.submit(buys())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        world.away.clear()
        await handle.resume()
        await until(app, handle.id, JobState.COMPENSATED)


@durable
async def test_a_sleep_that_was_cancelled_ends_when_it_would_have_ended(app: App) -> None:
    @app.job
    async def naps(ctx: JobContext) -> str:
        await ctx.sleep("1h")
        return "awake"

    handle = await app.submit(naps())
    async with app.running():
        await until(app, handle.id, JobState.WAITING)
        due_at = (await handle.job()).due_at
        await handle.cancel()
        await until(app, handle.id, JobState.CANCELLED)
        await handle.retry()
        await until(app, handle.id, JobState.WAITING)
    assert (await handle.job()).due_at == due_at is not None


@durable
async def test_a_wait_for_a_message_has_its_whole_time_again_on_retry(app: App) -> None:
    @app.job
    async def waits(ctx: JobContext) -> str:
        return await ctx.receive("signed", timeout="200ms", kind=str)

    handle = await app.submit(waits())
    async with app.running():
        await until(app, handle.id, JobState.FAILED)
        (late,) = await handle.journal()
        await handle.retry()
        await until(app, handle.id, JobState.FAILED)
        (again,) = await handle.journal()
        assert (again.wake_at or 0) > (late.wake_at or 0)
        await handle.retry()
        await handle.send("signed", "kim")
        assert await handle.result("10s") == "kim"


@durable
async def test_a_retried_parent_runs_the_child_again_that_it_failed_of(app: App) -> None:
    world = World(app, "bank", "shop", error=ValueError)

    @app.job
    async def asks(ctx: JobContext, name: str) -> str:
        return await world.call(name)

    @app.job
    async def buys(ctx: JobContext) -> str:
        try:
            return await ctx.child(asks("shop"))
        except JobFailed:
            return await ctx.child(asks("bank"))

    handle = await app.submit(buys())
    async with app.running():
        await until(app, handle.id, JobState.FAILED)
        world.away.clear()
        await handle.retry()
        assert await handle.result("10s", if_parked="raise") == "bank"
