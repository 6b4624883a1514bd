"""A job on one page: what it is, its journal, its log."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from perdure.cli.jobs import words
from perdure.cli.jobs.facts import payload
from perdure.cli.jobs.find import short
from perdure.cli.jobs.ledger import draw_ledger
from perdure.cli.output import cell
from perdure.jobs.effect import Effect
from perdure.jobs.failure import Failure
from perdure.jobs.model import Entry, Event, Job, Message
from perdure.jobs.state import StepState


class Sheet(Struct, frozen=True, kw_only=True):
    """All that is known of a job at one moment."""

    job: Job
    journal: Sequence[Entry]
    events: Sequence[Event]
    messages: Sequence[Message]
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
            _said(entry, sheet),
        )
    return table


def _counted(journal: Sequence[Entry]) -> str:
    if not journal:
        return "nothing yet"
    done = sum(entry.state in (StepState.SUCCEEDED, StepState.SKIPPED) for entry in journal)
    return f"{done} of {len(journal)} known entries done"


def _took(entry: Entry, sheet: Sheet) -> str:
    if entry.ended_at is None and entry.state is not StepState.RUNNING:
        return ""
    return words.between(entry.started_at, entry.ended_at or sheet.job.ended_at, sheet.now)


def _said(entry: Entry, sheet: Sheet) -> Text:
    """Give what matters most of an entry: its error, where it stands, or its output."""
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
