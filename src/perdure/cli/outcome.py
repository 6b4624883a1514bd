"""Runs what a command does, and makes of its error a sentence and an exit code."""

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import typer

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
from perdure.cli.output import Code, refuse
from perdure.jobs.state import JobState
from perdure.process.run import run

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
    """Give the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.FAILED)


def code_of_end(state: JobState) -> Code:
    """Give the exit code for the state that a job was waited for."""
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
