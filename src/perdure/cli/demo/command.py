"""`perdure demo`: see it with your own eyes."""

import logging
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perdure.base.clock import SystemClock
from perdure.cli.demo.director import Course, Director
from perdure.cli.demo.migration import url
from perdure.cli.demo.stage import Bars, Lines
from perdure.cli.demo.tally import closing, is_good, tally
from perdure.cli.outcome import perform
from perdure.cli.output import Code, as_json

INTERVAL = 1.0  # seconds in which people can see that the worker is dead
INTRODUCTION = """\
A long migration, kept in one SQLite file. Its worker is a real process,
and is killed with -9 five times. Nobody cleans up, nobody restarts the job.
"""


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
    """Kill the worker of a long migration again and again, and see that it goes on.

    The exit code is 0 only if nothing was lost or doubled.
    """
    logging.getLogger("perdure").setLevel(logging.ERROR)  # what is shown says it better
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as name:
        folder = Path(name)
        console.print(INTRODUCTION)
        course = _play(console, folder, pace)
        counted = tally(course)
        console.print(closing(course, counted))
        if console.is_terminal and not once and not json:
            _let_look(console, course)
    if json:
        typer.echo(as_json(counted))
    raise typer.Exit(Code.OK if is_good(counted) else Code.FAILED)


def _play(console: Console, folder: Path, pace: float) -> Course:
    seen = console.is_terminal
    stage = (Bars if seen else Lines)(console, SystemClock())
    with stage:
        return perform(Director(folder, stage, INTERVAL if seen else 0.0, pace).run)


def _let_look(console: Console, course: Course) -> None:
    console.print("\nLook at its journal and its log, in another terminal:")
    console.print(
        f"  perdure jobs show {course.job_id[-8:]} --url {url(course.folder)}", soft_wrap=True
    )
    console.input("\n[dim]Enter ends the demonstration, and deletes its folder.[/dim]")
