"""Who collects the result of a process: a task, or a stream.

A collector is told of the end before links are,
so that an owner who waits for exactly this takes the failure there and does not die of it.
"""

from typing import Any

from perdure.base.pid import Pid
from perdure.base.result import Exited, Ok
from perdure.process.event import ExitResult
from perdure.process.exits import LEFT
from perdure.process.process import Process
from perdure.process.signal import unlink

Ended = Exited[BaseException | None]


class Started:
    """The collector of a process whose result nobody wants: it only knows the callers."""

    __slots__ = ("callers",)

    def __init__(self, callers: tuple[Pid, ...]) -> None:
        self.callers = callers

    def collect(self, process: Process, outcome: ExitResult) -> None:
        """Drop the result."""


def callers_of(process: Process) -> tuple[Pid, ...]:
    """Name those on whose behalf a process works: who made its task, who made theirs, and so on."""
    return () if process.collector is None else process.collector.callers


def result_of(outcome: ExitResult) -> Ok[Any] | Ended:
    """Give how a process ended as a result; only a return is a value."""
    if outcome.error is None and outcome is not LEFT:
        return Ok(outcome.value)
    return Exited(outcome.error)


def consume_link(owner: Process | None, process: Process) -> bool:
    """Take the failure of a linked process out of its link; tell whether there was one to take.

    A trapping owner keeps the link: it asked to be told by an event.
    """
    if owner is None or owner.trap_links or process.bonds is None:
        return False
    if owner not in (process.bonds.links or ()):
        return False
    _cut(owner, process)
    return True


def _cut(owner: Process, process: Process) -> None:
    if owner.bonds is not None:
        owner.bonds.drop_link(process)
    if process.bonds is not None:
        process.bonds.drop_link(owner)


def untie(owner: Process, pid: Pid) -> None:
    """End the link of an owner to its process, and forget a notice of it."""
    unlink(owner, pid, flush=True)
