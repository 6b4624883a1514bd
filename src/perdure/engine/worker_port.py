"""What the lower layers of the engine need of the worker that they run in.

A worker knows its runs, a run its steps, and all of them need the worker's store, clock and
settings. So that the imports go one way only, runs and steps see the worker through this port;
`engine.worker.node.WorkerNode` is what stands behind it.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sized
from typing import Protocol

from perdure.base.codec import PayloadLimits
from perdure.engine.policy import Gatekeeper, Policy
from perdure.engine.settings import WorkerSettings
from perdure.jobs.registry import JobRegistry
from perdure.process.process import ProcessRuntime
from perdure.store.store import Store


class StepHost:
    """The OS processes for the steps of one worker: when they are wanted, and how many are free."""

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
        """Let the record of the start go along with the next write, if it still says something."""
        ...


class WorkerPort(Protocol):
    """The worker, as its runs and steps see it."""

    store: Store
    registry: JobRegistry
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
    looking: bool  # somebody looks for work: what is asked of a job may be known in a moment
    started: deque[StartedStep]  # whose start is recorded by a flush, if they do not end before
    flush_timer: asyncio.TimerHandle | None  # of `flush_soon`
    wanted: asyncio.Event  # somebody should look for work
    notices_due: asyncio.Event  # there may be something to send to people

    @property
    def runs(self) -> Sized: ...

    @property
    def queues(self) -> Iterable[str]: ...

    def poke(self) -> None:
        """Look for work soon."""
        ...

    def flush_soon(self) -> None:
        """Write soon what waits to go along with another write."""
        ...
