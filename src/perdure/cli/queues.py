"""`perdure queues`: list queues, pause and resume them."""

from typing import Annotated, Any, TypeAlias

import typer
from rich.table import Table

from perdure.cli.jobs.choosing import complete_queue
from perdure.cli.jobs.control import ByOption, ReasonOption
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
from perdure.jobs.fleet import FleetWorker, QueueCounts

QueueArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=complete_queue)
]


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
    queues, workers = perform(_list, find_caller(app, url))
    rows = [_row(queue, workers) for queue in queues]
    empty = "There are no queues yet: the first submission makes one."
    give_table(rows, output, lambda: _drawn(rows), empty=empty, key="queue")


async def _list(app: Caller) -> tuple[list[QueueCounts], list[FleetWorker]]:
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
    by: ByOption,
    reason: ReasonOption = "",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Claim nothing from a queue until it is resumed; running jobs continue."""
    _change(find_caller(app, url), queue, (by, reason), output, paused=True)


def resume(
    queue: QueueArgument,
    *,
    by: ByOption,
    reason: ReasonOption = "",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Continue to claim from a paused queue."""
    _change(find_caller(app, url), queue, (by, reason), output, paused=False)


def _change(
    caller: Caller, queue: str, who: tuple[str, str], output: Format, *, paused: bool
) -> None:
    changed = perform(_changed, caller, queue, who, paused)
    if give_one({"queue": queue, "paused": paused, "changed": changed}, output, "queue"):
        return
    said = ("is resumed", "was not paused"), ("is paused", "was already paused")
    say(f"Queue {queue} {said[paused][not changed]}.")


async def _changed(caller: Caller, queue: str, who: tuple[str, str], paused: bool) -> bool:  # noqa: FBT001
    by, reason = who
    change = caller.pause_queue if paused else caller.resume_queue
    async with caller:
        return await change(queue, by=by, reason=reason)
