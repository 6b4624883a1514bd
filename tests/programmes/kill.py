"""Kill -9 the worker again and again, at whatever it is doing; the job must not notice.

`python -m tests.programmes.kill --kills 200 --url sqlite:///…`
"""

import argparse
import asyncio
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.app import App
from perdure.base.retry import pause
from perdure.jobs.state import StepState
from tests.programmes.migration import build, expected
from tests.programmes.worker_process import Log, WorkerProcess

_STEPS = 400
_LOOK = 0.002


@dataclass
class Tally:
    """What was done and found."""

    kills: int = 0
    jobs: int = 0
    repeated_steps: int = 0  # allowed: those in flight at a kill
    repeated_items: int = 0
    finished_again: list[str] = field(default_factory=list[str])  # never allowed
    wrong: list[str] = field(default_factory=list[str])  # never allowed


async def campaign(url: str, kills: int, seed: int, folder: Path) -> Tally:
    """Submit jobs and kill their worker until there were so many kills."""
    chance = random.Random(seed)
    log = Log(folder / "log")
    app = build(url, log.path)
    tally = Tally()
    try:
        while tally.kills < kills:
            await _one_job(app, url, log, chance, tally, kills)
    finally:
        await app.close()
    return tally


async def _one_job(
    app: App, url: str, log: Log, chance: random.Random, tally: Tally, kills: int
) -> None:
    handle = await app.submit(app.find_job("migrate")(_STEPS))
    ended = asyncio.create_task(handle.wait())
    tally.jobs += 1
    settled: set[str] = set()  # steps that were recorded as done when a worker died
    counted: dict[tuple[str, str], int] = {}
    while not ended.done():
        worker = WorkerProcess(url, log.path)
        try:
            if not await _work_for_a_while(worker, log, chance, ended):
                tally.wrong.append("a worker died by itself; see the .err file")
                return
            if tally.kills >= kills:
                await ended
        finally:
            worker.kill()
            tally.kills += 1
        runs = log.runs("step")
        tally.finished_again += [
            f"{handle.id} {step}"
            for step in settled
            if runs[handle.id, step] > counted.get((handle.id, step), 0)
        ]
        settled = {e.id for e in await handle.journal() if e.state is StepState.SUCCEEDED}
        counted = dict(runs)
    result = await handle.result()
    if result != expected(_STEPS):
        tally.wrong.append(f"job {handle.id} gave {result}, not {expected(_STEPS)}")
    tally.repeated_steps += _repeated(log, "step", handle.id)
    tally.repeated_items += _repeated(log, "item", handle.id)


async def _work_for_a_while(
    worker: WorkerProcess, log: Log, chance: random.Random, ended: "asyncio.Task[Any]"
) -> bool:
    """Wait until the worker has done a random number of things; False: it died by itself."""
    target = len(log.lines()) + chance.randrange(1, 120)
    while len(log.lines()) < target and not ended.done() and worker.alive:
        await pause(_LOOK * chance.random())
    return worker.alive


def _repeated(log: Log, kind: str, job_id: str) -> int:
    return sum(n - 1 for (job, _), n in log.runs(kind).items() if job == job_id)


def main() -> None:
    """Run the long programme and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{folder}/jobs.db"
        tally = asyncio.run(campaign(url, options.kills, options.seed, Path(folder)))
    sys.stdout.write(f"{tally}\n")
    if tally.wrong or tally.finished_again:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
