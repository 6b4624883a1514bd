"""How a process ends: exit reasons, and the exceptions that carry an end out of user code; pure.

A reason is None for a normal end, and otherwise an exception.
`Shutdown` is a planned end, `Killed` a forced one, `LinkedProcessDown` the end of a linked process;
any other exception is a crash.
"""

from collections.abc import Callable
from typing import Any

from perdure.base.errors import Killed, LinkedProcessDown, Shutdown
from perdure.base.pid import Pid
from perdure.process.event import ExitResult

# The outcome of `exit(None)`: a normal end without a value. It is compared by identity, since
# `return None` is a normal end too, and only `exit` ends a task or a server without a result.
EXIT_WITHOUT_VALUE = ExitResult()

# Reasons without a crash report: the end was planned, or its cause has been reported already.
UNREPORTED = (Shutdown, Killed, LinkedProcessDown)


class ExitNow(BaseException):
    """Carries `exit()` out of the user's code; the outcome is set before it is raised."""


class Upgrade(BaseException):
    """Carries `upgrade()` out of the user's code."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__(function)
        self.function = function
        self.args = args


def linked_reason(dead: Pid, reason: BaseException) -> BaseException:
    """Return the reason with which the death of `dead` ends a process that is linked to it.

    A shutdown passes unchanged. Any other reason is wrapped: if many processes shared one
    exception object, each of them would extend its traceback.
    """
    return reason if isinstance(reason, Shutdown) else LinkedProcessDown(dead, reason)


def same_reason(one: BaseException | None, other: BaseException | None) -> bool:
    """Whether two reasons are the same, even if one of them crossed between OS processes."""
    return one is other or (
        type(one) is type(other) and getattr(one, "args", ()) == getattr(other, "args", ())
    )
