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
        self._changed: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Start all workers."""
        for _ in range(self._limits.workers):
            self._begin_one()

    def _begin_one(self) -> Worker:
        label = f"{self._host}.{next(_labels)}"
        worker = self._hire(label, self._on_ready, self._on_down)
        self.workers.append(worker)
        worker.begin()
        return worker

    def pick(self) -> Worker:
        """Give the worker that has least to do; of equals the one that waits longest.

        Raises:
            SpawnError: The host takes no more processes.
        """
        most = self._limits.max_processes
        if self._stopping or not self.workers:
            raise SpawnError(f"host {self._host!r} is stopping")
        if most is not None and sum(worker.load for worker in self.workers) >= most:
            raise SpawnError(f"host {self._host!r} has {most} processes, and takes no more")
        # If all are being killed, the one that follows them is needed now.
        able = [each for each in self.workers if not each.doomed] or [self._begin_one()]
        worker = min(able, key=lambda each: each.load)
        if self._limits.dedicated and worker.load:
            raise SpawnError(
                f"all {len(self.workers)} workers of host {self._host!r} have a process, "
                "and each is dedicated to one"
            )
        self.workers.remove(worker)
        self.workers.append(worker)
        return worker

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
        if not self._stopping:
            self._replace(worker, cause or "it ended by itself")
        self._tell()

    def _replace(self, worker: Worker, cause: str) -> None:
        if not worker.sacrificed:
            now = self._runtime.loop.time()
            self._restarts.append(now)
            while self._restarts[0] < now - self._limits.max_seconds:
                self._restarts.popleft()
        if len(self._restarts) > self._limits.max_restarts:
            why = f"{cause}; more than {self._limits.max_restarts} workers died too soon"
            self._stopping = True
            self.failure.accepts(HostDown(self._host, worker.label, why))
        elif len(self.workers) < self._limits.workers:  # it may have been replaced already
            self._begin_one()

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _change(self) -> None:
        self._changed = self._runtime.loop.create_future()
        await self._changed

    async def all_ready(self) -> None:
        """Wait until each worker runs.

        Raises:
            HostDown: They cannot be started.
        """
        while not all(worker.ready for worker in self.workers):
            if len(self.failure):
                raise await self.failure.receive()
            await self._change()

    # The end

    async def stop(self, timeout: float) -> None:
        """End all workers, with their processes, and wait until they are gone."""
        self._stopping = True
        for worker in tuple(self.workers):
            worker.stop(timeout)
        while self.workers:
            await self._change()

    def destroy(self, cause: str) -> None:
        """End all workers by force."""
        self._stopping = True
        for worker in tuple(self.workers):
            worker.destroy(cause)
