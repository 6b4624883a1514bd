"""How commands speak: for people or for programs, and by exit codes that mean something."""

import json
from enum import IntEnum, StrEnum
from typing import Annotated, Any, NoReturn, TypeAlias

import typer


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
    typer.echo(f"perdure: {text}", err=True)
    raise typer.Exit(code)


def as_json(value: Any, indent: int | None = None) -> str:
    """Spell a value for programs; what JSON does not know is spelled as text."""
    return json.dumps(value, ensure_ascii=False, default=str, indent=indent)
