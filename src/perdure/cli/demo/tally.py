"""What the demonstration comes to: for programs, and for people."""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from perdure.cli.demo import notes
from perdure.cli.demo.director import Course
from perdure.cli.demo.migration import CUSTOMERS, expected


def tally(course: Course) -> dict[str, Any]:
    """Count what was lost or doubled, by what the steps and the receiver saw themselves."""
    found = notes.examine(notes.read(course.folder))
    rows = course.receiver.rows
    missing_rows = CUSTOMERS - len(rows)
    wrong_result = int(course.result != expected())
    return {
        "jobs": course.jobs,
        "steps": found.steps,
        "kills": len(course.losses),
        "effects": course.receiver.effects,
        "lost": found.missing_steps + found.missing_items + missing_rows + wrong_result,
        "duplicates": found.finished_again + found.too_many_items + rows.total() - len(rows),
        "finished_steps_again": found.finished_again,
        "rows_doubled": rows.total() - len(rows),
        "interrupted_steps_again": found.steps_again,
        "items": CUSTOMERS,
        "items_again": found.items_again,
        "requests_repeated": course.receiver.repeated,
        "seconds": round(course.seconds, 1),
    }


def is_good(counted: dict[str, Any]) -> bool:
    """Tell whether nothing was lost or doubled."""
    return not counted["lost"] and not counted["duplicates"]


def closing(course: Course, counted: dict[str, Any]) -> RenderableType:
    """Explain what was saved."""
    table = Table(box=box.ROUNDED, title_justify="left", title_style="bold")
    table.title = f"{counted['kills']} kills later: what had to be done again"
    table.add_column("")
    table.add_column("starting over\nat each kill", justify="right", style="red")
    table.add_column("with Perdure", justify="right", style="green")
    losses = course.losses
    repeated, doubled = counted["finished_steps_again"], counted["rows_doubled"]
    table.add_row("finished steps run again", _sum(loss.steps for loss in losses), str(repeated))
    again = f"{counted['items_again']} since the last checkpoint"
    table.add_row("customers converted again", _sum(loss.items for loss in losses), again)
    table.add_row("batches taken twice", _sum(loss.effects for loss in losses), str(doubled))
    return Group(Text(), table, Text(), _verdict(counted))


def _sum(numbers: Iterable[int]) -> str:
    return str(sum(numbers))


def _verdict(counted: dict[str, Any]) -> Text:
    if not is_good(counted):
        text = f"{counted['lost']} lost, {counted['duplicates']} doubled: that must not be."
        return Text(text, style="bold red")
    return Text.assemble(
        ("Nothing lost, nothing doubled", "bold green"),
        f": {counted['steps']} steps, {counted['items']} customers, "
        f"{counted['effects']} batches in {counted['seconds']:.0f} s.\n"
        f"Requests that the receiver got twice: {counted['requests_repeated']}. "
        "The step's key was the same,\nso it did not take the batch twice.",
    )
