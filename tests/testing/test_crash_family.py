"""Parents of several children, killed at every write: no end of a child is lost."""

import asyncio

from perdure.app import App
from perdure.base.errors import JobFailed, Permanent
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.testing import crash_everywhere
from tests.support.job_environment import NEVER_OPENED


def test_no_gathered_end_is_lost_wherever_the_worker_dies(url: str) -> None:
    app = App(NEVER_OPENED)

    @app.step
    async def double(number: int) -> int:
        return 2 * number

    @app.job
    async def one(number: int) -> int:
        return await double(number)

    @app.job
    async def many(ctx: JobContext) -> list[int]:
        return list(await ctx.gather(*(ctx.child(one(number)) for number in range(3))))

    report = asyncio.run(crash_everywhere(app, many(), url=url))
    assert report.result == [0, 2, 4]
    assert report.crashes >= 8


def test_a_failed_child_reaches_its_parent_wherever_the_worker_dies(url: str) -> None:
    app = App(NEVER_OPENED)

    @app.job
    async def one(number: int) -> int:
        if number == 1:
            raise Permanent("broken")
        return number

    @app.job
    async def many(ctx: JobContext) -> str:
        try:
            await ctx.gather(*(ctx.child(one(number)) for number in range(3)))
        except JobFailed as failed:
            return failed.state
        return "nothing failed"

    report = asyncio.run(crash_everywhere(app, many(), url=url))
    assert report.result == "FAILED"


def test_what_items_have_collected_is_the_same_wherever_the_worker_dies(url: str) -> None:
    app = App(NEVER_OPENED)

    @app.step
    async def convert(ctx: StepContext, names: list[str]) -> list[str]:
        async for name in ctx.items(names, every=1):
            ctx.collect(name.upper())
        return ctx.collected(str)

    @app.job
    async def job() -> list[str]:
        return await convert(["a", "b", "c"])

    report = asyncio.run(crash_everywhere(app, job(), url=url))
    assert report.result == ["A", "B", "C"]
    assert report.crashes >= 8
