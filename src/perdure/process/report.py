"""Reports of crashes and hanging processes that a person can act on, through `logging`."""

import io
import logging
import textwrap
import traceback
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import cast

from perdure.base.duration import spell
from perdure.base.errors import describe, safe_text
from perdure.process.process import Process
from perdure.process.waiter import ENDING

_log = logging.getLogger("perdure.process")

_ARGUMENT_WIDTH = 80
_OURS = str(Path(__file__).parent.parent)


def report_crash(process: Process, error: BaseException) -> None:
    """Log the crash of a process: what ran, why it failed, who started it, and where it broke."""
    if not process.runtime.settings.report_crashes:
        return
    _log.error(
        "process %s crashed: %s\n%s%s",
        process.pid,
        describe(error),
        _circumstances(process),
        _trace_of(error),
    )


def report_abandoned(process: Process) -> None:
    """Log that a process, or a task that it started, did not end."""
    tasks = process.get_relations().tasks or ()
    stack = io.StringIO()
    process.print_stack(file=stack)
    for task in tasks:
        task.print_stack(file=stack)
    _log.warning(
        "process %s %s abandoned.\n"
        "It catches CancelledError and keeps waiting: let the exception propagate.\n%s"
        "it waits at:\n%s",
        process.pid,
        "ended, but a task that it started did not; that is"
        if process.state == ENDING
        else "was killed and did not end; it is",
        _circumstances(process),
        stack.getvalue().rstrip(),
    )


def _circumstances(process: Process) -> str:
    age = process.runtime.now() - process.spawned_at
    relations = process.get_relations()
    lines = [f"function: {call_of(process)}", f"started by: {_starter_of(process)}"]
    if process.collector is not None and process.collector.callers[:1] != (process.parent,):
        lines.append(f"on behalf of: {', '.join(map(str, process.collector.callers))}")
    if relations.supervision is not None:
        lines.append(f"supervised by: {relations.supervision.describe()}")
    since = moment(process, age)
    names = ", ".join(relations.names or ()) or "none"
    lines.append(f"lived: {spell(round(age, 3))}, since {since}, name: {names}")
    return "".join(f"  {line}\n" for line in lines)


def _starter_of(process: Process) -> str:
    if process.parent is None:
        return "the runtime"
    parent: Process | None = process.parent.target
    if parent is None:
        return f"{process.parent}, which is dead"
    names = parent.relations.names if parent.relations is not None else None
    return f"{parent.pid} {', '.join(names or ()) or name_of(parent)}"


def moment(process: Process, age: float) -> str:
    """Return the wall-clock time at which something of this age in seconds began, as text."""
    began = datetime.fromtimestamp(process.runtime.clock.time() - age, tz=UTC)
    return f"{began:%Y-%m-%d %H:%M:%S}Z"


def _trace_of(error: BaseException) -> str:
    """Return the traceback as text, without the kernel's frames before the user's."""
    told = traceback.TracebackException.from_exception(error)
    left: list[traceback.TracebackException | None] = [told]
    while left:
        each = left.pop()
        if each is not None:
            _skip_our_frames(each.stack)
            left += (each.__cause__, each.__context__, *(each.exceptions or ()))
    return textwrap.indent("".join(told.format()).rstrip(), "  ")


def _skip_our_frames(stack: traceback.StackSummary) -> None:
    ours = 0
    while ours < len(stack) and stack[ours].filename.startswith(_OURS):
        ours += 1
    if ours < len(stack):  # otherwise the error is the kernel's own
        del stack[:ours]


def call_of(process: Process) -> str:
    """Return the call that started a process, as code, with long arguments cut."""
    return f"{name_of(process)}({', '.join(filter(None, map(_short, process.args)))})"


def name_of(process: Process) -> str:
    """Return the name of the function of a process, with its module."""
    function: object = process.function
    while isinstance(function, partial):
        function = cast("partial[object]", function).func
    module = getattr(function, "__module__", "?")
    return f"{module}.{getattr(function, '__qualname__', repr(function))}"


def _short(argument: object) -> str:
    is_named = isinstance(argument, FunctionType | type)
    text = argument.__qualname__ if is_named else safe_text(argument)
    return text if len(text) <= _ARGUMENT_WIDTH else text[: _ARGUMENT_WIDTH - 1] + "…"
