"""The worker: does one job after another. It catches no error: its supervisor restarts it."""

import logging

from examples.pool.job import perform
from perdure import process
from perdure.process import after, select

log = logging.getLogger(__name__)


async def task_worker(worker_id: int) -> str:
    """Ask the dispatcher for work until somebody cancels us."""
    inbox, events = process.inbox(), process.events()
    log.debug("Task worker %s started", worker_id)
    process.send("dispatcher", "ready")

    while True:
        result = await select(inbox, events, after("5s"))
        match result.value:
            case process.Message(topic="work", payload=job, sender=process.Pid() as sender):
                log.debug("Worker %s processing: %s", worker_id, job)
                process.send(sender, "result", await perform(job))

            case process.Cancel():
                log.info("Worker %s cancelled", worker_id)
                return "cancelled"

            case float():  # the time is up
                log.debug("Worker %s idle", worker_id)

            case _:
                pass
