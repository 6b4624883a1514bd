"""`perdure schedules`: list cron schedules, pause, resume and delete them."""

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.table import Table

from perdure.cli.output import (
    Format,
    FormatOption,
    cell,
    give_one,
    give_table,
    perform,
    say,
)
from perdure.cli.target import AppOption, UrlOption, find_caller
from perdure.engine.caller import Caller
from perdure.engine.schedules import StoredSchedules
from perdure.jobs.model import Schedule
from perdure.notify.message import spell_time

NameArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the schedule.")
]
TenantOption: TypeAlias = Annotated[str, typer.Option("--tenant", help="Its tenant.")]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="List, pause, resume and delete schedules.", no_args_is_help=True)
    group.command("list")(list_schedules)
    for action, text in _ACTIONS.items():
        group.command(action)(_command_of(action, text))
    app.add_typer(group, name="schedules")


def list_schedules(
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List schedules by tenant and name."""
    found = perform(_list, find_caller(app, url), tenant)
    rows = [_as_json(each) for each in found]
    empty = "There are no schedules: `await app.schedules.put(…)` makes one."
    give_table(rows, output, lambda: _drawn(found), empty=empty, key="name")


async def _list(caller: Caller, tenant: str | None) -> list[Schedule]:
    async with caller:
        return await StoredSchedules(caller.store).list(tenant=tenant)


def _drawn(found: list[Schedule]) -> Table:
    table = Table("schedule", "tenant", "cron", "zone", "job", "next", "last", box=None)
    for each in found:
        next_time = "paused" if each.paused else _spelled(each.next_at)
        names = (each.name, each.tenant, each.cron, each.timezone, each.job.name)
        table.add_row(*map(cell, (*names, next_time, _spelled(each.last_at))))
    return table


def _spelled(time: float | None) -> str:
    return "never" if time is None else spell_time(time)


def _as_json(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "tenant": schedule.tenant,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "catch_up": schedule.catch_up,
        "paused": schedule.paused,
        "job": schedule.job.name,
        "next_at": schedule.next_at,
        "last_at": schedule.last_at,
    }


def _command_of(action: str, text: str) -> Callable[..., None]:
    """Return the command for an action on one schedule."""

    def command(
        name: NameArgument,
        *,
        tenant: TenantOption = "default",
        url: UrlOption = None,
        app: AppOption = None,
        output: FormatOption = Format.TABLE,
    ) -> None:
        _change(find_caller(app, url), action, (name, tenant), output)

    command.__doc__ = text
    return command


_ACTIONS: Final = {
    "pause": "Submit nothing for a schedule until it is resumed.",
    "resume": "Continue a paused schedule from now.",
    "delete": "Delete a schedule; jobs that it has submitted stay.",
}
_DONE: Final = {"pause": "paused", "resume": "resumed", "delete": "deleted"}


def _change(caller: Caller, action: str, which: tuple[str, str], output: Format) -> None:
    perform(_changed, caller, action, which)
    done = {"name": which[0], "tenant": which[1], "done": _DONE[action]}
    if not give_one(done, output, "name"):
        say(f"Schedule {which[0]} is {_DONE[action]}.")


async def _changed(caller: Caller, action: str, which: tuple[str, str]) -> None:
    name, tenant = which
    async with caller:
        await getattr(StoredSchedules(caller.store), action)(name, tenant=tenant)
