"""`perdure workers`: which workers are alive and what they know; drain one, see its processes."""

from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias

import typer
from rich.table import Table

from perdure.cli.jobs import formatting
from perdure.cli.jobs.control import ByOption
from perdure.cli.output import (
    Format,
    FormatOption,
    cell,
    counted,
    give_one,
    give_table,
    perform,
    say,
    show,
)
from perdure.cli.target import AppOption, UrlOption, find_caller, short
from perdure.cli.tree_lines import branches
from perdure.engine.caller import Caller
from perdure.jobs.fleet import Definitions, FleetWorker
from perdure.jobs.wording import shorten

WorkerArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="WORKER", help="Its id, or the first characters of it.")
]

_WIDEST = 80  # characters of the jobs that a worker knows


def add_to(app: typer.Typer) -> None:
    """Add the group; without a command it lists the workers."""
    group = typer.Typer(help="List the workers that are alive, and ask one to drain.")
    group.callback(invoke_without_command=True)(workers)
    group.command("list")(list_workers)
    group.command()(drain)
    group.command()(resume)
    group.command()(tree)
    app.add_typer(group, name="workers")


def workers(
    context: typer.Context,
    *,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List the workers that are alive, and ask one to drain."""
    if context.invoked_subcommand is None:
        list_workers(url=url, app=app, output=output)


def list_workers(
    *, url: UrlOption = None, app: AppOption = None, output: FormatOption = Format.TABLE
) -> None:
    """List the workers that are alive: where they run, since when, and what they know."""
    found, now = perform(_workers, find_caller(app, url))
    empty = "No worker is running: `perdure worker MODULE:APP` starts one."
    give_table([_as_json(each) for each in found], output, lambda: _drawn(found, now), empty=empty)


def drain(
    worker: WorkerArgument, *, by: ByOption, url: UrlOption = None, app: AppOption = None
) -> None:
    """Let a worker claim nothing more, and release its jobs, each at its next safe point.

    Other workers continue them. It stays up, until it is stopped or resumed.
    """
    answer = perform(_ask, find_caller(app, url), worker, "drain", by)
    say(f"Worker {worker} drains; it still has {counted(answer['running'], 'job')}.")


def resume(
    worker: WorkerArgument, *, by: ByOption, url: UrlOption = None, app: AppOption = None
) -> None:
    """Let a drained worker claim again."""
    perform(_ask, find_caller(app, url), worker, "resume", by)
    say(f"Worker {worker} claims again.")


def tree(
    worker: WorkerArgument,
    *,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the processes of a worker, wherever it runs."""
    answer = perform(_ask, find_caller(app, url), worker, "tree", "")
    if not give_one(answer, output, "worker"):
        show(
            f"worker {answer['worker']}, OS process {answer['os_pid']}", *branches(answer["roots"])
        )


async def _ask(app: Caller, worker: str, action: str, by: str) -> dict[str, Any]:
    async with app:
        return await app.ask_worker(worker, action, by=by)


async def _workers(app: Caller) -> tuple[list[FleetWorker], float]:
    async with app:
        return await app.workers(), await (await app.store()).now()


def _drawn(found: list[FleetWorker], now: float) -> Table:
    names = ("worker", "host", "pid", "started", "heartbeat", "queues", "running", "knows")
    table = Table(*names, box=None)
    for each in found:
        row = (
            short(each.id),
            each.host,
            str(each.pid),
            formatting.ago(each.started_at, now),
            f"{each.silent_for:.0f}s ago",
            ", ".join(each.queues),
            f"{each.running} of {each.concurrency}" + (", drains" if each.draining else ""),
            shorten(", ".join(_known(each.definitions)), _WIDEST),
        )
        table.add_row(*map(cell, row))
    return table


def _known(definitions: Definitions | None) -> Iterator[str]:
    """Yield the jobs that a worker knows, with their versions."""
    if definitions is None:
        yield "?"
        return
    for name, job in definitions.jobs.items():
        older = f" (and {', '.join(job.accepts)})" if job.accepts else ""
        yield f"{name} {job.version}{older}"


def _as_json(worker: FleetWorker) -> dict[str, Any]:
    known = worker.definitions
    jobs = {} if known is None else known.jobs
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "started_at": worker.started_at,
        "silent_for": worker.silent_for,
        "queues": list(worker.queues),
        "concurrency": worker.concurrency,
        "running": worker.running,
        "draining": worker.draining,
        "jobs": {
            name: {"version": job.version, "accepts": list(job.accepts)}
            for name, job in jobs.items()
        },
        "steps": [] if known is None else list(known.steps),
    }
