"""Who am I: the process that the running code belongs to.

A context variable, so that tasks, callbacks and generators which a process starts belong to it.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING

from perdure.base.errors import NoProcess, NotInProcess

if TYPE_CHECKING:
    from perdure.process.process import Process

CURRENT: ContextVar["Process"] = ContextVar("perdure.process")


def current(verb: str = "this") -> "Process":
    """Give the running process.

    Raises:
        NotInProcess: the code runs outside of any process.
        NoProcess: the process was abandoned, or has ended and left this code behind.
    """
    process = CURRENT.get(None)
    if process is None:
        raise NotInProcess(verb)
    if process.pid.target is None:
        raise NoProcess(process.pid, verb)
    return process
