"""The supervisor: keeps its workers alive."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from examples.pool.worker import task_worker
from perdure import process
from perdure.errors import NoProcess, SpawnError
from perdure.process import Pid, after, select, sleep

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Worker:
    """What the supervisor knows of a living worker."""

    id: int
    started_at: float


Workers = dict[Pid, Worker]


async def supervise(worker_count: int = 4) -> None:
    """Start the workers, and restart each that dies, until somebody cancels us."""
    # The death of a worker is an event for us, not our own death.
    process.set_options(trap_links=True)
    events = process.events()
    workers: Workers = {}

    for worker_id in range(1, worker_count + 1):
        start_worker(workers, worker_id)
    log.info("Supervisor started with %s workers", worker_count)

    while True:
        result = await select(events, after("60s"))
        match result.value:
            case process.LinkDown(sender=pid) if pid in workers:
                await restart_worker(workers, pid)

            case process.Exit(sender=pid, result=end) if end.ok:
                workers.pop(pid, None)  # it is done, so it is not replaced

            case process.Cancel():
                await stop_workers(workers)
                return

            case float():  # nothing happened for a minute
                log.info("Health check: %s active workers", len(workers))

            case _:
                pass


def start_worker(workers: Workers, worker_id: int) -> None:
    try:
        pid = process.spawn_linked_monitored(task_worker, worker_id)
    except SpawnError as error:
        log.warning("Failed to start worker %s: %s", worker_id, error)
        return
    workers[pid] = Worker(worker_id, now())
    log.info("Worker %s started: %s", worker_id, pid)


async def restart_worker(workers: Workers, pid: Pid) -> None:
    worker = workers.pop(pid)
    log.warning("Worker %s died after %.1fs, restarting", worker.id, now() - worker.started_at)

    # A short delay, so that a worker that dies at once does not keep us busy.
    await sleep("100ms")
    start_worker(workers, worker.id)


async def stop_workers(workers: Workers) -> None:
    for pid in workers:
        with contextlib.suppress(NoProcess):  # it has just died: its EXIT waits in the events
            process.cancel(pid, "1s")
    while workers:
        event = await process.events().receive()
        if isinstance(event, process.Exit):
            workers.pop(event.sender, None)


def now() -> float:
    return asyncio.get_running_loop().time()
