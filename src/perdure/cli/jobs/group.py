"""The commands below `perdure jobs`."""

import typer

from perdure.cli.jobs.commands import (
    abandon_undo,
    cancel,
    compensate,
    fork,
    pause,
    resume,
    retry,
    send,
    skip,
)
from perdure.cli.jobs.show import list_jobs, show
from perdure.cli.jobs.watch import watch


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Look at jobs, and tell them what to do.", no_args_is_help=True)
    group.command("list")(list_jobs)
    tell = (cancel, pause, resume, retry, skip, compensate, abandon_undo, fork, send)
    for command in (show, watch, *tell):
        group.command()(command)
    app.add_typer(group, name="jobs")
