"""The migration of the demonstration, and its worker: `python -m perdure.cli.demo.migration …`.

Whatever a step really does it writes to a file of its own:
what the demonstration says at its end comes from there, not from the tables of Perdure.
"""

import asyncio
import os
import sys
import threading
from pathlib import Path

import msgspec
from msgspec import Struct

from perdure.app import App
from perdure.engine.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.step_context import StepContext
from perdure.process.timer import sleep

PAGES = 12
ON_A_PAGE = 50
CUSTOMERS = PAGES * ON_A_PAGE
CHECKPOINT_EVERY = 25
BATCHES = 12
IN_A_BATCH = CUSTOMERS // BATCHES

KEY = "migration"


class Migrated(Struct, frozen=True):
    """The result of the migration."""

    customers: int
    checksum: int
    loaded: int


class Batch(Struct, frozen=True):
    """What is sent to the receiver."""

    key: str
    rows: list[int]


def build(folder: Path, port: int, pace: float = 1.0) -> App:
    """Make the app.

    Args:
        folder: Where the store and the notes of the steps are.
        port: Where the receiver listens.
        pace: How long the work takes: 0.5 is half as long as usual.
    """
    app = App(url(folder), worker=WorkerSettings(reap_every="100ms"))
    notes = os.open(folder / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(*words: object) -> None:
        os.write(notes, (" ".join(map(str, words)) + f" {os.getpid()}\n").encode())

    @app.step
    async def extract(_ctx: StepContext, page: int) -> list[int]:
        note("begin", "extract", page)
        await sleep(0.2 * pace)
        note("end", "extract", page)
        return list(range(page * ON_A_PAGE, (page + 1) * ON_A_PAGE))

    @app.step
    async def convert(ctx: StepContext, customers: list[int]) -> int:
        note("begin", "convert", 0)
        async for customer in ctx.items(customers, every=CHECKPOINT_EVERY):
            await sleep(0.008 * pace)
            note("item", "convert", customer)
        note("end", "convert", 0)
        return checksum(customers)

    @app.step
    async def load(ctx: StepContext, batch: int, rows: list[int]) -> int:
        note("begin", "load", batch)
        await sleep(0.2 * pace)
        # The key is the same at every attempt, so that the receiver can tell a repetition.
        loaded = await _send(port, Batch(ctx.idempotency_key, rows))
        note("end", "load", batch)
        return loaded

    @app.job
    async def migrate(ctx: JobContext) -> Migrated:
        pages = [await ctx.run(extract, page) for page in range(PAGES)]
        customers = [customer for page in pages for customer in page]
        total = await ctx.run(convert, customers)
        loaded = 0
        for batch in range(BATCHES):
            rows = customers[batch * IN_A_BATCH : (batch + 1) * IN_A_BATCH]
            loaded += await ctx.run(load, batch, rows)
        return Migrated(len(customers), total, loaded)

    return app


def url(folder: Path) -> str:
    """Give the address of the store."""
    return f"sqlite:///{folder / 'jobs.db'}"


def checksum(customers: list[int]) -> int:
    """Give what the conversion comes to."""
    return sum(customer * customer for customer in customers)


def expected() -> Migrated:
    """Give the result of a migration that nothing disturbed."""
    return Migrated(CUSTOMERS, checksum(list(range(CUSTOMERS))), CUSTOMERS)


async def _send(port: int, batch: Batch) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(msgspec.json.encode(batch) + b"\n")
        return int(await reader.readline())
    finally:
        writer.close()


def _end_with_the_demonstration() -> None:
    """End when the other end of the standard input is gone, however it went."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_demonstration, daemon=True).start()
    build(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])).work()
