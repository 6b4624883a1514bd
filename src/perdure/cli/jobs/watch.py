"""`perdure jobs watch`: one job, or all jobs, as they change."""

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live

from perdure.cli.jobs.formatting import how_far, struct_as_json
from perdure.cli.jobs.show import JobView, draw_job, draw_jobs, read_view, summary
from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    as_json,
    cell,
    code_of_end,
    console,
    perform,
    show,
)
from perdure.cli.target import AT_REST, AppOption, UrlOption, changes, find_caller
from perdure.engine.caller import Caller
from perdure.engine.handle import Handle
from perdure.jobs.model import JobQuery
from perdure.jobs.wording import clock_time

_AROUND = 18  # lines of a view that belong neither to the journal nor to the log
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
    """Watch a job until it ends or needs a person; without a job, all jobs until Ctrl-C.

    On a terminal this is a live view, elsewhere one line per change.
    """
    found = find_caller(app, url)
    if job is None:
        perform(_watch_all, found, output)
    else:
        raise typer.Exit(perform(_watch_one, found, job, output))


async def _watch_one(app: Caller, job: str, output: Format) -> Code:
    async with app:
        handle = await app.handle(job)
        if output is Format.TABLE and console().is_terminal:
            view = await _live_view(app, handle)
        else:
            view = await _lines(app, handle, output)
        return code_of_end(view.job.state)


async def _live_view(app: Caller, handle: Handle[Any]) -> JobView:
    screen = console()
    with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:
        async with contextlib.aclosing(_views(app, handle)) as views:
            async for view in views:
                most = max(3, (screen.height - _AROUND) // 2)
                live.update(draw_job(view, most, trace=False), refresh=True)
    return view  # pyright: ignore[reportPossiblyUnboundVariable]  there is at least one


async def _lines(app: Caller, handle: Handle[Any], output: Format) -> JobView:
    diff = ViewDiff()
    async with contextlib.aclosing(_views(app, handle)) as views:
        async for view in views:
            for change in diff.since(view):
                show(as_json(change) if output is not Format.TABLE else _line(change, view.now))
    return view  # pyright: ignore[reportPossiblyUnboundVariable]  there is at least one


async def _views(app: Caller, handle: Handle[Any]) -> AsyncGenerator[JobView, None]:
    async with contextlib.aclosing(changes(await app.store())) as turns:
        async for _ in turns:
            view = await read_view(app, handle)
            yield view
            if view.job.state in AT_REST:
                return


class ViewDiff:
    """What changed since the previous view."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[str, int, int]] = {}
        self._reports: dict[str, str] = {}
        self._last = 0

    def since(self, view: JobView) -> Iterator[dict[str, Any]]:
        """Yield new lines of the log, changed entries of the journal, and new reports of steps."""
        for event in view.events:
            if event.no > self._last:
                self._last = event.no
                yield {"event": struct_as_json(event)}
        for entry in view.journal:
            current = (entry.state.value, entry.attempt, entry.checkpoint_no)
            if self._entries.get(entry.seq) != current:
                self._entries[entry.seq] = current
                yield {"entry": struct_as_json(entry)}
        for report in view.job.progress:
            said = how_far(report)
            if said and self._reports.get(report.step) != said:
                self._reports[report.step] = said
                yield {"progress": msgspec.structs.asdict(report), "text": said}


def _line(change: dict[str, Any], now: float) -> str:
    if "event" in change:
        event = change["event"]
        about = ", ".join(f"{name}: {value}" for name, value in event["data"].items())
        return f"{clock_time(event['at'], now)}  {event['type']}  {about}".rstrip()
    if "progress" in change:
        report = change["progress"]
        return f"{clock_time(report['at'] or now, now)}  {report['step']}  {change['text']}"
    entry = change["entry"]
    moment = clock_time(entry["ended_at"] or now, now)
    if entry["checkpoint_no"] and entry["state"] == "RUNNING":
        return f"{moment}  {entry['id']}  checkpoint {entry['checkpoint_no']}"
    return f"{moment}  {entry['id']}  {entry['state']}"


async def _watch_all(app: Caller, output: Format) -> None:
    screen = console()
    live = Live(console=screen, auto_refresh=False) if screen.is_terminal else None
    printed = ""
    async with app, contextlib.aclosing(changes(await app.store())) as turns:
        with live or contextlib.nullcontext():
            async for _ in turns:
                counts = await (await app.store()).counts()
                if output is Format.TABLE and live is not None:
                    live.update(await _all_jobs(app, counts, screen.height), refresh=True)
                    continue
                line = as_json(counts) if output is not Format.TABLE else summary(counts)
                if line != printed:
                    printed = line
                    show(line)


async def _all_jobs(app: Caller, counts: dict[str, int], height: int) -> RenderableType:
    jobs = await app.find_jobs(JobQuery(limit=max(5, height - _AROUND_A_LIST)))
    now = await (await app.store()).now()
    return Group(draw_jobs(jobs, now), cell(summary(counts)))
