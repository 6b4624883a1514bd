"""Cron schedules, as users see them: rows of the store, which workers look at.

How workers submit their jobs is in `worker/scheduler.py`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Unpack

from perdure.base.errors import UnknownName
from perdure.engine.submission import SubmitOptions
from perdure.jobs.cron import CatchUp, check_cron, next_time
from perdure.jobs.definition import JobCall
from perdure.jobs.model import NewJob, Schedule
from perdure.jobs.plan import Plan
from perdure.jobs.text_limits import check_given
from perdure.store.store import Store


class StoredSchedules:
    """The schedules of a store; who has only these needs no code of jobs."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store

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


class Schedules(StoredSchedules):
    """The schedules of an app; its workers submit the jobs, once for each time."""

    def __init__(
        self,
        store: Callable[[], Awaitable[Store]],
        new_job: Callable[[Any, Mapping[str, Any]], NewJob],
    ) -> None:
        super().__init__(store)
        self._new_job = new_job

    async def put(
        self,
        name: str,
        cron: str,
        call: JobCall[Any] | Plan,
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


def _no_schedule(name: str, tenant: str) -> UnknownName:
    return UnknownName(f"there is no schedule {name!r} of tenant {tenant!r}")
