"""Steps with effects on both sides of a checkpoint, at which they die; and a worker for them.

`python -m tests.support.checkpoint_crash URL FOLDER` works until it is killed.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from perdure import Retry
from perdure.app import App
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.definition import Step
from perdure.jobs.parameters import Partial
from tests.support.engine import QUICK
from tests.support.process_effects import die_once

ONCE = Retry(attempts=1)


def build(url: str, folder: Path) -> App:
    """Make the app: a job for each step, of the same name."""
    app = App(url, worker=QUICK)
    for story in (goes_on, goes_on_later, begins_anew, has_keys, around_items, behind_items):
        _add(app, story, folder)
    return app


def _add(app: App, story: Callable[..., Any], folder: Path) -> None:
    step: Step[..., Any] = app.step(retry=ONCE)(story)

    @app.job(name=story.__name__)
    async def job(ctx: JobContext) -> None:
        await step(str(folder))


def log(folder: Path) -> list[str]:
    """Give what happened."""
    return (folder / "log").read_text().split()


def _write(folder: str, what: str, _: str) -> None:
    with (Path(folder) / "log").open("a") as file:
        file.write(f"{what}\n")


async def _tell(ctx: StepContext, folder: str, what: str, **options: Any) -> None:
    await ctx.effect("slack", partial(_write, folder, what), target="#ops", **options)


async def goes_on(ctx: StepContext, folder: str) -> None:
    """Go on from the checkpoint, which looks like those of `ctx.items`."""
    if ctx.load_checkpoint() is None:
        await _tell(ctx, folder, "first")
        await ctx.save_checkpoint({"items": 1})
        die_once(folder)
    await _tell(ctx, folder, "second")


async def goes_on_later(ctx: StepContext, folder: str) -> Partial[None] | None:
    if ctx.load_checkpoint() is None:
        await _tell(ctx, folder, "first")
        return Partial(None, checkpoint="half")
    die_once(folder)
    await _tell(ctx, folder, "second")
    return None


async def begins_anew(ctx: StepContext, folder: str) -> None:
    """Do not care about the checkpoint."""
    await _tell(ctx, folder, "first")
    await ctx.save_checkpoint("half")
    die_once(folder)


async def has_keys(ctx: StepContext, folder: str) -> None:
    if ctx.load_checkpoint() is None:
        await _tell(ctx, folder, "first", key="first")
        await ctx.save_checkpoint("half")
        die_once(folder)
    await _tell(ctx, folder, "second", key="second")


async def around_items(ctx: StepContext, folder: str) -> None:
    await _tell(ctx, folder, "first")
    async for item in ctx.items(["a", "b", "c"], every=1):
        if item == "b":
            die_once(folder)
        await _tell(ctx, folder, item)
    await _tell(ctx, folder, "last")


async def behind_items(ctx: StepContext, folder: str) -> None:
    if ctx.load_checkpoint() != "half":
        await _tell(ctx, folder, "first")
        async for item in ctx.items(["a", "b"]):
            await _tell(ctx, folder, item)
        await ctx.save_checkpoint("half")
        die_once(folder)
    await _tell(ctx, folder, "second")


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2])).serve_sync()
