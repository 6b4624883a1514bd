"""Many jobs in one table."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from perdure.app import App
from perdure.base.visible import visible
from perdure.cli.jobs import words
from perdure.cli.jobs.commands import IdArgument, find_job, short
from perdure.cli.jobs.words import entry_facts, event_facts, job_facts, message_facts, payload
from perdure.cli.output import Format, FormatOption, cell, console, give, perform
from perdure.cli.target import AppOption, UrlOption, find_app
from perdure.engine.handle import Handle
from perdure.jobs.effect import Effect, EffectState
from perdure.jobs.failure import Failure
from perdure.jobs.model import Job, JobEvent, JobMessage, JobQuery, JournalEntry
from perdure.jobs.state import JobState, StepState

_NARROW = 70  # characters of what a job waits for, or of its error


def draw_jobs(jobs: Sequence[Job], now: float) -> Table:
    """Draw jobs, one on a line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "job", "state", "submitted", "took", ""):
        table.add_column(name, no_wrap=name in ("id", "state", "submitted"))
    for job in jobs:
        table.add_row(
            short(job.id),
            cell(_name(job)),
            words.state(job.state),
            words.ago(job.created_at, now),
            words.between(job.started_at, job.ended_at, now),
            _job_summary(job, now),
        )
    return table


def counted(counts: Mapping[str, int]) -> str:
    """Spell how many jobs there are."""
    total = sum(counts.values())
    if not total:
        return "There are no jobs."
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()) if count)
    return f"{total} in all: {states}"


def _name(job: Job) -> str:
    return job.name if job.tenant == "default" else f"{job.name} of {job.tenant}"


def _job_summary(job: Job, now: float) -> Text:
    if job.request:
        return cell(f"{job.request} asked for", style="yellow")
    if job.error is not None:
        return cell(words.failure(job.error, _NARROW), style="red")
    if job.wait is not None:
        return cell(words.cut(f"waits for {words.waits(job.wait, now)}", _NARROW))
    return Text()


# A job on one page: what it is, its journal, its log.


class Sheet(Struct, frozen=True, kw_only=True):
    """All that is known of a job at one moment."""

    job: Job
    journal: Sequence[JournalEntry]
    events: Sequence[JobEvent]
    messages: Sequence[JobMessage]
    now: float
    ledger: Sequence[Effect] = ()
    wide: int = 2_000  # characters of a payload that stand above the tables
    narrow: int = 60  # … and in their cells


def draw(sheet: Sheet, most: int, *, trace: bool = True) -> RenderableType:
    """Draw a job, with so many of the last entries of its journal and log."""
    parts: list[RenderableType] = [_facts(sheet), Text()]
    parts += [_journal(sheet, most), Text()]
    if sheet.ledger:
        parts += [draw_ledger(sheet.ledger, sheet.now, sheet.narrow), Text()]
    parts.append(_log(sheet, most))
    if trace and sheet.job.error is not None and (text := Failure.unpack(sheet.job.error).trace):
        parts += [Text(), cell(text.rstrip(), style="dim", lines=True)]
    return Group(*parts)


# What it is


def _facts(sheet: Sheet) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, shown in (*_who(sheet.job), *_how(sheet)):
        table.add_row(name, shown)
    return table


def _who(job: Job) -> Iterator[tuple[str, Any]]:
    kind = "plan" if job.plan is not None else "job"
    yield kind, cell(f"{job.name}  {job.id}")
    where = [f"queue {job.queue}", f"tenant {job.tenant}"]
    where += [f"user {job.user}"] if job.user else []
    where += [f"key {job.key}"] if job.key else []
    where += [f"priority {job.priority}"] if job.priority else []
    yield "of", cell(", ".join(where))
    if job.parent:
        yield "parent", cell(job.parent)
    if job.forked_from:
        yield "forked from", cell(job.forked_from)


def _how(sheet: Sheet) -> Iterator[tuple[str, Any]]:
    job, now = sheet.job, sheet.now
    yield "state", Text.assemble(words.state(job.state), _since(job, now))
    if job.request:
        yield "asked", cell(f"{job.request}, not yet obeyed", style="yellow")
    if job.owner:
        yield "worker", cell(short(job.owner))
    if job.wait is not None:
        yield "waits for", cell(words.waits(job.wait, now))
    yield "input", cell(words.value(payload(job.input), sheet.wide))
    if job.result is not None:
        yield "result", cell(words.value(payload(job.result), sheet.wide))
    if job.error is not None:
        yield "error", cell(words.failure(job.error, sheet.wide), style="red")
    for message in sheet.messages:
        what = words.value(payload(message.payload), sheet.narrow)
        yield "message", cell(f"{message.topic}: {what}, not yet received")


def _since(job: Job, now: float) -> str:
    submitted = f"  submitted {words.ago(job.created_at, now)}"
    if job.started_at is None:
        return submitted
    verb = "took" if job.ended_at is not None else "for"
    return f"{submitted}, {verb} {words.between(job.started_at, job.ended_at, now)}"


# What it did


