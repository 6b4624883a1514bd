"""`perdure jobs list` and `perdure jobs show`: jobs in a table, and one job in full.

A job in full is a `JobView`, read from the store at one moment; `perdure jobs watch` draws it too.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from msgspec import Struct
from msgspec.structs import replace
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from perdure.base.visible import visible
from perdure.cli.jobs import formatting
from perdure.cli.jobs.choosing import (
    NameOption,
    QueueOption,
    StateOption,
    TenantOption,
    asked_for,
    complete_query,
)
from perdure.cli.jobs.formatting import (
    budget_as_json,
    effect_as_json,
    job_as_json,
    payload,
    struct_as_json,
)
from perdure.cli.output import (
    Format,
    FormatOption,
    block,
    cell,
    console,
    give,
    give_list,
    perform,
    say,
)
from perdure.cli.output import show as show_lines
from perdure.cli.target import (
    AppOption,
    JobArgument,
    LabelOption,
    UrlOption,
    find_caller,
    short,
)
from perdure.engine.attendance import SILENT
from perdure.engine.caller import Caller
from perdure.engine.handle import Handle
from perdure.jobs.budget import Budget
from perdure.jobs.effect import Effect, EffectState
from perdure.jobs.failure import Failure
from perdure.jobs.fleet import Fleet
from perdure.jobs.listing import plain_state, took
from perdure.jobs.model import Job, JobEvent, JobMessage, JobQuery, JournalEntry
from perdure.jobs.output import OutputTopic
from perdure.jobs.payload import stand_in_of
from perdure.jobs.plan import Plan
from perdure.jobs.saga import UNDO_LIST, is_left_undone
from perdure.jobs.state import StepState
from perdure.jobs.waiting import describe_waits
from perdure.jobs.wording import clock_time, short_failure, shorten

MOST_ENTRIES = 40  # of a journal and of a log, without --all
_NARROW = 70  # characters of what a job waits for, or of its error, in a table of jobs


# `perdure jobs list`


def list_jobs(  # noqa: PLR0913  an option is a parameter
    query: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUERY]",
            help="Which jobs, such as `state:failing name:load* label.team:data created:<2h`.",
            autocompletion=complete_query,
        ),
    ] = None,
    *,
    state: StateOption = None,
    name: NameOption = None,
    tenant: TenantOption = None,
    queue: QueueOption = None,
    key: Annotated[str | None, typer.Option(help="Only the job with this key.")] = None,
    label: LabelOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)] = 20,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List jobs, newest first."""
    fields = {"name": name, "tenant": tenant, "queue": queue, "key": key}
    asked = asked_for(" ".join(query or ()), state, label, **fields)
    perform(_list, find_caller(app, url), replace(asked, limit=limit), output)


async def _list(caller: Caller, query: JobQuery, output: Format) -> None:
    async with caller:
        jobs = await caller.find_jobs(query)
        store = await caller.store()
        now = await store.now()
        if give_list([job_as_json(job, now) for job in jobs], output):
            return
        counts = await store.counts(query) or await store.counts()  # whether there are others
        fleet = await store.fleet(SILENT)
    screen = console()
    if jobs:
        screen.print(draw_jobs(jobs, now, fleet))
    elif counts:
        screen.print("No job matches.")
    more = f" (only the newest {len(jobs)} are shown)" if len(jobs) == query.limit else ""
    say(summary(counts) + more)


def is_due(job: Job, now: float) -> bool:
    """Whether a job waits for nothing but a worker."""
    return job.owner is None and job.due_at is not None and job.due_at <= now


