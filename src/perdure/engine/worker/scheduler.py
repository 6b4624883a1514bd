"""Cron schedules: how they are kept, and how workers submit their jobs.

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
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Unpack, cast

from msgspec.structs import replace

from perdure.base.errors import StoreError, UnknownName
from perdure.engine import events
from perdure.engine.submission import SubmitOptions, new_id
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import every
from perdure.jobs.cron import CatchUp, check_cron, due, key, next_time
from perdure.jobs.definition import Call
from perdure.jobs.model import NewJob, Schedule
from perdure.jobs.plan import Plan
from perdure.jobs.text_limits import check_given
from perdure.store.store import Store

_log = logging.getLogger("perdure.worker")

_LOOK_EVERY: Final = 3600.0  # the agenda wakes it

# For users


class Schedules:
    """The schedules of an app; its workers submit the jobs, once for each time."""

    def __init__(
        self,
        store: Callable[[], Awaitable[Store]],
        new_job: Callable[[Any, Mapping[str, Any]], NewJob],
    ) -> None:
        self._store = store
        self._new_job = new_job

    async def put(
        self,
        name: str,
        cron: str,
        call: Call[Any] | Plan,
        *,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
        **options: Unpack[SubmitOptions],
    ) -> str:
        """Create a schedule, or replace the one of the same name and tenant.

        Call it at each start of your program: a schedule whose `cron` and `timezone` are unchanged
        keeps a time that is due, and stays paused if somebody has paused it.

        Args:
            name: The name of the schedule, unique in its tenant.
            cron: "0 3 * * *": minute, hour, day, month, day of the week.
            call: The call of a job, or a plan.
            timezone: The time zone of the cron expression.
            catch_up: What to do about times at which no worker ran: "skip", "one" or "all".
            **options: Those of `App.submit`; `tenant` is also the tenant of the schedule.

        Returns:
            The schedule in words.

        Raises:
            DefinitionError: The expression or the time zone is invalid.
        """
        check_given(schedule=name)
        words = check_cron(cron, timezone)
        store = await self._store()
        made = Schedule(
            name=name,
            cron=cron,
            job=self._new_job(call, options),
            timezone=timezone,
            catch_up=catch_up,
            next_at=next_time(cron, timezone, await store.now()),
        )
        await store.put_schedule(made)
        return words

    async def list(self, *, tenant: str | None = None) -> list[Schedule]:
        """Return the schedules of a tenant, or all of them, by name."""
        return await (await self._store()).schedules(tenant)

    async def get(self, name: str, *, tenant: str = "default") -> Schedule:
        """Return a schedule.

        Raises:
            UnknownName: The tenant has no schedule of that name.
        """
        for each in await self.list(tenant=tenant):
            if each.name == name:
                return each
        raise _no_schedule(name, tenant)

    async def delete(self, name: str, *, tenant: str = "default") -> None:
        """Delete a schedule; jobs that it has submitted stay.

        Raises:
            UnknownName: The tenant has no schedule of that name.
        """
        if not await (await self._store()).delete_schedule(tenant, name):
            raise _no_schedule(name, tenant)

    async def pause(self, name: str, *, tenant: str = "default") -> None:
        """Submit nothing for a schedule until `resume`.

        Raises:
            UnknownName: The tenant has no schedule of that name.
        """
        await self._set(tenant, name, paused=True)

    async def resume(self, name: str, *, tenant: str = "default") -> None:
        """Continue a paused schedule from now; the times in between are skipped.

        Raises:
            UnknownName: The tenant has no schedule of that name.
        """
        await self._set(tenant, name, paused=False)

    async def _set(self, tenant: str, name: str, *, paused: bool) -> None:
        store, known = await self._store(), await self.get(name, tenant=tenant)
        next_at = next_time(known.cron, known.timezone, await store.now())
        await store.pause_schedule(tenant, name, next_at, paused=paused)


def _no_schedule(name: str, tenant: str) -> UnknownName:
    return UnknownName(f"there is no schedule {name!r} of tenant {tenant!r}")


# In a worker


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
