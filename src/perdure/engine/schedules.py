"""Jobs that are submitted again and again, by the rules of cron."""

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.base.errors import UnknownName
from perdure.jobs.cron import CatchUp, check_cron, next_time
from perdure.jobs.definition import JobDefinition
from perdure.jobs.length import check_given
from perdure.jobs.model import NewJob, Schedule
from perdure.store.port import Store


class Schedules:
    """The schedules of an app; its workers follow them, each time submitted once."""

    def __init__(
        self,
        store: Callable[[], Awaitable[Store]],
        new_job: Callable[[Any, tuple[Any, ...], dict[str, Any]], NewJob],
    ) -> None:
        self._store = store
        self._new_job = new_job

    async def put(
        self,
        name: str,
        cron: str,
        job: JobDefinition[..., Any],
        *args: Any,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
        **options: Any,
    ) -> str:
        """Keep a schedule; the same name of the same tenant replaces it.

        Call it at each start of your program: one whose `cron` and `timezone` are as before keeps
        a time that is due, and stays paused if somebody has paused it.

        Args:
            name: What the schedule is known by, to its tenant.
            cron: "0 3 * * *": minute, hour, day, month, day of the week.
            job: The job.
            *args: Its arguments.
            timezone: Where the hours are.
            catch_up: What to do for times at which no worker ran: "skip", "one" or "all".
            **options: As those of `App.submit`; `tenant` is also whose schedule it is.

        Returns:
            The schedule in words.

        Raises:
            DefinitionError: The expression or the time zone is none.
        """
        check_given(schedule=name)
        words = check_cron(cron, timezone)
        store = await self._store()
        made = Schedule(
            name=name,
            cron=cron,
            job=self._new_job(job, args, options),
            timezone=timezone,
            catch_up=catch_up,
            next_at=next_time(cron, timezone, await store.now()),
        )
        await store.put_schedule(made)
        return words

    async def list(self, *, tenant: str | None = None) -> list[Schedule]:
        """Give the schedules of a tenant, or all of them, by name."""
        return await (await self._store()).schedules(tenant)

    async def remove(self, name: str, *, tenant: str = "default") -> bool:
        """Forget a schedule; False if the tenant has none of that name."""
        return await (await self._store()).delete_schedule(tenant, name)

    async def pause(self, name: str, *, tenant: str = "default") -> None:
        """Let a schedule rest until `resume`.

        Raises:
            UnknownName: The tenant has none of that name.
        """
        await self._set(tenant, name, paused=True)

    async def resume(self, name: str, *, tenant: str = "default") -> None:
        """Let a schedule go on from now; the times in between are not made up for.

        Raises:
            UnknownName: The tenant has none of that name.
        """
        await self._set(tenant, name, paused=False)

    async def _set(self, tenant: str, name: str, *, paused: bool) -> None:
        store = await self._store()
        known = {each.name: each for each in await store.schedules(tenant)}
        if name not in known:
            raise UnknownName(f"there is no schedule {name!r} of tenant {tenant!r}")
        next_at = next_time(known[name].cron, known[name].timezone, await store.now())
        await store.pause_schedule(tenant, name, next_at, paused=paused)