def draw_jobs(jobs: Sequence[Job], now: float, fleet: Fleet | None = None) -> Table:
    """Return a table of jobs, one per line; with a fleet, also what no worker can claim."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "job", "state", "submitted", "took", ""):
        table.add_column(name, no_wrap=name in ("id", "state", "submitted"))
    for job in jobs:
        table.add_row(
            short(job.id),
            cell(job.name if job.tenant == "default" else f"{job.name} of {job.tenant}"),
            formatting.state(plain_state(job)),
            formatting.ago(job.created_at, now),
            formatting.duration(took(job, now)),
            _job_summary(job, now, fleet),
        )
    return table


def summary(counts: Mapping[str, int]) -> str:
    """Return how many jobs there are, in words."""
    total = sum(counts.values())
    if not total:
        return "There are no jobs."
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()) if count)
    return f"{total} in total: {states}"


def _job_summary(job: Job, now: float, fleet: Fleet | None) -> Text:
    if job.request:
        return cell(f"{job.request} requested", style="yellow")
    if job.error is not None:
        return cell(short_failure(job.error, _NARROW), style="red")
    why = fleet.why_waiting(job) if fleet is not None and is_due(job, now) else None
    if why is not None:
        return cell(shorten(why, _NARROW), style="yellow")
    waits = describe_waits(job, now)
    if waits:
        return cell(shorten(f"waiting for {waits}", _NARROW))
    reports = ", ".join(
        f"{one.step}: {far}" for one in job.progress if (far := formatting.how_far(one))
    )
    return cell(shorten(reports, _NARROW))


# `perdure jobs show`


class JobView(Struct, frozen=True, kw_only=True):
    """Everything that is known about a job at one moment."""

    job: Job
    journal: Sequence[JournalEntry]
    events: Sequence[JobEvent]
    messages: Sequence[JobMessage]
    now: float
    ledger: Sequence[Effect] = ()
    topics: Sequence[OutputTopic] = ()
    budget: Budget | None = None
    unserved: str | None = None  # why no worker can claim it, although it is due
    wide: int = 2_000  # characters of a payload above the tables
    narrow: int = 60  # characters of a payload in a table


def show(
    job: JobArgument,
    *,
    all_entries: Annotated[
        bool, typer.Option("--all", help="Show all of a long journal and log.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Show everything, and cut nothing.")] = False,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show a job: its journal with states, attempts and errors, what it waits for, its log."""
    view = perform(_show, find_caller(app, url), job)
    if output is Format.IDS:
        show_lines(view.job.id)
        return
    if output is not Format.TABLE:
        give(view_as_json(view), indent=2 if output is Format.JSON else None)
        return
    most = len(view.journal) + len(view.events) if all_entries or full else MOST_ENTRIES
    if full:
        view = replace(view, wide=sys.maxsize, narrow=sys.maxsize)
    console().print(draw_job(view, most))


async def _show(app: Caller, job: str) -> JobView:
    async with app:
        return await read_view(app, await app.handle(job))


async def read_view(app: Caller, handle: Handle[Any]) -> JobView:
    """Return everything that is known about a job now."""
    store = await app.store()
    job, now = await handle.job(), await store.now()
    unserved = (await store.fleet(SILENT)).why_waiting(job) if is_due(job, now) else None
    return JobView(
        job=job,
        journal=await handle.journal(),
        events=await handle.events(),
        messages=await store.messages(handle.id),
        now=now,
        unserved=unserved,
        ledger=await handle.effects(),
        topics=await handle.topics(),
        budget=await handle.budget(),
    )


def view_as_json(view: JobView) -> dict[str, Any]:
    """Return a view for programs."""
    return {
        **job_as_json(view.job, view.now),
        **({} if view.job.plan is None else {"calls": _calls(view)}),
        "unserved": view.unserved,
        "budget": None if view.budget is None else budget_as_json(view.budget, view.now),
        "journal": [struct_as_json(entry) for entry in view.journal],
        "effects": [effect_as_json(effect) for effect in view.ledger],
        "events": [struct_as_json(event) for event in view.events],
        "messages": [struct_as_json(message) for message in view.messages],
        "output": [_topic_as_json(topic) for topic in view.topics],
    }


def _topic_as_json(topic: OutputTopic) -> dict[str, Any]:
    kept = {"pieces": topic.pieces, "bytes": topic.size}
    return {"topic": topic.topic, **kept, "last": topic.last, "dropped": topic.dropped}


def draw_job(view: JobView, most: int, *, trace: bool = True) -> RenderableType:
    """Return a job, with at most this many of the last entries of its journal and log."""
    parts: list[RenderableType] = [_head(view), Text()]
    parts += [_journal(view, most), Text()]
    if view.ledger:
        parts += [_ledger(view.ledger, view.now, view.narrow), Text()]
    parts.append(_log(view, most))
    if trace and view.job.error is not None and (text := Failure.unpack(view.job.error).trace):
        parts += [Text(), block(text.rstrip(), style="dim")]
    return Group(*parts)


def _head(view: JobView) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, shown in (*_identity(view.job), *_status(view)):
        table.add_row(name, shown)
    return table


def _identity(job: Job) -> Iterator[tuple[str, Any]]:
    yield "plan" if job.plan is not None else "job", cell(f"{job.name}  {job.id}")
    where = [f"queue {job.queue}", f"tenant {job.tenant}"]
    where += [f"user {job.user}"] if job.user else []
    where += [f"key {job.key}"] if job.key else []
    where += [f"priority {job.priority}"] if job.priority else []
    yield "of", cell(", ".join(where))
    if job.labels:
        yield "labels", cell(", ".join(f"{name}={value}" for name, value in job.labels.items()))
    if job.parent:
        yield "parent", cell(job.parent)
    if job.forked_from:
        yield "forked from", cell(job.forked_from)


