"""Who waits: one small interface for processes and for plain asyncio tasks.

A wait in the kernel is always the same loop:
look at the state; if it is not yet so, `yield waiter.pause()` and look again.
Whoever changes the state calls `wake`.
Nothing is handed over with the wake-up, so nothing is lost when the waiter is cancelled instead,
and a wake-up too many does no harm.
"""

import asyncio
import sys
from contextvars import ContextVar
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from perdure.base.errors import NoProcess, NotInProcess

if TYPE_CHECKING:
    from perdure.process.process import Process


class State(IntEnum):
    """Where a process stands."""

    READY = 0  # in the scheduler's queue
    RUNNING = 1  # its coroutine is being stepped right now
    PARKED = 2  # waits in the kernel, until somebody wakes it
    WAITING = 3  # waits for an asyncio future, or for the next turn of the loop
    ENDING = 4  # its coroutine has finished, tasks that it started have not
    DEAD = 5


# Enum members are compared slowly; the hot paths use plain integers.
READY, RUNNING, PARKED, WAITING, ENDING, DEAD = map(int, State)


_tasks: Any = asyncio.tasks


class _RunningTasks:
    """The same as the dict of older versions, which is asyncio's own."""

    def __setitem__(self, loop: asyncio.AbstractEventLoop, task: object) -> None:
        _tasks._swap_current_task(loop, task)  # noqa: SLF001

    def pop(self, loop: asyncio.AbstractEventLoop, default: None = None) -> None:
        _tasks._swap_current_task(loop, default)  # noqa: SLF001


# What runs now on each loop: where `asyncio.current_task` looks.
# Written directly, since leaving and entering by asyncio's hooks costs a tenth of a short step.
RUNNING_TASKS: Any = (
    _RunningTasks() if sys.version_info >= (3, 14) else _tasks._current_tasks  # noqa: SLF001
)


class Park:
    """What a process yields to its scheduler to be left alone until somebody wakes it."""

    __slots__ = ()


PARK = Park()


class Waiter:
    """Something that can pause itself and be woken."""

    __slots__ = ()

    def pause(self) -> object:
        """Give what must be yielded to pause."""
        raise NotImplementedError

    def wake(self) -> None:
        """Make it look at the state again, soon."""
        raise NotImplementedError


NOBODY = Waiter()


class TaskWaiter(Waiter):
    """An asyncio task that waits: it pauses on a future of its own."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] | None = None

    def pause(self) -> object:
        future: Any = self.loop.create_future()
        # The mark by which a task knows a future that was yielded by an await.
        future._asyncio_future_blocking = True  # noqa: SLF001
        self.future = future
        return future

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


# Who am I: the process that the running code belongs to.
#
# A context variable, so that tasks, callbacks and generators which a process starts belong to it.

CURRENT: ContextVar["Process"] = ContextVar("perdure.process")

# `CURRENT.get` and `CURRENT.set`, bound once: by their own names they are half as dear.
own_process = CURRENT.get
set_process = CURRENT.set


def current(verb: str = "this") -> "Process":
    """Give the running process.

    Raises:
        NotInProcess: the code runs outside of any process.
        NoProcess: the process was abandoned, or has ended and left this code behind.
    """
    process = own_process(None)
    if process is None:
        raise NotInProcess(verb)
    if process.pid.target is None:
        raise NoProcess(process.pid, verb)
    return process


def current_waiter() -> Waiter:
    """Give the waiter for the code that is running now: the process itself, or a task in it.

    While a process is RUNNING no task of it can run, so its state tells the two apart.
    """
    process = own_process(None)
    if process is not None and process.state == RUNNING:
        return process
    try:
        return TaskWaiter(asyncio.get_running_loop())
    except RuntimeError:
        raise NotInProcess("waiting") from None
