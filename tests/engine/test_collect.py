"""Results of items are durable with the position behind their item."""

from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.app import App
from perdure.base.codec import PayloadLimits
from perdure.base.errors import DefinitionError
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.items import Cursor, ItemPolicy
from perdure.jobs.state import JobState
from tests.jobs.test_item import ERROR
from tests.support import collecting_steps
from tests.support.collecting_steps import DAY, Page
from tests.support.engine import QUICK, durable

NAMES = list("abcdefg")


@pytest.mark.parametrize("kind", ["inline", "thread", "process"])
def test_what_was_collected_before_a_checkpoint_is_there_after_the_step_broke_off(
    kind: str, url: str, tmp_path: Path
) -> None:
    step: Any = getattr(collecting_steps, kind)

    async def main() -> None:
        app = App(url, worker=QUICK)
        app.include(collecting_steps.steps)

        @app.job
        async def job(ctx: JobContext) -> list[Page]:
            return await step(NAMES, str(tmp_path))

        async with app, app.running():
            handle = await app.submit(job())
            assert await handle.result("60s") == [Page(name, DAY) for name in NAMES]
            (entry,) = await handle.journal()
            assert entry.attempt == 2

    perdure.run(main)


@durable
async def test_results_of_skipped_items_are_dropped(app: App) -> None:
    @app.step
    async def convert(ctx: StepContext) -> list[str]:
        async for name in ctx.items(["a", "bad", "c"], on_error="skip"):
            ctx.collect(name.upper())
            ctx.collect(name)
            if name == "bad":
                raise ValueError("a bad one")
        return ctx.collected(str)

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return await convert()

    async with app.running():
        assert await (await app.submit(job())).result("30s") == ["A", "a", "C", "c"]


@durable
async def test_results_are_collected_only_inside_the_loop_over_items(app: App) -> None:
    @app.step
    async def convert(ctx: StepContext) -> None:
        with pytest.raises(DefinitionError, match=r"inside the loop over ctx\.items"):
            ctx.collect(1)
        assert ctx.collected(int) == []
        async for _ in ctx.items(["a"]):
            pass
        with pytest.raises(DefinitionError, match=r"inside the loop over ctx\.items"):
            ctx.collect(1)

    @app.job
    async def job(ctx: JobContext) -> None:
        await convert()

    async with app.running():
        assert await (await app.submit(job())).wait("30s") is JobState.COMPLETED


def test_results_may_be_larger_than_other_checkpoints(url: str) -> None:
    async def main() -> None:
        app = App(url, worker=QUICK, limits=PayloadLimits(checkpoint=200, record=100_000))

        @app.step
        async def convert(ctx: StepContext) -> list[str]:
            async for _ in ctx.items(range(20), every=1):
                ctx.collect("x" * 100)
            return ctx.collected(str)

        @app.job
        async def job(ctx: JobContext) -> int:
            return len(await convert())

        async with app, app.running():
            assert await (await app.submit(job())).result("30s") == 20

    perdure.run(main)


def test_results_are_in_the_order_of_the_items_after_a_quarantine() -> None:
    policy = ItemPolicy(on_error="quarantine")
    cursor = Cursor.start(list("abc"), None, policy)
    for place in cursor.remaining():
        cursor.begin(place)
        cursor.collect(f"{place} for the first time")
        if place == 1:
            cursor.failed(ERROR)
        else:
            cursor.done(place)
    cursor.finish()
    again = Cursor.start(list("abc"), cursor.checkpoint(), policy)
    for place in again.remaining():
        again.begin(place)
        again.collect(f"{place} again")
        again.done(place)
    assert again.results() == ["0 for the first time", "1 again", "2 for the first time"]
