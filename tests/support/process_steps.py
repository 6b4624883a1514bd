"""Steps that run in other OS processes: they stand at the top of a module, so that it is found."""

import asyncio
import ctypes
import os
import signal
import threading
from pathlib import Path

import perdure
from perdure import Retry
from perdure.engine.registry import JobRegistry
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.parameters import Partial

steps = JobRegistry()

AGAIN = Retry(attempts=3, initial_delay="1ms")
ONCE = Retry(attempts=1)


def note(path: str, text: str) -> None:
    """Write something down that outlives the process."""
    with Path(path).open("a") as file:
        file.write(text)


@steps.step(isolation="process")
async def who(ctx: StepContext, word: str) -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "word": word,
        "job": ctx.job_id,
        "tenant": ctx.tenant,
        "step": ctx.step_id,
        "attempt": ctx.attempt,
        "key": ctx.idempotency_key,
    }


@steps.step(isolation="process")
def plain(ctx: SyncStepContext, number: int) -> int:
    assert threading.current_thread() is not threading.main_thread()
    return number + 1


@steps.step(isolation="process", retry=AGAIN)
async def resumes(ctx: StepContext, folder: str) -> int:
    for number in range(ctx.load_checkpoint() or 0, 6):
        note(f"{folder}/seen", f"{number} ")
        await ctx.save_checkpoint(number + 1)
        if number == 2 and ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return ctx.load_checkpoint()


@steps.step(isolation="process", retry=AGAIN)
async def goes_through(ctx: StepContext, names: list[str]) -> list[str]:
    done: list[str] = []
    async for name in ctx.items(names, every=1, on_error="skip"):
        if name == "bad":
            raise ValueError("a bad one")
        done.append(name)
    report = ctx.item_report
    assert report is not None
    return [aside.key for aside in report.skipped]


@steps.step(isolation="process")
def goes_through_plainly(ctx: SyncStepContext, names: list[str]) -> int:
    seen = 0
    for _ in ctx.items(names, every=2):
        seen += 1
        ctx.heartbeat()
    return seen


@steps.step(isolation="process")
async def pages(ctx: StepContext) -> int | Partial[int]:
    number = (ctx.load_checkpoint() or 0) + 1
    return number if number == 3 else Partial(number, number)


@steps.step(isolation="process", retry=ONCE)
async def segfaults(ctx: StepContext) -> None:
    ctypes.string_at(0)


@steps.step(isolation="process", retry=AGAIN)
async def dies_at_first(ctx: StepContext) -> str:
    if ctx.attempt == 1:
        os._exit(3)
    return f"attempt {ctx.attempt}"


@steps.step(isolation="process", retry=ONCE)
async def raises(ctx: StepContext) -> None:
    raise LookupError("not here")


@steps.step(isolation="process", retry=ONCE, timeout="300ms")
def spins(ctx: SyncStepContext, path: str) -> None:
    note(path, str(os.getpid()))
    while True:
        pass


@steps.step(isolation="process")
async def hangs(ctx: StepContext, path: str) -> None:
    note(path, str(os.getpid()))
    await asyncio.Event().wait()


@steps.step(isolation="process")
async def counts_slowly(ctx: StepContext, path: str) -> int:
    for number in range(ctx.load_checkpoint() or 0, 1000):
        note(path, f"{number}\n")
        await perdure.process.sleep("10ms")
        await ctx.save_checkpoint(number + 1)
    return 1000


@steps.step(isolation="process")
async def echo(ctx: StepContext, raw: bytes, text: str, parts: list[object]) -> list[object]:
    """Send what it was given by every way that there is, and give it back."""
    await ctx.save_checkpoint({"text": text, "parts": parts})
    kept = await ctx.effect("echo", lambda key: [text, parts], target="t", details={"x": text})
    await ctx.record_effect("echo", "once", note=text)
    return [raw.hex(), text, parts, kept, ctx.load_checkpoint()]
