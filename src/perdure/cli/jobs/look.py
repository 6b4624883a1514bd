"""`perdure jobs list` and `show`."""

import sys
from typing import Annotated, Any

import msgspec
import typer

from perdure.app import App
from perdure.cli.jobs.facts import entry_facts, event_facts, job_facts, message_facts
from perdure.cli.jobs.find import IdArgument, find_job
from perdure.cli.jobs.ledger import effect_facts
from perdure.cli.jobs.listing import counted, draw_jobs
from perdure.cli.jobs.sheet import Sheet, draw
from perdure.cli.outcome import perform
from perdure.cli.output import Format, FormatOption, console, give
from perdure.cli.target import AppOption, UrlOption, find_app
from perdure.engine.handle import Handle
from perdure.jobs.query import JobQuery
from perdure.jobs.state import JobState

MOST_ENTRIES = 40  # of a journal and of a log, that people see unless they ask for all


def list_jobs(  # noqa: PLR0913  an option is a parameter
    *,
    state: Annotated[
        list[JobState] | None,
        typer.Option("--state", "-s", case_sensitive=False, help="May be repeated."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of this job or plan.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant.")] = None,
    queue: Annotated[str | None, typer.Option(help="In this queue.")] = None,
    key: Annotated[str | None, typer.Option(help="Submitted with this key.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)] = 20,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List jobs, the newest first."""
    query = JobQuery(
        states=tuple(state) if state else None,
        name=name,
        tenant=tenant,
        queue=queue,
        key=key,
        limit=limit,
    )
    perform(_list, find_app(app, url), query, output)


async def _list(app: App, query: JobQuery, output: Format) -> None:
    async with app:
        jobs = await app.find_jobs(query)
        store = await app.store()
        counts, now = await store.counts(query.tenant), await store.now()
    if output is Format.JSON:
        give([job_facts(job) for job in jobs], indent=2)
        return
    screen = console()
    if jobs:
        screen.print(draw_jobs(jobs, now))
    elif counts:
        screen.print("None of the jobs is like that.")
    more = f" (the newest {len(jobs)} are shown)" if len(jobs) == query.limit else ""
    screen.print(counted(counts) + more)


def show(
    job: IdArgument,
    *,
    all_entries: Annotated[
        bool, typer.Option("--all", help="All of a long journal and log.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="All entries, and nothing of them is cut.")
    ] = False,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show a job: its journal with states, attempts and errors, what it waits for, its log."""
    sheet = perform(_show, find_app(app, url), job)
    if output is Format.JSON:
        give(sheet_facts(sheet), indent=2)
        return
    most = len(sheet.journal) + len(sheet.events) if all_entries or full else MOST_ENTRIES
    if full:
        sheet = msgspec.structs.replace(sheet, wide=sys.maxsize, narrow=sys.maxsize)
    console().print(draw(sheet, most))


async def _show(app: App, job: str) -> Sheet:
    async with app:
        return await read_sheet(app, await find_job(app, job))


async def read_sheet(app: App, handle: Handle[Any]) -> Sheet:
    """Read all that is known of a job."""
    store = await app.store()
    return Sheet(
        job=await handle.job(),
        journal=await handle.journal(),
        events=await handle.events(),
        messages=await store.messages(handle.id),
        now=await store.now(),
        ledger=await handle.effects(),
    )


def sheet_facts(sheet: Sheet) -> dict[str, Any]:
    """Give all that is known of a job, for programs."""
    return {
        **job_facts(sheet.job),
        "journal": [entry_facts(entry) for entry in sheet.journal],
        "effects": [effect_facts(effect) for effect in sheet.ledger],
        "events": [event_facts(event) for event in sheet.events],
        "messages": [message_facts(message) for message in sheet.messages],
    }
