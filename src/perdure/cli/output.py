"""How commands speak: for people or for programs, and by exit codes that mean something.

Everything that a command shows goes out by here, because nothing that a job or a person wrote may
reach a terminal as it is: it could move the cursor, or be taken for the markup of `rich`.
"""

import json
from enum import IntEnum, StrEnum
from typing import IO, Annotated, Any, NoReturn, TypeAlias

import typer
from rich.console import Console
from rich.text import Text

from perdure.base.scrub import without_secrets
from perdure.base.visible import visible, visible_json

_LINE_BREAK = visible("\n")


class Format(StrEnum):
    """For whom the output of a command is."""

    TABLE = "table"
    JSON = "json"


FormatOption: TypeAlias = Annotated[
    Format, typer.Option("--output", "-o", help="For people, or for programs.")
]


class Code(IntEnum):
    """What the exit code of a command says."""

    OK = 0
    FAILED = 1  # it was tried, and failed
    USAGE = 2  # what was asked for is wrong: options, files, entries
    NOT_RUNNING = 3  # nothing that could answer runs
    NOT_FOUND = 4  # no such job, step or store
    CONFLICT = 5  # the job is not in a state for that, or the key is another job's
    TIMED_OUT = 6  # it was waited for so long, and goes on
    JOB_FAILED = 7  # the job that was waited for has failed, or needs a person
    JOB_UNDONE = 8  # … was cancelled, or undone
    SCHEMA = 10  # the store's schema is not the one of this version
    INTERRUPTED = 130  # by Ctrl-C


def refuse(text: str, code: Code) -> NoReturn:
    """End the command with a sentence on standard error."""
    warn(text)
    raise typer.Exit(code)


def warn(text: str) -> None:
    """Say a sentence on standard error; further lines of it are indented, as no line of ours is."""
    shown = visible(without_secrets(text), None, lines=True).replace("\n", "\n  ")
    typer.echo(f"perdure: {shown}", err=True)


def say(*lines: str, err: bool = False) -> None:
    """Say something to people; each text is one line, whatever is in it."""
    shown = (visible(line, None, lines=True).replace("\n", _LINE_BREAK) for line in lines)
    typer.echo("\n".join(shown), err=err)


def give(value: Any, indent: int | None = None) -> None:
    """Give a value to programs."""
    typer.echo(as_json(value, indent))


def console(file: IO[str] | None = None) -> Console:
    """Make the console of a command; it takes no text for markup."""
    return Console(file=file, markup=False, emoji=False, highlight=False)


def cell(text: str, style: str = "", *, lines: bool = False, **look: Any) -> Text:
    """Make a text for tables; nothing hides in it."""
    return Text(visible(text, None, lines=lines), style=style, **look)


def as_json(value: Any, indent: int | None = None) -> str:
    """Spell a value for programs; what JSON does not know is spelled as text."""
    return visible_json(json.dumps(value, ensure_ascii=False, default=str, indent=indent))
