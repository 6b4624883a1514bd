"""`perdure workers`: which workers are alive, what they serve and what they know."""

from collections.abc import Iterator
from typing import Any

import typer
from rich.table import Table

from perdure.app import App
from perdure.cli.jobs import formatting
from perdure.cli.output import Format, FormatOption, cell, console, give, perform, say
from perdure.cli.target import AppOption, UrlOption, find_app, short
from perdure.jobs.fleet import Definitions, FleetWorker
from perdure.jobs.wording import shorten

_WIDEST = 80  # characters of the jobs that a worker knows


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("workers")(workers)


def workers(
    *, url: UrlOption = None, app: AppOption = None, output: FormatOption = Format.TABLE
) -> None:
    """List the workers that are alive: where they run, since when, and what they know."""
    found, now = perform(_workers, find_app(app, url))
    if output is Format.JSON:
        give([_as_json(each) for each in found], indent=2)
    elif found:
        console().print(_drawn(found, now))
    else:
        say("No worker is running.")


async def _workers(app: App) -> tuple[list[FleetWorker], float]:
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
            f"{each.running} of {each.concurrency}",
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
        "jobs": {
            name: {"version": job.version, "accepts": list(job.accepts)}
            for name, job in jobs.items()
        },
        "steps": [] if known is None else list(known.steps),
    }
