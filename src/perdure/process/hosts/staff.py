"""The workers of a host: who gets the next process, who is replaced, and how all of them end."""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from perdure.base import telemetry
from perdure.base.errors import HostDown, SpawnError
from perdure.process.channel import Channel
from perdure.process.hosts.worker import OnDown, OnReady, Worker
from perdure.process.runtime import Runtime

WORKER_UP = ("perdure", "host", "worker", "up")
WORKER_DOWN = ("perdure", "host", "worker", "down")

# Seconds until a worker is tried again that could not even be started.
_AGAIN = 0.1

Hire = Callable[[str, OnReady, OnDown], Worker]

# Labels are never used twice: they are part of the pids that a worker gives.
_labels = count(1)


class Limits(NamedTuple):
    """The bounds of a host."""

    workers: int
    max_processes: int | None
    dedicated: bool
    max_restarts: int
    max_seconds: float


class Staff:
    """The workers of one host that runs."""

    def __init__(self, runtime: Runtime, host: str, limits: Limits, hire: Hire) -> None:
        self.workers: list[Worker] = []
        self.failure: Channel[HostDown] = Channel(1)  # when it gives up
        self._runtime = runtime
        self._host = host
        self._limits = limits
        self._hire = hire
        self._restarts: deque[float] = deque()
        self._stopping = False
        self._given_up: HostDown | None = None
        self._waiting: list[asyncio.Future[None]] = []  # for a change

    def begin(self) -> None:
        """Start all workers.

        Raises:
            HostDown: The system does not allow it.
        """
        for _ in range(self._limits.workers):
            self._begin_one()

    def _begin_one(self) -> Worker:
        label = f"{self._host}.{next(_labels)}"
        worker = self._hire(label, self._on_ready, self._on_down)
        try:
            worker.begin()
        except (OSError, RuntimeError) as error:  # no more processes, descriptors or threads
            raise HostDown(self._host, label, f"it could not be started: {error}") from error
        self.workers.append(worker)
        return worker

    def pick(self) -> Worker:
        """Give the worker that has least to do; of equals the one that waits longest.

        Raises:
            SpawnError: The host takes no more processes.
        """
        most = self._limits.max_processes
        if self._stopping:
            raise SpawnError(f"host {self._host!r} is stopping")
        if most is not None and sum(worker.load for worker in self.workers) >= most:
            raise SpawnError(f"host {self._host!r} has {most} processes, and takes no more")
        worker = self._least_loaded()
        if worker is None:
            raise SpawnError(
                f"all {self._limits.workers} workers of host {self._host!r} have a process, "
                "and each is dedicated to one"
            )
        self.workers.remove(worker)
        self.workers.append(worker)
        return worker

    def _least_loaded(self) -> Worker | None:
        """Give the worker that has least to do; None if no more may be given to any."""
        able = [each for each in self.workers if not each.doomed]
        free = [each for each in able if not each.load] if self._limits.dedicated else able
        if free:
            return min(free, key=lambda each: each.load)
        if len(able) == self._limits.workers:
            return None
        try:
            return self._begin_one()  # the one that follows those which are being killed
        except HostDown as error:
            raise SpawnError(str(error)) from error

    # Workers come and go

    def _on_ready(self, worker: Worker) -> None:
        telemetry.execute(WORKER_UP, {}, {"host": self._host, "worker": worker.label})
        self._tell()

    def _on_down(self, worker: Worker, cause: str | None) -> None:
        if worker in self.workers:
            self.workers.remove(worker)
        telemetry.execute(
            WORKER_DOWN, {}, {"host": self._host, "worker": worker.label, "cause": cause}
        )
        self._replace(worker.label, cause or "it ended by itself", counts=not worker.sacrificed)
        self._tell()

    def _replace(self, label: str, cause: str, *, counts: bool = True) -> None:
        if self._stopping:
            return
        if counts:
            now = self._runtime.loop.time()
            self._restarts.append(now)
            while self._restarts[0] < now - self._limits.max_seconds:
                self._restarts.popleft()
        if len(self._restarts) > self._limits.max_restarts:
            self._give_up(label, cause)
        elif len(self.workers) < self._limits.workers:  # it may have been replaced already
            try:
                self._begin_one()
            except HostDown as error:
                self._runtime.loop.call_later(_AGAIN, self._replace, error.worker, error.cause)

    def _give_up(self, label: str, cause: str) -> None:
        why = f"{cause}; more than {self._limits.max_restarts} workers died too soon"
        self._stopping = True
        self._given_up = HostDown(self._host, label, why)
        self.failure.accepts(self._given_up)
        self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def _change(self) -> None:
        change = self._runtime.loop.create_future()
        self._waiting.append(change)
        await change

    async def all_ready(self) -> None:
        """Wait until each worker runs.

        Raises:
            HostDown: They cannot be started, or were stopped meanwhile.
        """
        while sum(worker.ready for worker in self.workers) < self._limits.workers:
            if self._stopping:
                raise self._given_up or HostDown(self._host, "all", "it was stopped")
            await self._change()

    # The end

    async def stop(self, timeout: float) -> None:
        """End all workers, with their processes, and wait until they are gone."""
        self._stopping = True
        self._tell()
        for worker in tuple(self.workers):
            worker.stop(timeout)
        while self.workers:
            await self._change()

    def destroy(self, cause: str) -> None:
        """End all workers by force."""
        self._stopping = True
        self._tell()
        for worker in tuple(self.workers):
            worker.destroy(cause)
