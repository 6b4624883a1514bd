"""Who am I: the process that the running code belongs to.

A context variable, so that tasks, callbacks and generators which a process starts belong to it.
"""

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING

from perdure.base.errors import NoProcess, NotInProcess
from perdure.process.tasklike import RUNNING
from perdure.process.waiter import TaskWaiter, Waiter

if TYPE_CHECKING:
    from perdure.process.process import Process

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
