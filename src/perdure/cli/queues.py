"""`perdure queues`: list queues, pause and resume them."""

import getpass
from typing import Annotated, Any, TypeAlias

import typer
from rich.table import Table

from perdure.app import App
from perdure.cli.output import Format, FormatOption, cell, console, give, perform, say
from perdure.cli.target import AppOption, UrlOption, find_app
from perdure.jobs.fleet import FleetWorker, QueueCounts

QueueArgument: TypeAlias = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
ReasonOption: TypeAlias = Annotated[
    str, typer.Option("--reason", "-r", help="Why, for the audit log.")
]
ByOption: TypeAlias = Annotated[str, typer.Option("--by", help="Who does it; by default you.")]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="List, pause and resume queues.", no_args_is_help=True)
    group.command("list")(list_queues)
    group.command()(pause)
    group.command()(resume)
    app.add_typer(group, name="queues")


def list_queues(
    *, url: UrlOption = None, app: AppOption = None, output: FormatOption = Format.TABLE
) -> None:
    """List the queues: how many jobs each has, and how many workers serve it."""
    queues, workers = perform(_list, find_app(app, url))
    rows = [_row(queue, workers) for queue in queues]
    if output is Format.JSON:
        give(rows, indent=2)
    elif rows:
        console().print(_drawn(rows))
    else:
        say("There are no queues yet: the first submission makes one.")


async def _list(app: App) -> tuple[list[QueueCounts], list[FleetWorker]]:
    async with app:
        return await app.all_queues(), await app.workers()


def _row(queue: QueueCounts, workers: list[FleetWorker]) -> dict[str, Any]:
    return {
        "queue": queue.name,
        "paused": queue.paused,
        "ready": queue.ready,
        "waiting": queue.waiting,
        "running": queue.running,
        "workers": sum(queue.name in worker.queues for worker in workers),
    }


def _drawn(rows: list[dict[str, Any]]) -> Table:
    table = Table("queue", "", "ready", "waiting", "running", "workers", box=None)
    for row in rows:
        counts = [str(row[name]) for name in ("ready", "waiting", "running", "workers")]
        table.add_row(*map(cell, (row["queue"], "paused" if row["paused"] else "", *counts)))
    return table


def pause(
    queue: QueueArgument,
    *,
    reason: ReasonOption = "",
    by: ByOption = "",
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Claim nothing from a queue until it is resumed; jobs that run go on."""
    changed = perform(_pause, find_app(app, url), queue, by or getpass.getuser(), reason)
    say(f"Queue {queue} is paused." if changed else f"Queue {queue} was already paused.")


async def _pause(app: App, queue: str, by: str, reason: str) -> bool:
    async with app:
        return await app.pause_queue(queue, by=by, reason=reason)


def resume(
    queue: QueueArgument,
    *,
    reason: ReasonOption = "",
    by: ByOption = "",
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Continue to claim from a paused queue."""
    changed = perform(_resume, find_app(app, url), queue, by or getpass.getuser(), reason)
    say(f"Queue {queue} is resumed." if changed else f"Queue {queue} was not paused.")


async def _resume(app: App, queue: str, by: str, reason: str) -> bool:
    async with app:
        return await app.resume_queue(queue, by=by, reason=reason)
