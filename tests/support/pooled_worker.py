"""A worker that dies in the middle of a job: `python -m tests.support.pooled_worker URL MARK`."""

import os
import signal
import sys
from pathlib import Path

from perdure.app import App
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from tests.support.engine import QUICK


def _die_once(mark: Path) -> None:
    if mark.exists():
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def build(url: str, mark: Path) -> App:
    """Make the app: the second step kills its program if the mark is there, and removes it."""
    app = App(url, worker=QUICK)

    @app.step
    async def count(ctx: StepContext, number: int) -> int:
        if number == 1:
            _die_once(mark)
        return number

    @app.job
    async def add(ctx: JobContext, most: int) -> int:
        return sum([await count(number) for number in range(most)])

    @app.job
    async def wait(ctx: JobContext) -> str:
        return await ctx.receive("answer", kind=str)

    return app


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2])).serve_sync()
