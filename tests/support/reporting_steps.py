"""Steps of every isolation that report how far they are, and go on when a file appears."""

from pathlib import Path

from perdure.app import App
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.process import sleep

steps = App("sqlite:///:memory:")


def is_there(path: str) -> bool:
    return Path(path).exists()


async def wait_for(path: str) -> None:
    while not is_there(path):
        await sleep("5ms")


@steps.step
async def inline(ctx: StepContext, path: str) -> None:
    ctx.progress(3, 10, "page 3")
    await wait_for(path)


@steps.step(isolation="thread")
async def thread(ctx: StepContext, path: str) -> None:
    ctx.progress(3, 10, "page 3")
    while not is_there(path):
        ctx.heartbeat()


@steps.step
def plain(ctx: SyncStepContext, path: str) -> None:
    ctx.progress(3, 10, "page 3")
    while not is_there(path):
        pass


@steps.step(isolation="process")
async def process(ctx: StepContext, path: str) -> None:
    ctx.progress(3, 10, "page 3")
    await wait_for(path)


@steps.step
async def items(ctx: StepContext, path: str) -> None:
    async for item in ctx.items(range(10)):
        if item == 3:
            await wait_for(path)
