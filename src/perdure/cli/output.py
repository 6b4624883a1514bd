"""How commands print, for people or for programs, and which exit codes they return.

All output goes through here, because no text of a job or a person may reach a terminal as it is: it
could move the cursor, or contain markup of `rich`.
"""

import asyncio
import importlib
import json
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum, StrEnum
from typing import IO, Annotated, Any, Final, NoReturn, TypeAlias, TypeVar, cast

import typer
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from perdure.base.errors import (
    ArgumentError,
    DecisionRefused,
    IllegalTransition,
    JobError,
    KeyConflict,
    PlanError,
    SchemaError,
    UnknownName,
    Unstorable,
)
from perdure.base.secret import without_secrets
from perdure.base.visible import visible, visible_json
from perdure.jobs.state import JobState

_LINE_BREAK = visible("\n")


class Format(StrEnum):
    """The format of the output: for people or for programs."""

    TABLE = "table"
    JSON = "json"  # one document
    JSONL = "jsonl"  # one document in each line
    IDS = "ids"  # one id in each line, as other commands read them from `-`


FormatOption: TypeAlias = Annotated[
    Format, typer.Option("--output", "-o", help="A table for people, or a format for programs.")
]

# `perdure --quiet`: no sentences for people, only what was asked for, and errors.
quiet: Final[ContextVar[bool]] = ContextVar("quiet", default=False)


class Code(IntEnum):
    """The exit codes of commands."""

    OK = 0
    FAILED = 1  # it failed
    USAGE = 2  # invalid options, files or entries
    NOT_RUNNING = 3  # no `perdure up` is running
    NOT_FOUND = 4  # no such job, step or store
    CONFLICT = 5  # the state of the job does not allow it, or the key belongs to another job
    TIMED_OUT = 6  # the timeout of a wait has passed; the job continues
    JOB_FAILED = 7  # the awaited job failed, or needs a person
    JOB_UNDONE = 8  # the awaited job was cancelled, or undone
    SCHEMA = 10  # the schema of the store does not fit this version
    INTERRUPTED = 130  # by Ctrl-C


def refuse(text: str, code: Code) -> NoReturn:
    """Exit with a message on standard error."""
    warn(text)
    raise typer.Exit(code)


def warn(text: str) -> None:
    """Print a message on standard error; its further lines are indented, unlike any of ours."""
    shown = visible(without_secrets(text), None, lines=True).replace("\n", "\n  ")
    typer.echo(f"perdure: {shown}", err=True)


def say(*lines: str, err: bool = False) -> None:
    """Print sentences for people, unless they want it quiet."""
    if lines and not quiet.get():
        show(*lines, err=err)


def say_new(id: str, sentence: str) -> None:
    """Print a sentence about something new; only its id, which was asked for, if quiet."""
    show(id if quiet.get() else sentence)


def show(*lines: str, err: bool = False) -> None:
    """Print lines that were asked for; each text stays on one line, whatever it contains."""
    shown = (visible(line, None, lines=True).replace("\n", _LINE_BREAK) for line in lines)
    typer.echo("\n".join(shown), err=err)


def counted(number: int, thing: str) -> str:
    """Return a number with its noun: "1 job", "2 jobs", "3 entries"."""
    if number == 1:
        return f"1 {thing}"
    return f"{number:,} {thing[:-1]}ies" if thing.endswith("ry") else f"{number:,} {thing}s"


def give(value: Any, indent: int | None = None) -> None:
    """Print a value as JSON, for programs."""
    typer.echo(as_json(value, indent))


def give_list(rows: Sequence[Mapping[str, Any]], output: Format, key: str = "id") -> bool:
    """Print rows for programs; return False if people are to see them instead."""
    match output:
        case Format.TABLE:
            return False
        case Format.JSON:
            give(rows, indent=2)
        case Format.JSONL:
            for row in rows:
                give(row)
        case Format.IDS:
            for row in rows:
                show(str(row[key]))
    return True


def give_table(
    rows: Sequence[Mapping[str, Any]],
    output: Format,
    draw: Callable[[], RenderableType],
    *,
    empty: str,
    key: str = "id",
) -> None:
    """Print rows for programs, as a table for people, or say that there are none."""
    if give_list(rows, output, key):
        return
    if rows:
        console().print(draw())
    else:
        say(empty)


