"""What is measured of every contender. Each workload runs in an empty store of its own."""

import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

from bench.durable.contenders import Client, module
from bench.durable.marks import Mark, reading
from bench.durable.place import Place
from bench.durable.plan import Figures, Size
from bench.durable.worker import Worker, working
from bench.runner import TrialFailed

NANOSECONDS = 1e9
MICROSECONDS = 1e6
MILLISECONDS = 1e3

# Submits come at any moment of the interval of a contender that polls.
_PAUSE = 0.05
# By then the worker has written what it does after its last mark.
_SETTLED = 0.3
_WINDOW = 1_000
_CHUNK = 50


def speed(contender: str, place: Place, size: Size) -> Figures:
    """Many jobs at once, then one long job, then single submits to the idle worker."""
    module(contender).prepare(place)
    with reading(place.marks) as marks, module(contender).client(place) as client:
        client.submit_many(range(size.jobs), size.steps_of_a_job)
        with working(contender, place, marks) as worker:
            worker.wait_until_ready()
            together = all_steps(
                worker, range(size.jobs), size.jobs * size.steps_of_a_job, size.limit
            )
            time.sleep(_SETTLED)
            before = worker.usage()
            client.submit(size.jobs, size.steps)
            alone = all_steps(worker, _only(size.jobs), size.steps, size.limit)
            time.sleep(_SETTLED)
            after = worker.usage()
            waits = [_submit(client, worker, size, size.jobs + 1 + i) for i in range(size.submits)]
    found = {"concurrent": rate(together), "sequential": rate(alone)}
    found["cpu_us_step"] = (after.cpu - before.cpu) / len(alone) * MICROSECONDS
    found["rss_mb"] = after.peak_mb
    return found | ({"submit_ms": statistics.median(waits)} if waits else {})


def all_steps(worker: Worker, jobs: range, steps: int, limit: float) -> list[Mark]:
    """Wait for all steps: those left over would disturb the next measurement."""
    marks = worker.run(jobs, steps, limit)
    if len(marks) < steps:
        raise TrialFailed(f"ran {len(marks)} of {steps} steps in {limit:g} s")
    return marks


def _only(job: int) -> range:
    return range(job, job + 1)


def rate(marks: Sequence[Mark]) -> float:
    """Return the steps in a second."""
    times = [one.at for one in marks]
    return (len(marks) - 1) / (max(times) - min(times)) * NANOSECONDS


def _submit(client: Client, worker: Worker, size: Size, job: int) -> float:
    time.sleep(_PAUSE * (1 + random.random()))
    since = time.monotonic_ns()
    client.submit(job, 1)
    marks = worker.run(_only(job), 1, size.limit)
    if not marks:
        raise TrialFailed("did not start a submitted job in time")
    return (marks[0].at - since) / NANOSECONDS * MILLISECONDS


def restart(contender: str, place: Place, size: Size) -> Figures:
    """Kill the worker in the middle of a job: when does a new one take the next step?"""
    module(contender).prepare(place)
    with reading(place.marks) as marks, module(contender).client(place) as client:
        with working(contender, place, marks) as worker:
            worker.wait_until_ready()
            client.submit(0, size.steps)
            all_steps(worker, _only(0), size.steps // 2, size.limit)
        marks.read()
        before = len(marks.steps)
        with working(contender, place, marks) as worker:
            marks.wait(lambda: len(marks.steps) > before, size.limit, lambda: None)
            if len(marks.steps) == before:
                raise TrialFailed(f"did not go on within {size.limit:g} s")
            worker.run(_only(0), size.steps, size.limit)
            time.sleep(_SETTLED)
            marks.read()
    gap = (marks.steps[before].at - worker.started_at) / NANOSECONDS
    done = {one.step for one in marks.steps}
    if len(done) < size.steps:
        raise TrialFailed(f"lost {size.steps - len(done)} steps of {size.steps}")
    return {"restart_s": gap, "ran_twice": float(len(marks.steps) - len(done))}


def growth(contender: str, place: Place, size: Size) -> Figures:
    """A very long job: what do its last steps cost beside its first ones?"""
    module(contender).prepare(place)
    with (
        reading(place.marks) as marks,
        module(contender).client(place) as client,
        working(contender, place, marks) as worker,
    ):
        worker.wait_until_ready()
        client.submit(0, size.steps)
        found = all_steps(worker, _only(0), size.steps, size.limit)
    window = min(_WINDOW, size.steps // 2)
    return {"growth": _typical(found[-window:]) / _typical(found[:window])}


def _typical(marks: Sequence[Mark]) -> float:
    """Return the time of a usual stretch: one slow write to a shared disk is no growth."""
    stretches = [last.at - first.at for first, last in pairwise(marks[::_CHUNK])]
    return statistics.median(stretches)
