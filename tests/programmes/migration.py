"""A job to be killed: steps that leave a line in a file each time they really run.

Run as a worker: `python -m tests.programmes.migration URL LOG`.
"""

import os
import sys
import threading
from pathlib import Path

from perdure.app import App
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext

ITEMS = 40

SETTINGS = WorkerSettings(
    concurrency=20,
    lease="2s",
    heartbeat="200ms",
    stop_before_expiry="500ms",
    stuck_after="2s",
    keep_in_memory="10ms",
    poll="200ms",
    reap_every="50ms",
    expiry_every="50ms",
    start_record_after="5ms",
    drain_grace="2s",
)


def build(url: str, log: Path) -> App:
    """Make the app; every real run of a step or item is a line of the log."""
    app = App(url, worker=SETTINGS)
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(*words: object) -> None:
        os.write(lines, (" ".join(map(str, words)) + f" {os.getpid()}\n").encode())

    @app.step
    async def extract(ctx: StepContext, number: int) -> int:
        note("step", ctx.job_id, ctx.step_id)
        return number + 1

    @app.step
    async def load(ctx: StepContext, names: list[str]) -> int:
        note("step", ctx.job_id, ctx.step_id)
        async for name in ctx.items(names, every=5):
            note("item", ctx.job_id, name)
        return len(names)

    @app.job
    async def migrate(ctx: JobContext, steps: int) -> int:
        number = 0
        for _ in range(steps):
            number = await extract(number)
        await ctx.sleep("20ms")
        parts = await ctx.gather(*(extract(part) for part in range(3)))
        loaded = await load([f"row{row}" for row in range(ITEMS)])
        return number + sum(parts) + loaded

    return app


def expected(steps: int) -> int:
    """Give the result of a migration of so many steps."""
    return steps + (1 + 2 + 3) + ITEMS


def _end_with_parent() -> None:
    """Wait for the end of the input: whoever started this worker is gone, and so must it be."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    build(sys.argv[1], Path(sys.argv[2])).serve_sync()
