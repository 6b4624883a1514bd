"""`perdure jobs watch`: a job, or all jobs, as they go on."""

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from perdure.app import App
from perdure.cli.jobs import words
from perdure.cli.jobs.commands import find_job
from perdure.cli.jobs.show import Sheet, counted, draw, draw_jobs, read_sheet
from perdure.cli.jobs.words import entry_facts, event_facts
from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    as_json,
    cell,
    code_of_end,
    console,
    perform,
    say,
)
from perdure.cli.target import AT_REST, AppOption, UrlOption, find_app, looks
from perdure.engine.handle import Handle
from perdure.jobs.model import JobQuery

_AROUND = 18  # lines of a sheet that are not of its journal or log
_AROUND_A_LIST = 6


def watch(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="The id of a job; without it, all jobs.")
    ] = None,
    *,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Watch a job until it has ended, or needs a person; or all jobs, until Ctrl-C.

    On a terminal it is one live picture, elsewhere a line for each change.
    """
    found = find_app(app, url)
    if job is None:
        perform(_watch_all, found, output)
    else:
        raise typer.Exit(perform(_watch_one, found, job, output))


async def _watch_one(app: App, job: str, output: Format) -> Code:
    async with app:
        handle = await find_job(app, job)
        if output is Format.TABLE and console().is_terminal:
            sheet = await _picture(app, handle)
        else:
            sheet = await _lines(app, handle, output)
        return code_of_end(sheet.job.state)


async def _picture(app: App, handle: Handle[Any]) -> Sheet:
    screen = console()
    with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:
        async with contextlib.aclosing(_sheets(app, handle)) as sheets:
            async for sheet in sheets:
                most = max(3, (screen.height - _AROUND) // 2)
                live.update(draw(sheet, most, trace=False), refresh=True)
    return sheet  # pyright: ignore[reportPossiblyUnboundVariable]  there is at least one


async def _lines(app: App, handle: Handle[Any], output: Format) -> Sheet:
    changes = Changes()
    async with contextlib.aclosing(_sheets(app, handle)) as sheets:
        async for sheet in sheets:
            for change in changes.between(sheet):
                say(as_json(change) if output is Format.JSON else _line(change, sheet.now))
    return sheet  # pyright: ignore[reportPossiblyUnboundVariable]  there is at least one


async def _sheets(app: App, handle: Handle[Any]) -> AsyncGenerator[Sheet, None]:
    async with contextlib.aclosing(looks(await app.store())) as turns:
        async for _ in turns:
            sheet = await read_sheet(app, handle)
            yield sheet
            if sheet.job.state in AT_REST:
                return


class Changes:
    """What is new on a sheet since the one before."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[str, int, int]] = {}
        self._last = 0

    def between(self, sheet: Sheet) -> Iterator[dict[str, Any]]:
        """Return what is new, in the order of the log, then of the journal."""
        for event in sheet.events:
            if event.no > self._last:
                self._last = event.no
                yield {"event": event_facts(event)}
        for entry in sheet.journal:
            stands = (entry.state.value, entry.attempt, entry.checkpoint_no)
            if self._entries.get(entry.seq) != stands:
                self._entries[entry.seq] = stands
                yield {"entry": entry_facts(entry)}


def _line(change: dict[str, Any], now: float) -> str:
    if "event" in change:
        event = change["event"]
        about = ", ".join(f"{name}: {fact}" for name, fact in event["data"].items())
        return f"{words.clock_time(event['at'], now)}  {event['type']}  {about}".rstrip()
    entry = change["entry"]
    moment = words.clock_time(entry["ended_at"] or now, now)
    if entry["checkpoint_no"] and entry["state"] == "RUNNING":
        return f"{moment}  {entry['id']}  checkpoint {entry['checkpoint_no']}"
    return f"{moment}  {entry['id']}  {entry['state']}"


async def _watch_all(app: App, output: Format) -> None:
    screen = console()
    live = Live(console=screen, auto_refresh=False) if screen.is_terminal else None
    told = ""
    async with app, contextlib.aclosing(looks(await app.store())) as turns:
        with live or contextlib.nullcontext():
            async for _ in turns:
                counts = await (await app.store()).counts()
                if output is Format.TABLE and live is not None:
                    live.update(await _crowd(app, counts, screen.height), refresh=True)
                    continue
                line = as_json(counts) if output is Format.JSON else counted(counts)
                if line != told:
                    told = line
                    say(line)


async def _crowd(app: App, counts: dict[str, int], height: int) -> RenderableType:
    jobs = await app.find_jobs(JobQuery(limit=max(5, height - _AROUND_A_LIST)))
    now = await (await app.store()).now()
    return Group(draw_jobs(jobs, now), cell(counted(counts)))
