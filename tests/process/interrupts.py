"""The ways to end a process from outside."""

from collections.abc import Callable

from perdure import process
from perdure.errors import Shutdown
from perdure.process import Pid

Interrupt = Callable[[Pid], object]


def shut_down(pid: Pid) -> None:
    """Send an exit signal: the process may clean up."""
    process.exit(Shutdown(), pid)


def cancel_at_once(pid: Pid) -> None:
    """Cancel with a deadline that is now."""
    process.cancel(pid, 0)


INTERRUPTS: list[Interrupt] = [process.kill, shut_down, cancel_at_once]
