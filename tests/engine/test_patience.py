"""Code that awaits more than operations: it is not judged while something resumes it."""

import asyncio
import contextlib

import perdure
from perdure.app import App
from perdure.base.codec import decode
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.failure import Failure
from perdure.jobs.state import JobState
from tests.support.engine import until

PATIENCE = 0.1
IMPATIENT = WorkerSettings(
    replay_patience=PATIENCE, idle_patience=PATIENCE, poll="50ms", cancel_grace="50ms"
)


async def resumed_for(seconds: float) -> None:
    """Await something that is not an operation, and be resumed again and again."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE / 10):
                await asyncio.Event().wait()


class Scene:
    """A job that, when it is replayed, waits for something else before it asks for its step."""

    def __init__(self, url: str) -> None:
        self.app = app = App(url, worker=IMPATIENT)
        self.runs = 0

        @app.step
        async def old(ctx: StepContext) -> str:
            return "old"

        @app.step
        async def new(ctx: StepContext) -> str:
            return "new"

        @app.job
        async def job(ctx: JobContext) -> str:
            self.runs += 1
            if self.runs == 1:
                await old()
                return await ctx.receive("go")
            async with asyncio.TaskGroup() as group:
                later = group.create_task(self.old_later(ctx))
                first = await new()  # held: the journal has `old`, which was not asked for
            return f"{later.result()} {first}"

        self.old, self.job = old, job

    async def old_later(self, ctx: JobContext) -> str:
        await self.foreign()
        result = await self.old()
        await ctx.receive("go")
        return result

    async def foreign(self) -> None:
        await resumed_for(3 * PATIENCE)


def test_code_that_is_resumed_during_its_replay_is_not_taken_for_drifted(url: str) -> None:
    scene = Scene(url)

    async def main() -> None:
        async with scene.app, scene.app.running():
            handle = await scene.app.submit(scene.job())
            await until(scene.app, handle.id, JobState.WAITING)
            await scene.app.send(handle.id, "go")
            assert await handle.result("30s") == "old new"

    perdure.run(main)
    assert scene.runs == 2


def test_code_that_nothing_resumes_during_its_replay_is_parked_and_told_why(url: str) -> None:
    scene = Scene(url)

    async def never() -> None:
        await asyncio.Event().wait()

    scene.foreign = never

    async def main() -> None:
        async with scene.app, scene.app.running():
            handle = await scene.app.submit(scene.job())
            await until(scene.app, handle.id, JobState.WAITING)
            await scene.app.send(handle.id, "go")
            await until(scene.app, handle.id, JobState.NEEDS_ATTENTION)
            failure = decode((await handle.job()).error or b"", Failure)
            assert "has waited for 0.1 s for something that is not an operation" in failure.message
            assert "the journal expects old#1" in failure.message

    perdure.run(main)


def test_a_job_is_not_suspended_while_something_else_resumes_its_code(url: str) -> None:
    runs = list[int]()
    app = App(url, worker=IMPATIENT)

    @app.job
    async def job(ctx: JobContext) -> str:
        runs.append(1)
        async with asyncio.TaskGroup() as group:
            message = group.create_task(received(ctx))
            await resumed_for(3 * PATIENCE)
            await app.send(ctx.job_id, "go", "gone")
        return message.result()

    async def received(ctx: JobContext) -> str:
        return await ctx.receive("go")

    async def main() -> None:
        async with app, app.running():
            handle = await app.submit(job())
            assert await handle.result("30s") == "gone"

    perdure.run(main)
    assert len(runs) == 1
