"""The undo of a step that was not done: it sees how far the step had come."""

import asyncio
from typing import Any

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import Permanent
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.parameters import Partial
from perdure.jobs.state import JobState
from tests.support.engine import durable

ONCE = Retry(attempts=1)


class Book:
    """A step that writes pages, and is broken at the third one in some way."""

    def __init__(self, app: App, how: str, **options: Any) -> None:
        self.seen: list[Any] = []
        self.at_third = asyncio.Event()
        self.mended = False

        @app.step(retry=ONCE)
        async def write(ctx: StepContext) -> list[str] | Partial[list[str]]:
            number = (ctx.load_checkpoint() or 0) + 1
            if number == 3 and not self.mended:
                self.at_third.set()
                await self._break(how)
            if number == 3:
                raise Permanent("still broken")
            return Partial([f"page {each}" for each in range(1, number + 1)], number)

        @write.compensate
        async def tear_out(ctx: StepContext, output: list[str] | None) -> None:
            self.seen += [output, ctx.undone_checkpoint, ctx.load_checkpoint()]

        @app.job(**options)
        async def job(ctx: JobContext) -> None:
            await write()

        self.job = job

    async def _break(self, how: str) -> None:
        if how == "raises":
            raise Permanent("no paper")
        await asyncio.Event().wait()


PAGES = [["page 1", "page 2"], 2, None]


@durable
async def test_a_step_that_fails_after_partial_results(app: App) -> None:
    book = Book(app, "raises")
    handle = await app.submit(book.job())
    async with app.running():
        assert await handle.wait("10s") is JobState.COMPENSATED
    assert book.seen == PAGES


@durable
async def test_a_step_that_is_interrupted_after_partial_results(app: App) -> None:
    book = Book(app, "hangs", on_cancel="compensate")
    handle = await app.submit(book.job())
    async with app.running():
        await book.at_third.wait()
        await handle.cancel()
        assert await handle.wait("10s") is JobState.CANCELLED
    assert book.seen == PAGES


@durable
async def test_a_worker_that_leaves_in_between(app: App) -> None:
    book = Book(app, "hangs", on_cancel="compensate")
    handle = await app.submit(book.job())
    async with app.running():
        await book.at_third.wait()
    book.mended = True
    async with app.running():
        assert await handle.wait("10s") is JobState.COMPENSATED
    assert book.seen == PAGES


@durable
async def test_a_step_that_was_retried_by_a_person(app: App) -> None:
    book = Book(app, "hangs")
    handle = await app.submit(book.job())
    async with app.running():
        await book.at_third.wait()
        await handle.cancel()
        assert await handle.wait("10s") is JobState.CANCELLED
        book.mended = True
        await handle.retry()
        assert await handle.wait("10s") is JobState.COMPENSATED
    assert book.seen == PAGES


@pytest.mark.parametrize("done", [False, True])
def test_checkpoints_are_seen_unless_the_step_was_done(url: str, *, done: bool) -> None:
    seen: list[Any] = []

    @durable
    async def case(app: App) -> None:
        @app.step(retry=ONCE)
        async def write(ctx: StepContext) -> str:
            await ctx.save_checkpoint({"pages": 7})
            if done:
                return "done"
            raise Permanent("no paper")

        @write.compensate
        async def tear_out(ctx: StepContext, output: str | None) -> None:
            seen.extend([output, ctx.undone_checkpoint])

        @app.job
        async def job(ctx: JobContext) -> None:
            await write()
            raise Permanent("after all")

        handle = await app.submit(job())
        async with app.running():
            assert await handle.wait("10s") is JobState.COMPENSATED

    case(url)
    assert seen == (["done", None] if done else [None, {"pages": 7}])
