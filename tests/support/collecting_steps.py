"""Steps of every isolation that collect results of items, and break off once in the middle.

At module level, so that another OS process finds them.
"""

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import cast

from perdure import Retry
from perdure.app import App
from perdure.engine.steps.step_context import StepContext, SyncStepContext

AGAIN = Retry(attempts=3, initial_delay="1ms")


@dataclass
class Page:
    name: str
    on: date


DAY = date(2026, 11, 17)
steps = App("sqlite:///:memory:")


def break_off_once(folder: str, name: str, *, kill: bool = False) -> None:
    mark = Path(folder) / "broken"
    if name == "d" and not mark.exists():
        mark.touch()
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConnectionError("the line broke")


async def walk(
    ctx: StepContext, names: list[str], folder: str, *, kill: bool = False
) -> list[Page]:
    async for name in ctx.items(names, every=2):
        ctx.collect(Page(name, DAY))
        break_off_once(folder, name, kill=kill)
    return ctx.collected(Page)


@steps.step(retry=AGAIN)
async def inline(ctx: StepContext, names: list[str], folder: str) -> list[Page]:
    return await walk(ctx, names, folder)


@steps.step(retry=AGAIN)
def thread(ctx: SyncStepContext, names: list[str], folder: str) -> list[Page]:
    for name in cast("Iterable[str]", ctx.items(names, every=2)):
        ctx.collect(Page(name, DAY))
        break_off_once(folder, name)
    return ctx.collected(Page)


@steps.step(isolation="process", retry=AGAIN)
async def process(ctx: StepContext, names: list[str], folder: str) -> list[Page]:
    return await walk(ctx, names, folder, kill=True)
