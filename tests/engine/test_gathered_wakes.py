"""A parent of many children is run when its code can continue, not at each end of a child."""

import asyncio

import perdure
from perdure.app import App
from perdure.base.errors import JobFailed, Permanent
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState
from tests.support.engine import durable, until

CHILDREN = 60


def test_a_parent_that_gathers_is_run_again_only_when_all_children_have_ended(url: str) -> None:
    runs = list[int]()

    async def main() -> None:
        app = App(url, worker=WorkerSettings(concurrency=5, poll="50ms"))

        @app.step
        async def double(ctx: StepContext, number: int) -> int:
            return 2 * number

        @app.job
        async def one(ctx: JobContext, number: int) -> int:
            return await double(number)

        @app.job
        async def many(ctx: JobContext) -> list[int]:
            runs.append(1)
            return list(await ctx.gather(*(ctx.child(one(number)) for number in range(CHILDREN))))

        async with app, app.running():
            handle = await app.submit(many())
            assert await handle.result("60s") == [2 * number for number in range(CHILDREN)]
            journal = await handle.journal()
            assert [entry.state for entry in journal] == ["SUCCEEDED"] * CHILDREN

    perdure.run(main)
    assert len(runs) <= 3  # the first run, the last, and one if it was claimed in between


@durable
async def test_a_failed_child_reaches_code_that_awaits_it_beside_a_gather(app: App) -> None:
    @app.job
    async def waits(ctx: JobContext) -> str:
        return await ctx.receive("go")

    @app.job
    async def fails(ctx: JobContext) -> None:
        raise Permanent("broken")

    @app.job
    async def parent(ctx: JobContext) -> str:
        slow = [ctx.child(waits()), ctx.child(waits())]
        bad = ctx.child(fails())
        async with asyncio.TaskGroup() as group:
            all_of_them = group.create_task(ctx.gather(*slow))
            try:
                await bad
            except JobFailed:
                await ctx.receive("told")
        return " ".join(all_of_them.result())

    async with app.running():
        handle = await app.submit(parent())
        await app.send(handle.id, "told", None)
        # Both children still wait: the failure of the third has reached the code.
        while not any(entry.state == "SUCCEEDED" for entry in await handle.journal()):
            await perdure.process.sleep("5ms")
        for entry in await handle.journal():
            if entry.name.endswith("waits"):
                child = await child_of(app, handle.id, entry.seq)
                await app.send(child, "go", "done")
        assert await handle.result("30s") == "done done"


async def child_of(app: App, parent: str, seq: int) -> str:
    store = await app.store()
    found = await store.jobs(perdure.JobQuery(parent=parent))
    return next(job.id for job in found if job.parent_seq == seq)


@durable
async def test_a_cancelled_parent_does_not_wait_for_the_children_that_it_gathers(app: App) -> None:
    @app.job
    async def waits(ctx: JobContext) -> str:
        return await ctx.receive("go")

    @app.job
    async def parent(ctx: JobContext) -> list[str]:
        return list(await ctx.gather(ctx.child(waits()), ctx.child(waits())))

    async with app.running():
        handle = await app.submit(parent())
        await until(app, handle.id, JobState.WAITING)
        await handle.cancel("enough", by="kim")
        assert await handle.wait("30s") is JobState.CANCELLED


@durable
async def test_a_child_that_is_retried_while_its_parent_gathers_is_waited_for_again(
    app: App,
) -> None:
    tries = list[int]()

    @app.job
    async def fails_once(ctx: JobContext) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise Permanent("not yet")
        return await ctx.receive("go")

    @app.job
    async def waits(ctx: JobContext) -> str:
        return await ctx.receive("go")

    @app.job
    async def parent(ctx: JobContext) -> list[str]:
        return list(await ctx.gather(ctx.child(fails_once()), ctx.child(waits())))

    async with app.running():
        handle = await app.submit(parent())
        await until(app, handle.id, JobState.WAITING)
        first, second = [await child_of(app, handle.id, seq) for seq in (1, 2)]
        await until(app, first, JobState.FAILED)
        await (await app.handle(first)).retry(reason="again", by="kim")
        await until(app, first, JobState.WAITING)
        await app.send(second, "go", "b")
        await until(app, second, JobState.COMPLETED)
        await app.send(first, "go", "a")
        assert await handle.result("30s") == ["a", "b"]
