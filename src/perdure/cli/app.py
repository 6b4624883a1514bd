"""The command `perdure`; each of its commands is a module of its own.

Only the module of the given command is imported, so that none is slowed down by what only another
one needs; `--help` imports none.
"""

import importlib
import io
import os
import sys
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Final, NamedTuple

import typer

from perdure import __version__
from perdure.cli.config import apply
from perdure.cli.output import quiet


class CommandPlace(NamedTuple):
    """Where a command is: a module with a function `add_to(app)`, and what help says of it."""

    module: str
    help: str


# In the order of the help: begin, work, look, operate.
COMMANDS: Final = {
    "demo": CommandPlace(
        "perdure.cli.demo.command", "Kill workers, and show that nothing is lost."
    ),
    "init": CommandPlace("perdure.cli.init", "Write a starter project."),
    "dev": CommandPlace(
        "perdure.cli.dev", "Run an app, its worker and the dashboard; reload on changes."
    ),
    "worker": CommandPlace("perdure.cli.worker", "Run the jobs of an app until it is stopped."),
    "serve": CommandPlace("perdure.cli.serve", "Serve the HTTP API and the dashboard."),
    "submit": CommandPlace("perdure.cli.submit", "Submit a job."),
    "jobs": CommandPlace("perdure.cli.jobs.commands", "List, show, watch and control jobs."),
    "approvals": CommandPlace("perdure.cli.approvals", "List and answer what jobs ask people."),
    "effects": CommandPlace("perdure.cli.effects", "List and resolve effects of jobs."),
    "workers": CommandPlace("perdure.cli.workers", "List the workers that are alive."),
    "queues": CommandPlace("perdure.cli.queues", "List, pause and resume queues."),
    "schedules": CommandPlace("perdure.cli.schedules", "List, pause, resume and delete schedules."),
    "tokens": CommandPlace("perdure.cli.tokens", "Create, list and revoke tokens of the API."),
    "keys": CommandPlace("perdure.cli.keys", "Make and change the keys that encrypt payloads."),
    "audit": CommandPlace("perdure.cli.audit", "Read and check the audit log of the API."),
    "migrate": CommandPlace("perdure.cli.migrate", "Bring the schema of a store up to date."),
    "bench": CommandPlace("perdure.cli.bench", "Measure this machine and this store."),
    "doctor": CommandPlace("perdure.cli.doctor", "Check the machine, a store and its contents."),
    "config": CommandPlace("perdure.cli.config", "Show the settings, and where they come from."),
    "ops": CommandPlace("perdure.cli.ops", "Print files for operations: alerts, dashboard, units."),
    "up": CommandPlace("perdure.cli.up", "Start the services of a folder of entries."),
    "tree": CommandPlace("perdure.cli.tree", "Show the processes of a running `perdure up`."),
    "shell": CommandPlace("perdure.cli.shell", "Open a Python prompt inside a process."),
}


def main() -> None:
    """Run the command line."""
    with _whole_words(os.environ):
        words = _given_words()
        try:
            apply(os.environ)
        except typer.Exit as refused:
            sys.exit(refused.exit_code)
        command = next((word for word in words if word in COMMANDS), "")
        if command:
            make_app(command, only=_word_after(words, command))()
        else:
            _outline()()


def _given_words() -> list[str]:
    """Return the words of the command line; of one that the shell completes, those so far."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS")
    return sys.argv[1:] if line is None else line.split()[1:]


def _word_after(words: list[str], word: str) -> str:
    rest = words[words.index(word) + 1 :]
    return rest[0] if rest else ""


# Completion in bash


@contextmanager
def _whole_words(environ: MutableMapping[str, str]) -> Generator[None]:
    """Complete whole words within this block, if it is bash that asks.

    Bash takes `state:failed` for three words, since a colon ends a word. So the pieces are put
    together again for those who complete, and what they find is printed without the part of the
    word that bash keeps.
    """
    kept = _rejoin(environ) if "COMP_WORDS" in environ else ""
    if not kept:
        yield
        return
    found = io.StringIO()
    try:
        with redirect_stdout(found):
            yield
    finally:
        for line in found.getvalue().splitlines():
            sys.stdout.write(f"{line.removeprefix(kept)}\n")


def _rejoin(environ: MutableMapping[str, str]) -> str:
    """Put the words together that bash has cut; return what it keeps of the current one."""
    words, current = environ["COMP_WORDS"].split("\n"), int(environ.get("COMP_CWORD", "0"))
    whole: list[str] = []
    place, kept = current, ""
    for number, word in enumerate(words):
        follows = bool(whole) and (_is_colon(word) or whole[-1].endswith(":"))
        before = whole.pop() if follows else ""
        whole.append(before + word)
        if number == current:
            place, kept = len(whole) - 1, before + word if _is_colon(word) else before
    environ.update(COMP_WORDS="\n".join(whole), COMP_CWORD=str(place))
    return kept


def _is_colon(word: str) -> bool:
    return bool(word) and not word.strip(":")


# The app


def make_app(*names: str, only: str | None = None) -> typer.Typer:
    """Return the app with these commands, of groups perhaps with one of theirs only."""
    app = _empty_app()
    for name in names:
        module = importlib.import_module(COMMANDS[name].module)
        if name == "jobs":
            module.add_to(app, only)
        else:
            module.add_to(app)
    return app


def _outline() -> typer.Typer:
    """Return the app for its own help and completion, which names the commands and runs none."""
    app = _empty_app()
    for name, place in COMMANDS.items():
        app.command(name, help=place.help)(_nothing)
    return app


def _nothing() -> None:
    """Stand for a command."""


def _empty_app() -> typer.Typer:
    app = typer.Typer(
        help="Supervised processes and durable jobs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)  # with a callback, a single command still needs its name
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
    be_quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only what was asked for, and errors.")
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Print without colours, as NO_COLOR=1 does.")
    ] = False,
) -> None:
    """Take the options before the command."""
    quiet.set(be_quiet)
    if no_color:
        os.environ["NO_COLOR"] = "1"