def _status(view: JobView) -> Iterator[tuple[str, Any]]:
    job, now = view.job, view.now
    yield "state", Text.assemble(formatting.state(plain_state(job)), _since(job, now))
    if job.request:
        yield "requested", cell(f"{job.request}, not yet done", style="yellow")
    if job.owner:
        heard = now - (job.silent_for or 0.0)
        yield "worker", cell(f"{short(job.owner)}, heartbeat {formatting.ago(heard, now)}")
    yield from _present(view)
    yield "input", cell(formatting.short_json(payload(job.input), view.wide))
    if job.result is not None:
        yield "result", cell(formatting.short_json(payload(job.result), view.wide))
    if job.error is not None:
        yield "error", cell(short_failure(job.error, view.wide), style="red")
    if view.budget is not None:
        shared = "" if view.budget.root == job.id else f"; shared with job {view.budget.root}"
        yield "budget", cell(formatting.describe_budget(view.budget, now) + shared)
    yield from _topics(view)


def _topics(view: JobView) -> Iterator[tuple[str, Any]]:
    """Yield what it has emitted, and which messages it has not received."""
    for topic in view.topics:
        dropped = f", those up to position {topic.dropped} were dropped" if topic.dropped else ""
        yield "output", cell(f"{topic.topic}: {topic.pieces} pieces{dropped}")
    for message in view.messages:
        what = formatting.short_json(payload(message.payload), view.narrow)
        yield "message", cell(f"{message.topic}: {what}, not yet received")


def _present(view: JobView) -> Iterator[tuple[str, Any]]:
    """Yield what the job waits for, and how far its running steps are."""
    if view.unserved is not None:
        yield "waiting for", cell(f"a worker: {view.unserved}", style="yellow")
    elif waits := describe_waits(view.job, view.now):
        yield "waiting for", cell(waits)
    for report in view.job.progress:
        yield "progress", cell(formatting.describe_progress(report, view.now))


def _since(job: Job, now: float) -> str:
    submitted = f"  submitted {formatting.ago(job.created_at, now)}"
    if job.started_at is None:
        return submitted
    verb = "took" if job.ended_at is not None else "for"
    age = formatting.duration(took(job, now))
    return f"{submitted}, {verb} {age}, worked {formatting.duration(job.worked)}"


# The journal

_DONE = (StepState.SUCCEEDED, StepState.SKIPPED, StepState.COMPENSATED)


def _journal(view: JobView, most: int) -> Table:
    left_out = len(view.journal) - most
    table = _table(f"Journal: {_progress(view)}", left_out)
    for name in ("#", "step", "state", "attempts", "began", "took", ""):
        justify = "right" if name in ("#", "attempts", "took") else "left"
        # Names that begin alike, as those of tools and subgraphs do, must not be cut.
        table.add_column(name, justify=justify, overflow="fold")
    for entry in view.journal[max(0, left_out) :]:
        table.add_row(
            str(entry.seq),
            cell(entry.id),
            formatting.state(entry.state),
            str(entry.attempt or ""),
            "" if entry.started_at is None else clock_time(entry.started_at, view.now),
            _took(entry, view),
            _entry_summary(entry, view),
        )
    for call in _calls(view):
        if call["state"] is None:
            table.add_row("", cell(call["id"], style="dim"), cell("not begun", style="dim"))
    return table


def _progress(view: JobView) -> str:
    """Return how much of a job is done; only of a plan is known how much there is."""
    if view.job.plan is not None:
        calls = _calls(view)
        return f"{sum(call['state'] in _DONE for call in calls)} of {len(calls)} calls done"
    if not view.journal:
        return "nothing yet"
    done = sum(entry.state in _DONE for entry in view.journal)
    return f"{done} of {len(view.journal)} known entries done"


def _calls(view: JobView) -> list[dict[str, Any]]:
    """Return the calls of a plan, as the journal names them; the state of one to come is None."""
    if view.job.plan is None:
        return []
    states = {entry.id: entry.state for entry in view.journal}
    ids = [f"{call.step}#{call.id}" for call in Plan.from_json(view.job.plan).calls]
    return [{"id": id, "state": states.get(id)} for id in ids]


