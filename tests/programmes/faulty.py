"""A worker whose steps do what they should not: for tests with real processes.

`python -m tests.programmes.faulty URL LOG [GRACE]`
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import perdure
from perdure.app import App
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.definition import Step
from tests.programmes.migration import SETTINGS


def build(url: str, log: Path, grace: str = "1s") -> App:
    """Make the app; a line of the log tells what runs."""
    app = App(url, worker=replace(SETTINGS, drain_grace=grace, cancel_grace="200ms"))

    note = partial(_note, log)

    @app.step
    async def crash(ctx: StepContext) -> None:
        note("crash", ctx.job_id, ctx.step_id)
        os._exit(7)

    @app.step
    async def count(ctx: StepContext, most: int) -> int:
        for number in range(ctx.load_checkpoint() or 0, most):
            note("count", ctx.job_id, number)
            await perdure.process.sleep("20ms")
            await ctx.save_checkpoint(number + 1)
        return most

    @app.step
    async def stay(ctx: StepContext) -> None:
        note("stay", ctx.job_id, "begun")
        try:
            await asyncio.Event().wait()
        finally:
            note("stay", ctx.job_id, "ended")

    @app.step
    def sit(ctx: SyncStepContext) -> None:
        note("sit", ctx.job_id, "begun")
        threading.Event().wait()

    @app.job
    async def counting(ctx: JobContext, most: int) -> int:
        return await count(most)

    _add_question(app, note)
    return _with_jobs_of_one_step(app, crash, stay, sit)


def _note(log: Path, *words: object) -> None:
    with log.open("a") as file:
        file.write(" ".join(map(str, words)) + f" {os.getpid()}\n")


def _add_question(app: App, note: Callable[..., None]) -> None:
    @app.step
    async def ship(ctx: StepContext) -> None:
        note("ship", ctx.job_id, ctx.step_id)

    @app.job
    async def asks(ctx: JobContext) -> list[str]:
        yes = await ctx.approve("Ship it?")
        await ship()
        return list(yes.by)


def _with_jobs_of_one_step(app: App, *steps: Step[[], None]) -> App:
    """Make a job of each step, with the step's name and an `s` at its end."""

    def define(step: Step[[], None]) -> None:
        async def job(ctx: JobContext) -> None:
            await step()

        app.job(name=f"{step.name}s", max_claims=3)(job)

    for step in steps:
        define(step)
    return app


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]).serve_sync()
