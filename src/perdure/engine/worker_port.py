"""What the lower layers of the engine need of the worker that they run in.

A worker knows its runs, a run its steps, and all of them need the worker's store, clock and
settings. So that imports go one way only, runs and steps see the worker through this port;
`engine.worker.node.WorkerNode` implements it.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sized
from typing import Protocol

from perdure.base.codec import PayloadLimits
from perdure.engine.policy import Gatekeeper, Policy
from perdure.engine.progress_reports import ProgressReports
from perdure.engine.settings import WorkerSettings
from perdure.jobs.registry import DefinitionTable
from perdure.process.process import ProcessRuntime
from perdure.store.store import Store


class StepHost:
    """The OS processes for the steps of one worker: when they are needed, and how many are free."""

    def __init__(self, owner: str, places: int) -> None:
        self.name = f"perdure.steps.{owner}"
        self.wanted = asyncio.Event()
        self.ready = asyncio.Event()
        self.places = asyncio.Semaphore(places)
        self.workers = places


class StartedStep(Protocol):
    """A step whose start is recorded only if the step does not end soon."""

    @property
    def begun_at(self) -> float: ...

    def record_start(self) -> None:
        """Buffer the record of the start for the next write, if it is still of use."""
        ...


class WorkerPort(Protocol):
    """The worker, as its runs and steps see it."""

    store: Store
    registry: DefinitionTable
    settings: WorkerSettings
    limits: PayloadLimits
    policy: Policy
    gatekeeper: Gatekeeper
    fingerprint_key: bytes
    owner: str
    runtime: ProcessRuntime
    loop: asyncio.AbstractEventLoop
    step_host: StepHost
    known_steps: dict[int, tuple[str, bool]]  # by id: the full name, and whether a gate watches it
    large_payloads: set[tuple[str, str, str]]  # job, step and kind of those that were logged
    looking: bool  # the producer is looking for work: a request to a job may be known soon
    started: deque[StartedStep]  # whose start is recorded by a flush, unless they end first
    flush_timer: asyncio.TimerHandle | None  # of `flush_soon`
    wanted: asyncio.Event  # the producer should look for work
    notices_due: asyncio.Event  # there may be something to send to people
    reports: ProgressReports  # of running steps, for people

    @property
    def runs(self) -> Sized: ...

    @property
    def queues(self) -> Iterable[str]: ...

    def lease_time(self) -> float:
        """Return seconds by which leases are trusted: the loop's, and those of suspensions."""
        ...

    def suspended(self) -> float:
        """Return for how long the machine was suspended."""
        ...

    def poke(self) -> None:
        """Look for work soon."""
        ...

    def flush_soon(self) -> None:
        """Write what is buffered soon, if no other write takes it along."""
        ...
