"""Waiters: one small interface for processes and for plain asyncio tasks.

A wait in the kernel is always the same loop: look at the state, and if it is not yet as wanted,
`yield waiter.pause()` and look again. Code that changes the state calls `wake`.
The wake-up itself carries nothing. So nothing is lost when the waiter is cancelled between the
wake-up and its next step, and a spurious wake-up does no harm.
"""

import asyncio
import sys
from contextvars import ContextVar
from enum import IntEnum
from typing import Any

from perdure.base.errors import NotInProcess


class State(IntEnum):
    """The state of a process."""

    READY = 0  # in the scheduler's queue
    RUNNING = 1  # its coroutine is being stepped right now
    PARKED = 2  # waits in the kernel until somebody wakes it
    WAITING = 3  # waits for an asyncio future, or for the next turn of the loop
    ENDING = 4  # its coroutine has finished, tasks that it started have not
    DEAD = 5


# Enum members are compared slowly; the hot paths use plain integers.
READY, RUNNING, PARKED, WAITING, ENDING, DEAD = map(int, State)


_tasks: Any = asyncio.tasks


class _RunningTasks:
    """Does for Python 3.14 what a dict of asyncio did in older versions."""

    def __setitem__(self, loop: asyncio.AbstractEventLoop, task: object) -> None:
        _tasks._swap_current_task(loop, task)  # noqa: SLF001

    def pop(self, loop: asyncio.AbstractEventLoop, default: None = None) -> None:
        _tasks._swap_current_task(loop, default)  # noqa: SLF001


# What runs now on each loop: where `asyncio.current_task` looks.
# Written directly, since entering and leaving by asyncio's hooks costs a tenth of a short step.
RUNNING_TASKS: Any = (
    _RunningTasks() if sys.version_info >= (3, 14) else _tasks._current_tasks  # noqa: SLF001
)


class Park:
    """What a process yields to its scheduler in order to sleep until somebody wakes it."""

    __slots__ = ()


PARK = Park()


class Waiter:
    """Something that can pause itself and be woken."""

    __slots__ = ()

    def pause(self) -> object:
        """Return what the code must yield to pause."""
        raise NotImplementedError

    def wake(self) -> None:
        """Make the code look at the state again, soon."""
        raise NotImplementedError


NO_WAITER = Waiter()


class TaskWaiter(Waiter):
    """An asyncio task that waits: it pauses on a future of its own."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] | None = None

    def pause(self) -> object:
        future: Any = self.loop.create_future()
        # The mark by which a task recognises a future that was yielded by an await.
        future._asyncio_future_blocking = True  # noqa: SLF001
        self.future = future
        return future

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


# The process that the running code belongs to. It is a context variable, so that tasks, callbacks
# and generators which a process starts belong to it too. Untyped here, below the process;
# `process.current` returns it with its type.
CURRENT: ContextVar[Any] = ContextVar("perdure.process")

# `CURRENT.get` and `CURRENT.set`, bound once: that halves their cost.
own_process = CURRENT.get
set_process = CURRENT.set


def current_waiter() -> Waiter:
    """Return the waiter for the code that runs now: the process itself, or a task inside it.

    While a process is RUNNING no task of it can run, so its state tells the two apart.
    """
    process = own_process(None)
    if process is not None and process.state == RUNNING:
        return process
    try:
        return TaskWaiter(asyncio.get_running_loop())
    except RuntimeError:
        raise NotInProcess("waiting") from None
