"""Tasks whose result nobody took: who made them, and where, told when their owner ends.

Also tasks that live so long that they should be something else.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any, Protocol

from perdure.base import telemetry
from perdure.base.duration import spell
from perdure.base.errors import is_normal, is_planned
from perdure.base.pid import Pid
from perdure.process.bonds import Bonds
from perdure.process.process import Process
from perdure.process.report import call_of

UNCOLLECTED_EVENT = ("perdure", "task", "uncollected")
LONG_EVENT = ("perdure", "task", "long")

_SHOWN = 10  # a report is read by a person

_log = logging.getLogger("perdure.task")


class Place:
    """A line of code: where a task was made."""

    __slots__ = ("_code", "_line")

    def __init__(self, frame: FrameType) -> None:
        # Not the frame itself: it would keep everything that the function knows.
        self._code: CodeType = frame.f_code
        self._line = frame.f_lineno

    def __str__(self) -> str:
        return f"{self._code.co_filename}:{self._line} in {self._code.co_qualname}"


def place_of_caller(depth: int) -> Place:
    """Give the line that called, so many calls above the function which asks."""
    look: Callable[[int], FrameType] = getattr(sys, "_getframe")  # noqa: B009 - see below
    # `inspect.stack` would look at every frame, and read their files.
    return Place(look(depth + 1))


class Owed(Protocol):
    """A task, as far as a report of it needs."""

    @property
    def ended(self) -> bool:
        """Whether it has a result that nobody took."""
        ...

    def story(self) -> str:
        """What it runs, and where it was made."""
        ...


def remember(owner: Process, task: Owed) -> None:
    """Note that an owner must ask for a result."""
    bonds = owner.tie()
    if bonds.uncollected is None:
        bonds.uncollected = {}
        bonds.at_death(partial(_owner_ends, owner.pid, bonds))
    bonds.uncollected[task] = None


def forget(owner: Process | None, task: Owed) -> None:
    """Note that an owner has asked, or need not any more."""
    if owner is not None and owner.bonds is not None and owner.bonds.uncollected is not None:
        owner.bonds.uncollected.pop(task, None)


def _owner_ends(pid: Pid, bonds: Bonds) -> None:
    owner: Process | None = pid.target
    tasks: list[Owed] = list(bonds.uncollected or ())
    if not tasks or owner is None or owner.outcome is None:
        return
    reason = owner.outcome.error
    if not is_planned(reason):
        return  # its failure is the story, and is told
    if not is_normal(reason):  # stopped from outside: what still ran is no mistake of it
        tasks = [task for task in tasks if task.ended]
    if tasks:
        _report(owner, tasks)


def _report(owner: Process, tasks: list[Owed]) -> None:
    telemetry.execute(UNCOLLECTED_EVENT, {"count": len(tasks)}, {"owner": owner.pid})
    more = len(tasks) - _SHOWN
    lines = [f"  {task.story()}" for task in tasks[:_SHOWN]]
    _log.warning(
        "process %s (%s) ended and never asked for the result of %d of its tasks:\n%s%s\n"
        "Await each task, or give it up with ignore() or shutdown(); "
        "if nobody wants the result, use Task.start().",
        owner.pid,
        call_of(owner),
        len(tasks),
        "\n".join(lines),
        f"\n  and {more} more" if more > 0 else "",
    )


class LongWatch:
    """Warns once of a task that lives long; looked at by the time-outs of the runtime."""

    __slots__ = ("_pid", "_place", "timer")

    def __init__(self, pid: Pid, place: Place) -> None:
        self._pid = pid
        self._place = place
        self.timer: asyncio.TimerHandle | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing to warn of any more."""
        return self._pid.target is None

    def expire(self, limit: float) -> None:
        """Warn."""
        process: Process | None = self._pid.target
        if process is None:
            return
        telemetry.execute(LONG_EVENT, {"limit": limit}, {"pid": self._pid})
        _log.warning(
            "task %s (%s), made at %s, still runs after %s.\n"
            "If it is a loop without an end, make it a GenServer or a child of a supervisor: "
            "nobody restarts a task. If it is only slow, raise the setting `long_task`.",
            self._pid,
            call_of(process),
            self._place,
            spell(limit),
        )


def watch_length(process: Process, place: Place) -> None:
    """Warn if a task still runs after the time that the settings give."""
    limit = process.runtime.settings.long_task
    if limit is None:
        return
    watch: Any = LongWatch(process.pid, place)
    process.runtime.deadlines.add(limit, watch)
    if watch.timer is not None:  # a timer of its own must not outlive the task
        process.tie().at_death(watch.timer.cancel)