def _journal(sheet: Sheet, most: int) -> Table:
    left_out = len(sheet.journal) - most
    title = f"Journal: {_counted(sheet.journal)}"
    table = _table(title, left_out)
    for name in ("#", "step", "state", "attempts", "began", "took", ""):
        table.add_column(name, justify="right" if name in ("#", "attempts", "took") else "left")
    for entry in sheet.journal[max(0, left_out) :]:
        table.add_row(
            str(entry.seq),
            cell(entry.id),
            words.state(entry.state),
            str(entry.attempt or ""),
            "" if entry.started_at is None else words.clock_time(entry.started_at, sheet.now),
            _took(entry, sheet),
            _entry_summary(entry, sheet),
        )
    return table


def _counted(journal: Sequence[JournalEntry]) -> str:
    if not journal:
        return "nothing yet"
    done = sum(entry.state in (StepState.SUCCEEDED, StepState.SKIPPED) for entry in journal)
    return f"{done} of {len(journal)} known entries done"


def _took(entry: JournalEntry, sheet: Sheet) -> str:
    if entry.ended_at is None and entry.state is not StepState.RUNNING:
        return ""
    return words.between(entry.started_at, entry.ended_at or sheet.job.ended_at, sheet.now)


def _entry_summary(entry: JournalEntry, sheet: Sheet) -> Text:
    """Return what matters most of an entry: its error, where it stands, or its output."""
    now = sheet.now
    if entry.error is not None:
        again = (
            "" if entry.wake_at is None else f"; again at {words.clock_time(entry.wake_at, now)}"
        )
        return cell(words.failure(entry.error, sheet.narrow) + again, style="red")
    if entry.checkpoint is not None and entry.state is not StepState.SUCCEEDED:
        return cell(
            f"checkpoint {entry.checkpoint_no}: {_place(payload(entry.checkpoint), sheet.narrow)}"
        )
    if entry.output is not None:
        shown = words.value(payload(entry.output), sheet.narrow)
        return cell(shown, style="dim", no_wrap=True, overflow="ellipsis")
    if sheet.job.ended_at is not None and entry.ended_at is None:
        return cell("interrupted: the job has ended", style="dim")
    if entry.wake_at is not None:
        return cell(f"until {words.clock_time(entry.wake_at, now)}")
    return Text()


def _place(checkpoint: Any, narrow: int) -> str:
    """Spell a checkpoint; that of `ctx.items` by how many items are done."""
    match checkpoint:
        case {"ctx.items": int(), "place": int(place)}:
            return f"{place} items done"
        case _:
            return words.value(checkpoint, narrow)


# What happened to it


def _log(sheet: Sheet, most: int) -> Table:
    left_out = len(sheet.events) - most
    table = _table("Log", left_out)
    for name in ("at", "what", "by", ""):
        table.add_column(name)
    for event in sheet.events[max(0, left_out) :]:
        by = short(event.actor) if len(event.actor) == len(sheet.job.id) else event.actor
        about = ", ".join(
            f"{name}: {words.cut(str(fact), sheet.narrow)}" for name, fact in event.data.items()
        )
        moment = words.clock_time(event.at, sheet.now)
        table.add_row(moment, cell(event.type), cell(by), cell(about, style="dim"))
    return table


def _table(title: str, left_out: int) -> Table:
    if left_out > 0:
        title += f"; {left_out} earlier ones are left out (--all shows them)"
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )


# The ledger of a job, for `perdure jobs show`.

_STYLES = {
    EffectState.DONE: "green",
    EffectState.FAILED: "dim",
    EffectState.UNDONE: "dim",
    EffectState.BORROWED: "dim",
}


def draw_ledger(ledger: Sequence[Effect], now: float, narrow: int) -> Table:
    """Draw what a job did to the world, in order."""
    doubts = sum(each.state is EffectState.IN_DOUBT for each in ledger)
    title = f"Effects: {len(ledger)}" + (f", {doubts} in doubt" if doubts else "")
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in ("no", "kind", "target", "state", "step", "called", ""):
        table.add_column(name)
    for each in ledger:
        said = "" if each.result is None else words.value(payload(each.result), narrow)
        table.add_row(
            str(each.no),
            cell(each.kind),
            cell(visible(each.target, narrow)),
            cell(each.state.value, style=_STYLES.get(each.state, "bold yellow")),
            cell(each.place.step),
            words.clock_time(each.called_at, now),
            cell(said, style="dim"),
        )
    return table


def effect_facts(effect: Effect) -> dict[str, Any]:
    """Return a line of the ledger for programs."""
    return {
        "job": effect.job_id,
        "no": effect.no,
        "tenant": effect.tenant,
        "kind": effect.kind,
        "target": effect.target,
        "state": effect.state.value,
        "step": effect.place.step,
        "key": effect.key,
        "generation": effect.generation,
        "in_doubt": effect.in_doubt,
        "details": payload(effect.details),
        "result": payload(effect.result),
        "problem": effect.problem,
        "error": payload(effect.error),
        "undo": None if effect.undo is None else effect.undo.step,
        "proof": effect.proof,
        "called_at": effect.called_at,
        "ended_at": effect.ended_at,
    }


# `perdure jobs list` and `show`.

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
    """Return all that is known of a job, for programs."""
    return {
        **job_facts(sheet.job),
        "journal": [entry_facts(entry) for entry in sheet.journal],
        "effects": [effect_facts(effect) for effect in sheet.ledger],
        "events": [event_facts(event) for event in sheet.events],
        "messages": [message_facts(message) for message in sheet.messages],
    }
