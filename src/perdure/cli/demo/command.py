"""`perdure demo`: see it with your own eyes."""

import logging
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perdure.base.clock import SystemClock
from perdure.cli.demo.app import url
from perdure.cli.demo.scene import Scene
from perdure.cli.demo.stage import Bars, Course, Lines, direct, is_good, tally, verdict
from perdure.cli.output import Code, as_json, perform

INTERVAL = 0.7  # seconds in which people can see that the worker is dead


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    *,
    once: Annotated[bool, typer.Option("--once", help="Do not wait at the end.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print what it came to as JSON, on the last line.")
    ] = False,
    pace: Annotated[
        float, typer.Option(min=0.01, max=10, help="How long the work takes: 0.5 is half as long.")
    ] = 1.0,
) -> None:
    """Kill workers at the worst moments, and see that nothing is lost and nothing done twice.

    Four acts: a migration, a mailing, an order that is undone, an approval.
    The exit code is 0 only if nothing was lost or doubled.
    """
    logging.getLogger("perdure").setLevel(logging.ERROR)  # what is shown says it better
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as name:
        folder = Path(name)
        course = _play(console, folder, pace)
        counted = tally(course)
        console.print()
        console.print(verdict(counted), soft_wrap=True)
        if console.is_terminal and not once and not json:
            _let_look(console, course, url(folder))
    if json:
        typer.echo(as_json(counted))
    raise typer.Exit(Code.OK if is_good(counted) else Code.FAILED)


def _play(console: Console, folder: Path, pace: float) -> Course:
    seen = console.is_terminal
    stage = (Bars if seen else Lines)(console, SystemClock())
    return perform(direct, Scene(folder, stage, INTERVAL if seen else 0.0, pace))


def _let_look(console: Console, course: Course, store: str) -> None:
    order = course.outcomes[2].job[-8:]
    console.print("\nLook at it in another terminal; the order with its undo, for example:")
    for words in ("jobs list", f"jobs show {order}", f"effects list --job {order}"):
        console.print(f"  perdure {words} --url {store}", soft_wrap=True)
    console.input("\n[dim]Enter ends the demonstration, and deletes its folder.[/dim]")
