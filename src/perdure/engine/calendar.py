"""The calendar: submits what is scheduled, once, whichever worker comes first."""

import logging
from functools import partial
from typing import cast

from msgspec.structs import replace

from perdure.base.errors import StoreError
from perdure.engine.node import Node
from perdure.engine.outage import repeat
from perdure.engine.submission import new_id
from perdure.jobs.cron import CatchUp, due, key
from perdure.jobs.model import NewJob, Schedule

_log = logging.getLogger("perdure.worker")

_LOOK_EVERY = 1.0


async def follow_calendar(node: Node) -> None:
    """Look again and again for schedules that are due; for ever."""
    await repeat("running schedules", partial(_look, node), _LOOK_EVERY, node.loop.time)


async def _look(node: Node) -> None:
    now = await node.store.now()
    for schedule in await node.store.schedules():
        await _try_to_follow(node, schedule, now)


async def _try_to_follow(node: Node, schedule: Schedule, now: float) -> None:
    """Follow one schedule; one that cannot be followed must not stop the others."""
    if schedule.paused or schedule.next_at is None:
        return
    try:
        await _follow(node, schedule, schedule.next_at, now)
    except StoreError:
        raise
    except Exception:  # noqa: BLE001 - it is told, and the others are followed
        _log.exception("schedule %s cannot be followed", schedule.name)


async def _follow(node: Node, schedule: Schedule, next_at: float, now: float) -> None:
    if next_at > now:
        return
    found = due(schedule.cron, schedule.timezone, next_at, now, cast("CatchUp", schedule.catch_up))
    jobs = [_job_for(schedule, time) for time in found.times]
    # Only the worker that still finds the old time there submits: the others came too late.
    if await node.store.fire(schedule, found.next_at, jobs):
        node.poke()


def _job_for(schedule: Schedule, time: float) -> NewJob:
    return replace(schedule.job, id=new_id(), key=key(schedule.name, time))
