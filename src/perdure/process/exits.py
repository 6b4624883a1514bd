"""How a process ends: the pure part."""

from asyncio import CancelledError
from collections.abc import Callable
from typing import Any

from perdure.base.errors import Killed, LinkedProcessDown, Shutdown
from perdure.base.pid import Pid
from perdure.process.event import ExitResult


class ExitNow(BaseException):
    """Carries `exit()` out of the user's code; what it means is decided before it is raised."""


class Upgrade(BaseException):
    """Carries `upgrade()` out of the user's code."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__(function)
        self.function = function
        self.args = args


# The outcome of `exit(None)`: a normal end, without even the value None.
LEFT = ExitResult()


def reason_of(error: BaseException) -> BaseException:
    """Give the exit reason for what came out of a process's code."""
    if isinstance(error, CancelledError):
        return Killed("its task was cancelled")
    return error


def spread(dead: Pid, reason: BaseException) -> BaseException:
    """Give the reason with which the death of `dead` ends a process that is linked to it.

    A shutdown passes unchanged; any other reason is wrapped,
    since one exception object must not end up in the traceback of many.
    """
    return reason if isinstance(reason, Shutdown) else LinkedProcessDown(dead, reason)


def same_reason(one: BaseException | None, other: BaseException | None) -> bool:
    """Tell whether two reasons are one, be it that one of them came from another OS process."""
    return one is other or (
        type(one) is type(other) and getattr(one, "args", ()) == getattr(other, "args", ())
    )


# Ends that need no crash report: planned, or told already at their cause.
SILENT = (Shutdown, Killed, LinkedProcessDown)