def give_one(value: Mapping[str, Any], output: Format, key: str = "id") -> bool:
    """Print one thing for programs; return False if people are to see it instead."""
    if output is Format.JSON:
        give(value, indent=2)
        return True
    return give_list([value], output, key)


def pour(text: str) -> None:
    """Print a text as it is, with its own line breaks and without another one at its end."""
    typer.echo(visible(text, None, lines=True), nl=False)


def pour_json(text: str) -> None:
    """Print what is JSON already, without a line break at its end."""
    typer.echo(visible_json(text), nl=False)


def console(file: IO[str] | None = None) -> Console:
    """Return a console that interprets no text as markup."""
    return Console(file=file, markup=False, emoji=False, highlight=False)


def cell(text: str, style: str = "", **layout: Any) -> Text:
    """Return a text for tables, with invisible characters spelled out."""
    return Text(visible(text, None), style=style, **layout)


def block(text: str, style: str = "") -> RenderableType:
    """Return a text of several lines; all of them are indented, unlike any of ours."""
    shown = Text(visible(text, None, lines=True), style=style)
    return Padding(shown, (0, 0, 0, 2))  # also what is too long for one line


def as_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON; values that JSON does not know become strings."""
    return visible_json(json.dumps(value, ensure_ascii=False, default=str, indent=indent))


class WorkDone:
    """How much of some work is done, as `progress` shows it."""

    def __init__(self) -> None:
        self.done = 0
        self.total: int | None = None

    def set(self, done: int, total: int) -> None:
        """Record how much is done of how much."""
        self.done, self.total = done, total


@contextmanager
def progress(text: str) -> Generator[WorkDone]:
    """Show on a terminal how much of some work is done; elsewhere, and if quiet, nothing.

    What is yielded may be changed as often as one likes: it is looked at a few times a second.
    """
    work = WorkDone()
    screen = Console(stderr=True, markup=False, emoji=False, highlight=False)
    if quiet.get() or not screen.is_terminal:
        yield work
        return
    # Loaded here: programs, which have no terminal, need not wait for it.
    shown = importlib.import_module("perdure.cli.progress_bar").ShownProgress(text, work)
    with shown.on(screen):
        yield work


# Running a command: an error becomes a message and an exit code.

T = TypeVar("T")

# The first match counts.
_CODES: Final[tuple[tuple[type[Exception], Code], ...]] = (
    (ArgumentError, Code.USAGE),
    (PlanError, Code.USAGE),
    (UnknownName, Code.USAGE),
    (Unstorable, Code.USAGE),
    (LookupError, Code.NOT_FOUND),
    (KeyConflict, Code.CONFLICT),
    (IllegalTransition, Code.CONFLICT),
    (DecisionRefused, Code.CONFLICT),
    (TimeoutError, Code.TIMED_OUT),
    (SchemaError, Code.SCHEMA),
)

_ENDS: Final = {
    JobState.COMPLETED: Code.OK,
    JobState.CANCELLED: Code.JOB_UNDONE,
    JobState.COMPENSATED: Code.JOB_UNDONE,
}


def code_of(error: Exception) -> Code:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.FAILED)


def code_of_end(state: JobState) -> Code:
    """Return the exit code for the state in which an awaited job ended."""
    return _ENDS.get(state, Code.JOB_FAILED)


def perform(body: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run the body of a command; exit with a message if it fails."""
    return settle(lambda: asyncio.run(settled(body, args)))


def settle(run: Callable[[], tuple[T | None, Exception | None]]) -> T:
    """Return what a body returned; exit with a message if it failed, or at Ctrl-C."""
    try:
        value, error = run()
    except KeyboardInterrupt:
        raise typer.Exit(Code.INTERRUPTED) from None
    if isinstance(error, typer.Exit):
        raise error
    if error is not None:
        refuse(str(error), code_of(error))
    return cast("T", value)


async def settled(
    body: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...]
) -> tuple[T | None, Exception | None]:
    """Return the error as a value: it is an answer to the user, not a crash of a process."""
    try:
        return await body(*args), None
    except (JobError, TimeoutError, LookupError, typer.Exit) as error:
        if isinstance(error, KeyError | IndexError):  # a bug of ours
            raise
        return None, error
