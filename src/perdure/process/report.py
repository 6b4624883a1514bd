"""Reports that a person can act on, through the standard `logging`."""

import io
import logging
import traceback
from typing import TYPE_CHECKING

from perdure.base.duration import spell
from perdure.base.errors import describe, safe_text
from perdure.process.tasklike import ENDING

if TYPE_CHECKING:
    from perdure.process.process import Process

_log = logging.getLogger("perdure.process")

_ARGUMENT_WIDTH = 80


def report_crash(process: "Process", error: BaseException) -> None:
    """Log the end of a process that failed: what, why, who started it, and where it broke."""
    if not process.runtime.settings.report_crashes:
        return
    _log.error(
        "process %s crashed: %s\n%s%s",
        process.pid,
        describe(error),
        _circumstances(process),
        "".join(traceback.format_exception(error)).rstrip(),
    )


def report_abandoned(process: "Process") -> None:
    """Log that a process, or a task that it started, would not end."""
    tasks = process.tie().tasks or ()
    stack = io.StringIO()
    process.print_stack(file=stack)
    for task in tasks:
        task.print_stack(file=stack)
    _log.warning(
        "process %s %s abandoned.\n"
        "It catches CancelledError and goes on waiting: let it end there instead.\n%s"
        "it waits at:\n%s",
        process.pid,
        "ended, but a task that it started did not; that is"
        if process.state == ENDING
        else "was killed and did not end; it is",
        _circumstances(process),
        stack.getvalue().rstrip(),
    )


def _circumstances(process: "Process") -> str:
    age = spell(round(process.runtime.now() - process.born, 3))
    bonds = process.tie()
    names = ", ".join(bonds.names or ()) or "none"
    supervised = f"  supervised by: {bonds.supervision()}\n" if bonds.supervision else ""
    return (
        f"  function: {call_of(process)}\n"
        f"  started by: {process.parent or 'the runtime'}\n"
        f"{supervised}"
        f"  lived: {age}, name: {names}\n"
    )


def call_of(process: "Process") -> str:
    """Spell the call that started a process, as code, with long arguments cut."""
    function = process.function
    module = getattr(function, "__module__", "?")
    name = getattr(function, "__qualname__", repr(function))
    return f"{module}.{name}({', '.join(map(_short, process.args))})"


def _short(argument: object) -> str:
    text = safe_text(argument)
    return text if len(text) <= _ARGUMENT_WIDTH else text[: _ARGUMENT_WIDTH - 1] + "…"
