"""The command `perdure`; each of its commands is a module of its own.

Only the module of the given command is imported, so that none is slowed down by what only another
one needs; `--help` imports them all.
"""

import importlib
import sys
from typing import Annotated

import typer

from perdure import __version__

# Each module has a function `add_to(app)` that adds its command.
COMMANDS = {
    "demo": "perdure.cli.demo.command",
    "worker": "perdure.cli.worker",
    "workers": "perdure.cli.workers",
    "queues": "perdure.cli.queues",
    "schedules": "perdure.cli.schedules",
    "submit": "perdure.cli.submit",
    "jobs": "perdure.cli.jobs.commands",
    "approvals": "perdure.cli.approvals",
    "effects": "perdure.cli.effects",
    "doctor": "perdure.cli.doctor",
    "up": "perdure.cli.up",
    "tree": "perdure.cli.tree",
    "shell": "perdure.cli.shell",
    "serve": "perdure.cli.serve",
}


def main() -> None:
    """Run the command line."""
    given = [word for word in sys.argv[1:2] if word in COMMANDS]
    make_app(*given or COMMANDS)()


def make_app(*names: str) -> typer.Typer:
    """Return the app with these commands."""
    app = typer.Typer(
        help="Supervised processes and durable jobs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)  # with a callback, a single command still needs its name
    for name in names:
        importlib.import_module(COMMANDS[name]).add_to(app)
    return app


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it
    if wanted:
        typer.echo(f"perdure {__version__}")
        raise typer.Exit


def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take the options before the command."""
