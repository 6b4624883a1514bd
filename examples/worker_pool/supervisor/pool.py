"""The supervisor: starts workers, and restarts each that dies."""

import asyncio
from dataclasses import dataclass

from perdure import process
from perdure.errors import SpawnError
from perdure.process import Pid, after, select, sleep


@dataclass(frozen=True)
class Worker:
    """What the supervisor knows of a living worker."""

    id: int
    started_at: float


async def main(worker_count: int = 4) -> None:
    # The death of a worker is an event for us, not our own death.
    process.set_options(trap_links=True)

    events = process.events()
    workers: dict[Pid, Worker] = {}

    def start_worker(worker_id: int) -> None:
        try:
            pid = process.spawn_linked("app.workers:task_worker", worker_id, host="app:processes")
        except SpawnError as error:
            print(f"Failed to start worker {worker_id}: {error}")
            return
        workers[pid] = Worker(worker_id, now())
        print(f"Worker {worker_id} started: {pid}")

    # The first pool
    for worker_id in range(1, worker_count + 1):
        start_worker(worker_id)

    print(f"Supervisor started with {worker_count} workers")

    # The supervision loop
    while True:
        timeout = after("60s")
        channel, event, _ = await select(events, timeout)

        if channel is timeout:
            # A periodic health check
            print(f"Health check: {len(workers)} active workers")

        elif isinstance(event, process.LinkDown) and event.sender in workers:
            dead_worker = workers.pop(event.sender)
            uptime = now() - dead_worker.started_at
            print(f"Worker {dead_worker.id} died after {uptime:.0f}s, restarting")

            # A short delay before the restart
            await sleep("100ms")
            start_worker(dead_worker.id)

        elif isinstance(event, process.Cancel):
            stop(workers)
            return


def stop(workers: dict[Pid, Worker]) -> None:
    """Cancel all workers; the host waits for them."""
    for pid in filter(process.alive, workers):
        process.cancel(pid, "1s")


def now() -> float:
    return asyncio.get_running_loop().time()