def _took(entry: JournalEntry, view: JobView) -> str:
    if entry.ended_at is None and entry.state is not StepState.RUNNING:
        return ""
    end = entry.ended_at or view.job.ended_at
    return formatting.duration_between(entry.started_at, end, view.now)


def _entry_summary(entry: JournalEntry, view: JobView) -> Text:
    """Return what matters most about an entry: its error, its progress, or its output."""
    now = view.now
    if entry.error is not None:
        wake_at = entry.wake_at
        again = "" if wake_at is None else f"; again at {clock_time(wake_at, now)}"
        return cell(short_failure(entry.error, view.narrow) + again, style="red")
    if entry.checkpoint is not None and entry.state is not StepState.SUCCEEDED:
        saved = _checkpoint(payload(entry.checkpoint), view.narrow)
        return cell(f"checkpoint {entry.checkpoint_no}: {saved}")
    if entry.output is not None:
        shown = "" if entry.output == b"null" else _output(entry, view.narrow)
        return cell(shown, style="dim", no_wrap=True, overflow="ellipsis")
    if view.job.ended_at is not None and entry.ended_at is None:
        return cell("interrupted: the job has ended", style="dim")
    if entry.wake_at is not None:
        return cell(f"until {clock_time(entry.wake_at, now)}")
    return Text()


def _checkpoint(checkpoint: Any, narrow: int) -> str:
    """Return a checkpoint; one of `ctx.items` as the number of items done."""
    match checkpoint:
        case {"ctx.items": int(), "place": int(place)}:
            return f"{place} items done"
        case _:
            return formatting.short_json(checkpoint, narrow)


def _output(entry: JournalEntry, narrow: int) -> str:
    """Return the output of an entry; for an undo list, why the job is undone, in words."""
    output = payload(entry.output)
    if is_left_undone(entry):
        return "abandoned"
    if stand_in_of(entry.output) is not None:
        size = f"{output['bytes']:,} bytes"
        return f"{size}: {shorten(output['preview'], narrow - len(size))}"
    if entry.id != UNDO_LIST:
        return formatting.short_json(output, narrow)
    match output:
        case {"ends": str(state), "error": str(error)}:
            failure = Failure.unpack(error.encode())
            why = shorten(failure.summary(), narrow)
        case {"ends": str(state), "asked": True}:
            why = "somebody asked for it"
        case {"ends": str(state)}:
            why = "it was cancelled"
        case _:
            return formatting.short_json(output, narrow)
    return f"the job becomes {state}: {why}"


# The ledger

_EFFECT_STYLES = {
    EffectState.DONE: "green",
    EffectState.FAILED: "dim",
    EffectState.UNDONE: "dim",
    EffectState.BORROWED: "dim",
}


def _fact(name: str, value: Any, now: float) -> str:
    """Return what a line of the log says, with moments as times of day."""
    is_moment = name.endswith("_at") and isinstance(value, float)
    return clock_time(value, now) if is_moment else str(value)


def _ledger(ledger: Sequence[Effect], now: float, narrow: int) -> Table:
    doubts = sum(each.state is EffectState.IN_DOUBT for each in ledger)
    title = f"Effects: {len(ledger)}" + (f", {doubts} in doubt" if doubts else "")
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in ("no", "kind", "target", "state", "step", "called", ""):
        table.add_column(name, overflow="fold")
    for each in ledger:
        result = "" if each.result is None else formatting.short_json(payload(each.result), narrow)
        table.add_row(
            str(each.no),
            cell(each.kind),
            cell(visible(each.target, narrow)),
            cell(each.state.value, style=_EFFECT_STYLES.get(each.state, "bold yellow")),
            cell(each.place.step),
            clock_time(each.called_at, now),
            cell(result, style="dim"),
        )
    return table


# The log


def _log(view: JobView, most: int) -> Table:
    left_out = len(view.events) - most
    table = _table("Log", left_out)
    for name in ("at", "what", "by", ""):
        table.add_column(name)
    for event in view.events[max(0, left_out) :]:
        by = short(event.actor) if len(event.actor) == len(view.job.id) else event.actor
        about = ", ".join(
            f"{name}: {shorten(_fact(name, value, view.now), view.narrow)}"
            for name, value in event.data.items()
        )
        moment = clock_time(event.at, view.now)
        table.add_row(moment, cell(event.type), cell(by), cell(about, style="dim"))
    return table


def _table(title: str, left_out: int) -> Table:
    if left_out > 0:
        title += f"; {left_out} earlier entries are left out (--all shows them)"
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
