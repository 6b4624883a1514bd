"""How commands speak: for people or for programs, and by exit codes that mean something.

Everything that a command shows goes out by here, because nothing that a job or a person wrote may
reach a terminal as it is: it could move the cursor, or be taken for the markup of `rich`.
"""

import io
import json
import threading
from collections.abc import Callable, Coroutine
from enum import IntEnum, StrEnum
from typing import IO, Annotated, Any, Final, NoReturn, TextIO, TypeAlias, TypeVar

import typer
from rich.console import Console
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
from perdure.process.runtime import run

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
    """Return a value to programs."""
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


# Runs what a command does, and makes of its error a sentence and an exit code.

T = TypeVar("T")

# The first that fits counts.
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
    """Return the exit code for the state that a job was waited for."""
    return _ENDS.get(state, Code.JOB_FAILED)


def perform(body: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run the body of a command as the root process; what it cannot do ends the command."""
    try:
        value, error = run(_settled, body, args)
    except KeyboardInterrupt:
        raise typer.Exit(Code.INTERRUPTED) from None
    if isinstance(error, typer.Exit):
        raise error
    if error is not None:
        refuse(str(error), code_of(error))
    return value


async def _settled(
    body: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...]
) -> tuple[T | None, Exception | None]:
    """Take the error as a value: it is an answer to the user, no crash of a process."""
    try:
        return await body(*args), None
    except (JobError, TimeoutError, LookupError, typer.Exit) as error:
        if isinstance(error, KeyError | IndexError):  # a mistake of ours
            raise
        return None, error


# Standard output, a line at a time: what threads print does not get mixed up within lines.


class WholeLines(io.TextIOBase):
    """Passes on whole lines only, each at once.

    `print` writes a text and the end of its line one after the other,
    and another thread may come between.
    """

    def __init__(self, below: TextIO) -> None:
        """Write to another stream, whose end also ends what is left of a line."""
        self._below = below
        self._lock = threading.Lock()
        self._begun = threading.local()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The encoding of the stream below."""
        return self._below.encoding

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._below.isatty()

    def fileno(self) -> int:
        return self._below.fileno()

    def write(self, text: str, /) -> int:
        lines, end, rest = (getattr(self._begun, "text", "") + text).rpartition("\n")
        self._begun.text = rest
        if end:
            self._pass_on(lines + end)
        return len(text)

    def flush(self) -> None:
        begun, self._begun.text = getattr(self._begun, "text", ""), ""
        if not self._below.closed:  # it may have gone before this one is collected
            self._pass_on(begun)

    def _pass_on(self, text: str) -> None:
        with self._lock:
            self._below.write(text)
            self._below.flush()
