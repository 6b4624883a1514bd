"""A fleet on PostgreSQL: what 50 idle workers cost, and what a job costs while there is work.

``idle_transactions_per_worker_s``  transactions a second that each of 50 idle workers makes, by the
                                    server's own count (``pg_stat_database``)
``jobs_per_s``                      jobs of one step, run by two worker processes from a full queue
``wal_kb_job``                      kilobytes of write-ahead log for each of them
``disk_kb_job``                     kilobytes on disk for each of them
``growth``                          the rate of the last tenth of the jobs, by that of the first

The idle fleet is 5 processes with 10 workers each: the workers of a process share its connections,
and each of them does everything that a worker does. The jobs are run by two other processes with
one worker each, while the idle ones are gone: on a small machine 50 processes would measure the
scheduler of the operating system.

``python -m bench.fleet URL WORKERS`` is one of the processes; it ends when its stdin does.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from bench.durable import postgres
from bench.durable.place import POSTGRES, environment, fresh, scratch
from bench.outcome import Goal, Options, Outcome, figure_table, machine
from bench.runner import ROOT, show
from perdure import App

PROCESSES = 5
WORKERS_EACH = 10
WORKING = 2  # processes that run jobs
BATCH = 1000  # jobs of one submission
GOALS = {"idle_transactions_per_worker_s": Goal(1.0, at_most=True), "growth": Goal(0.8)}
_SETTLE = 12.0  # a server counts the transactions of a connection within ten seconds
_UP_WITHIN = 60.0
_PART = 10  # the first and the last tenth are compared


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    idle_seconds: float
    jobs: int
    limit: float  # seconds for all jobs


FULL = Size(idle_seconds=60.0, jobs=200_000, limit=3600.0)
QUICK = Size(idle_seconds=20.0, jobs=6_000, limit=60.0)


def run(options: Options) -> Outcome:
    """Measure the idle fleet, then the jobs."""
    return measure(QUICK if options.quick else FULL)


def measure(size: Size, processes: int = PROCESSES, settle: float = _SETTLE) -> Outcome:
    """Measure a fleet of so many processes."""
    if not postgres.is_installed():
        return Outcome(f"Skipped: it needs PostgreSQL, from the package {postgres.PACKAGE}", {})
    figures: dict[str, float] = {}
    with scratch() as folder, postgres.running(folder) as server:
        with fresh(POSTGRES, folder, server) as place:
            figures |= asyncio.run(_idle(place.url, processes, size.idle_seconds, settle))
        with fresh(POSTGRES, folder, server) as place:
            figures |= asyncio.run(_busy(place.url, size))
    show("")
    heading = f"{processes * WORKERS_EACH} idle workers, {size.jobs:,} jobs; {machine()}"
    return Outcome(f"{heading}\n\n{figure_table(figures, GOALS)}", figures, only_figures=True)


async def _idle(url: str, processes: int, seconds: float, settle: float) -> Mapping[str, float]:
    """Count the transactions of a fleet that has nothing to do."""
    with ExitStack() as stack:
        show(f"starting {processes * WORKERS_EACH} workers")
        for _ in range(processes):
            stack.enter_context(_process(url, WORKERS_EACH))
        async with app_on(url) as app:
            await _until_up(app, processes * WORKERS_EACH)
        show("counting the transactions of an idle fleet")
        await asyncio.sleep(settle)
        before, since = _transactions(url), time.monotonic()
        await asyncio.sleep(seconds)
        made, took = _transactions(url) - before, time.monotonic() - since
    return {"idle_transactions_per_worker_s": made / took / (processes * WORKERS_EACH)}


async def _busy(url: str, size: Size) -> Mapping[str, float]:
    """Run jobs from a full queue, and read what they cost."""
    app = app_on(url)
    async with app:
        await app.store()
        wal, disk = _wal(url), _disk(url)
        for start in range(0, size.jobs, BATCH):
            show(f"submitted {start:,} jobs")
            numbers = range(start, min(start + BATCH, size.jobs))
            one_step = app.find_job("one_step")
            await app.submit_many([one_step(number) for number in numbers])
        show(f"running {size.jobs:,} jobs")
        since = _clock(url)
        with ExitStack() as stack:
            for _ in range(WORKING):
                stack.enter_context(_process(url, 1))
            await _until_done(app, size)
            ends = _ends(url)
    first = ends[: len(ends) // _PART]
    last = ends[-len(ends) // _PART :]
    return {
        "jobs_per_s": len(ends) / (ends[-1] - since),
        "wal_kb_job": (_wal(url) - wal) / 1024 / len(ends),
        "disk_kb_job": (_disk(url) - disk) / 1024 / len(ends),
        "growth": _rate(last) / _rate(first),
    }


async def _until_up(app: App, workers: int) -> None:
    store = await app.store()
    async with asyncio.timeout(_UP_WITHIN):
        while len(await store.workers()) < workers:
            await asyncio.sleep(0.2)


async def _until_done(app: App, size: Size) -> None:
    store = await app.store()
    async with asyncio.timeout(size.limit):
        while (await store.counts()).get("COMPLETED", 0) < size.jobs:
            await asyncio.sleep(1.0)


def _rate(ends: list[float]) -> float:
    return (len(ends) - 1) / max(ends[-1] - ends[0], 1e-9)


# What the server says


def _ask(url: str, question: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(question.encode()).fetchall()


def _transactions(url: str) -> float:
    """Return how many transactions the database has seen; counted twice, to see the latest."""
    question = (
        "select xact_commit + xact_rollback from pg_stat_database "
        "where datname = current_database()"
    )
    return max(float(_ask(url, question)[0][0]) for _ in range(2))


def _wal(url: str) -> float:
    return float(_ask(url, "select pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])


def _disk(url: str) -> float:
    question = (
        "select coalesce(sum(pg_total_relation_size(oid)), 0) from pg_class "
        "where relkind = 'r' and relnamespace = 'perdure'::regnamespace"
    )
    return float(_ask(url, question)[0][0])


def _clock(url: str) -> float:
    return float(_ask(url, "select extract(epoch from clock_timestamp())")[0][0])


def _ends(url: str) -> list[float]:
    question = "select ended_at from perdure.job where ended_at is not null order by ended_at"
    return [float(each[0]) for each in _ask(url, question)]


# A process of the fleet


def app_on(url: str) -> App:
    """Return the app that all processes of the fleet share."""
    app = App(url)

    @app.step
    async def add_one(number: int) -> int:
        return number + 1

    @app.job
    async def one_step(number: int) -> int:
        return await add_one(number)

    return app


@contextmanager
def _process(url: str, workers: int) -> Generator[None]:
    """Run a process of the fleet during a block."""
    command = [sys.executable, "-m", "bench.fleet", url, str(workers)]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE) as process:
        assert process.stdin
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(60)


async def work(url: str, workers: int) -> None:
    """Run so many workers on one store until stdin is closed."""
    app = app_on(url)
    try:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(workers):
                await stack.enter_async_context(app.running())
            await asyncio.to_thread(os.read, 0, 1)
    finally:
        await app.close()


if __name__ == "__main__":
    import perdure

    perdure.run(work, sys.argv[1], int(sys.argv[2]))
