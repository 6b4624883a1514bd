"""Cron schedules: how workers submit their jobs.

A schedule is a row in the store with the next time at which it is due. Every worker reads all
schedules when one is due (see `agenda`); there is no leader. One conditional write makes sure that
each time is submitted once, although all workers find it due at the same time: `store.fire` submits
the jobs and sets the next time in one transaction, and only if the row still has the time that this
worker saw. The worker that comes second changes nothing.

The job of each time also has a key derived from the schedule and the time. So even a schedule that
is deleted and put again does not submit a time twice.

Times at which no worker ran are found when one looks again; `catch_up` decides what happens then.
All times are by the store's clock, never the machine's: two workers whose clocks differ would
otherwise disagree about what is due.
"""

import logging
from functools import partial
from typing import Final, cast

from msgspec.structs import replace

from perdure.base.errors import StoreError
from perdure.engine import events
from perdure.engine.submission import new_id
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import every
from perdure.jobs.cron import CatchUp, due, key
from perdure.jobs.model import Schedule

_log = logging.getLogger("perdure.worker")

_LOOK_EVERY: Final = 3600.0  # the agenda wakes it


async def run_schedules(node: WorkerNode) -> None:
    """Submit the jobs of schedules that are due; runs for ever."""
    work = partial(_run_due, node)
    await every(_LOOK_EVERY, work, what="running schedules", wake=node.schedules_due)


async def _run_due(node: WorkerNode) -> None:
    now = await node.store.now()
    for schedule in await node.store.schedules():
        if schedule.paused or schedule.next_at is None or schedule.next_at > now:
            continue
        try:
            await _submit(node, schedule, schedule.next_at, now)
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 - one that cannot be run must not stop the others
            _log.exception("schedule %s cannot be run", schedule.name)


async def _submit(node: WorkerNode, schedule: Schedule, next_at: float, now: float) -> None:
    found = due(schedule.cron, schedule.timezone, next_at, now, cast("CatchUp", schedule.catch_up))
    jobs = [replace(schedule.job, id=new_id(), key=key(schedule.name, at)) for at in found.times]
    if await node.store.fire(schedule, found.next_at, jobs):
        events.schedule_fired(node, schedule, len(jobs), now - next_at)
        node.poke()
