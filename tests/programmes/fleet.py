"""Three workers on one store: each job has one owner at a time, and a zombie changes nothing.

`python -m tests.programmes.fleet --jobs 1000 --url sqlite:///…?kill_stopped_writer=1`

One worker is stopped for good. If it happens to hold the write lock of SQLite, the others could
never go on unless the URL lets them kill it.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from perdure.app import App
from perdure.base.retry import pause
from perdure.engine.handle import Handle
from perdure.jobs.model import JobQuery
from perdure.jobs.state import JobState
from tests.programmes.migration import build, expected
from tests.programmes.worker_process import Log, WorkerProcess

_STEPS = 3
_LOOK = 0.02


@dataclass
class Tally:
    """What was done and found."""

    jobs: int = 0
    lines_by_worker: Counter[int] = field(default_factory=Counter[int])
    taken_over: int = 0  # claims beyond those that the job's own waits explain
    frozen_with: int = 0  # jobs that the stopped worker held
    wrong: list[str] = field(default_factory=list[str])  # never allowed


async def share(url: str, jobs: int, folder: Path, *, freeze: bool) -> Tally:
    """Let three workers do so many jobs; if asked, stop one of them past its leases meanwhile."""
    log = Log(folder / "log")
    app = build(url, log.path)
    tally = Tally(jobs=jobs)
    store = await app.store()
    workers = [WorkerProcess(url, log.path) for _ in range(3)]
    try:
        await _all_up(app, workers)
        handles = await app.submit_many([app.find_job("migrate")(_STEPS) for _ in range(jobs)])
        if freeze:
            await _freeze(app, workers[0], log, tally)
        for handle in handles:
            if await handle.result() != expected(_STEPS):
                tally.wrong.append(f"job {handle.id}: wrong result")
        # Before the stopped one goes on: no store can keep it from running what it was about to.
        await _check_owners(handles, log, tally)
        if freeze:
            before = await _picture(handles)
            workers[0].signal(signal.SIGCONT)
            await _awake_again(app, workers[0])
            if await _picture(handles) != before:
                tally.wrong.append("the stopped worker changed something when it went on")
        if (await store.counts()).get(JobState.COMPLETED) != jobs:
            tally.wrong.append(f"not all jobs are completed: {await store.counts()}")
    finally:
        for worker in workers:
            worker.kill()
        await app.close()
    tally.lines_by_worker = Counter(log.pids())
    return tally


async def _all_up(app: App, workers: list[WorkerProcess]) -> None:
    """Wait for the slowest: it would find nothing left to do."""
    store = await app.store()
    while len(await store.workers()) < len(workers):
        await pause(_LOOK)


async def _freeze(app: App, worker: WorkerProcess, log: Log, tally: Tally) -> None:
    """Stop a worker while it has jobs in its hands."""
    while not tally.frozen_with:
        seen = len(log.lines())
        while worker.pid not in {int(words[-1]) for words in log.lines()[seen:]}:
            await pause(_LOOK)
        worker.signal(signal.SIGSTOP)
        owner = await _owner(app, worker)
        running = await app.find_jobs(JobQuery(states=(JobState.RUNNING,), limit=1000))
        tally.frozen_with = sum(job.owner == owner for job in running)
        if not tally.frozen_with:
            worker.signal(signal.SIGCONT)


async def _owner(app: App, worker: WorkerProcess) -> str | None:
    """Find by which name a worker owns its jobs."""
    mark = f'"pid":{worker.pid},'.encode()
    workers = await (await app.store()).workers()
    return next((each.owner for each in workers if mark in each.info), None)


async def _awake_again(app: App, worker: WorkerProcess) -> None:
    """Wait until the worker beats again: by then it has tried to go on with all that it had."""
    store, mark = await app.store(), f'"pid":{worker.pid},'.encode()
    seen = 0
    while seen < 3 and worker.alive:
        await pause(0.2)
        ages = [each.silent_for for each in await store.workers() if mark in each.info]
        seen += any(age < 0.5 for age in ages)


async def _picture(handles: list[Handle[Any]]) -> list[Any]:
    return [(await handle.job(), await handle.journal()) for handle in handles]


async def _check_owners(handles: list[Handle[Any]], log: Log, tally: Tally) -> None:
    """See that the work on a job never went back and forth: a new worker only after a new claim."""
    pids: dict[str, list[str]] = {}
    for _, job, _, pid in log.lines():
        pids.setdefault(job, []).append(pid)
    for handle in handles:
        claims = sum(event.type == "claimed" for event in await handle.events())
        changes = sum(one != other for one, other in pairwise(pids[handle.id]))
        tally.taken_over += max(0, claims - 2)
        if changes > claims - 1:
            tally.wrong.append(f"job {handle.id}: {changes} changes of worker, {claims} claims")


def main() -> None:
    """Run the long programme and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--url", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{folder}/jobs.db?kill_stopped_writer=1"
        tally = asyncio.run(share(url, options.jobs, Path(folder), freeze=True))
    sys.stdout.write(f"{tally}\n")
    if tally.wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
