"""Tools for testing programs made of processes, and jobs.

    @simulated
    async def test_a_worker_answers() -> None:
        ...

    async def test_a_job_that_takes_a_night() -> None:
        async with environment(app) as env:
            ...

A simulated test runs as the root process on a virtual clock: hours pass in no time, and the test
fails if timers or tasks are left at its end. An environment runs the jobs of an app in skipped
time. What is for jobs is loaded on first use, since it needs the modules of the databases.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.testing.clock import Deadlock, VirtualClock, VirtualLoop
from perdure.testing.simulation import Leak, simulate, simulated

if TYPE_CHECKING:
    from perdure.engine.recorded import RecordedJob
    from perdure.engine.replay import ReplayReport, replay
    from perdure.testing.crash import CrashFound, CrashReport, crash_everywhere
    from perdure.testing.jobs import Environment, environment

__all__ = [
    "CrashFound",
    "CrashReport",
    "Deadlock",
    "Environment",
    "Leak",
    "RecordedJob",
    "ReplayReport",
    "VirtualClock",
    "VirtualLoop",
    "crash_everywhere",
    "environment",
    "replay",
    "simulate",
    "simulated",
]

_FOR_JOBS = {
    "CrashFound": "perdure.testing.crash",
    "CrashReport": "perdure.testing.crash",
    "Environment": "perdure.testing.jobs",
    "RecordedJob": "perdure.engine.recorded",
    "ReplayReport": "perdure.engine.replay",
    "crash_everywhere": "perdure.testing.crash",
    "environment": "perdure.testing.jobs",
    "replay": "perdure.engine.replay",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use."""
    if name not in _FOR_JOBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_FOR_JOBS[name]), name)
