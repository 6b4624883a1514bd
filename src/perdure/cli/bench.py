"""`perdure bench`: how fast this machine and this store are, measured in a few seconds.

It submits jobs of its own to a store of its own: a new file beside the given one, or a new schema
in the given database, deleted in the end. It measures what one job waits for (the time of one
durable step) and what a worker does when many jobs run at once (steps each second).
"""

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import typer

from perdure.app import App
from perdure.base.clock import SystemClock
from perdure.cli.output import (
    Format,
    FormatOption,
    WorkDone,
    counted,
    give_one,
    perform,
    progress,
    show,
)
from perdure.cli.target import UrlOption, spelled
from perdure.engine.settings import WorkerSettings
from perdure.store.open import drop_schema

ALONE: Final = 300  # steps of the job that runs alone
TOGETHER: Final = 50  # jobs that run at once
EACH: Final = 20  # steps of each of them


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    *,
    jobs: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many jobs run at once.")
    ] = TOGETHER,
    url: UrlOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Measure this machine and this store: durable steps, one after the other and at once.

    Without a store, a SQLite file in the folder for temporary files is measured.
    """
    with progress("measuring steps") as work, _place(url) as place:
        found = perform(_measured, place, jobs, work)
    found = {"store": spelled(url) if url else "a temporary SQLite file", **found}
    if not give_one(found, output, "store"):
        show(
            f"store      {found['store']}",
            f"one job    a step takes {found['step_ms_p50']} ms (99 %: {found['step_ms_p99']} ms)",
            f"{counted(jobs, 'job'):<10} {found['steps_per_second']:,} steps and "
            f"{found['jobs_per_second']:,} jobs a second, at once",
        )


@contextlib.contextmanager
def _place(url: str | None) -> Generator[str]:
    """Yield the URL of a store of our own at the same place, which is deleted afterwards."""
    if url and not url.startswith("sqlite:"):
        schema = f"perdure_bench_{secrets.token_hex(4)}"
        parts = urlsplit(url)
        query = urlencode({**dict(parse_qsl(parts.query)), "schema": schema})
        place = urlunsplit(parts._replace(query=query))
        try:
            yield place
        finally:
            drop_schema(place)
        return
    beside = Path(urlsplit(url).path.removeprefix("/")).parent if url else None
    with tempfile.TemporaryDirectory(prefix="perdure-bench-", dir=beside) as folder:
        yield f"sqlite:///{Path(folder).resolve() / 'jobs.db'}"


async def _measured(url: str, jobs: int, work: WorkDone) -> dict[str, Any]:
    work.set(0, ALONE + jobs * EACH)
    app, clock = App(url, worker=WorkerSettings(concurrency=jobs)), SystemClock()
    times: list[float] = []

    @app.step
    async def step(number: int) -> int:
        times.append(clock.monotonic())
        work.done += 1
        return number

    @app.job
    async def measured(steps: int) -> int:
        return sum([await step(number) for number in range(steps)])

    async with app.running():
        await (await app.submit(measured(ALONE))).result()
        between = [(after - before) * 1000 for before, after in pairwise(times)]
        cuts = quantiles(between, n=100)
        began = clock.monotonic()
        handles = await app.submit_many([measured(EACH) for _ in range(jobs)])
        await asyncio.gather(*(handle.result() for handle in handles))
        took = clock.monotonic() - began
    return {
        "step_ms_p50": round(cuts[49], 2),
        "step_ms_p99": round(cuts[98], 2),
        "steps_per_second": round(jobs * EACH / took),
        "jobs_per_second": round(jobs / took, 1),
        "jobs_at_once": jobs,
    }
