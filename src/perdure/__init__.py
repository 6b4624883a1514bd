"""Perdure: a fault-tolerant runtime for long-running Python work.

    import perdure
    from perdure import process

    async def main() -> None:
        pid = process.spawn_monitored(worker)
        ...

    perdure.run(main)

The kernel verbs are in `perdure.process`; everything else is here.
"""

from perdure import process
from perdure.base import telemetry
from perdure.base.backoff import Retry
from perdure.base.clock import Clock, SystemClock
from perdure.base.duration import Duration
from perdure.base.errors import (
    BadReturn,
    CallExit,
    CallTimeout,
    ChannelClosed,
    ChildError,
    Killed,
    LinkedProcessDown,
    MailboxFull,
    MaxChildren,
    NameTaken,
    NoProcess,
    NotInProcess,
    NotOwner,
    NotRegistered,
    ProcError,
    ProcessExit,
    Shutdown,
    SpawnError,
    StartError,
    TaskExit,
    TaskTimeout,
    is_normal,
    is_planned,
)
from perdure.base.pid import Pid, Ref
from perdure.base.result import Err, Exited, Ok
from perdure.base.retry import with_retry
from perdure.base.settings import Overflow, Settings
from perdure.process.channel import Channel, Selected, select
from perdure.process.run import run
from perdure.process.runtime import Runtime
from perdure.process.timer import after, sleep, ticker, timer

__version__ = "0.1.0"

__all__ = [
    "BadReturn",
    "CallExit",
    "CallTimeout",
    "Channel",
    "ChannelClosed",
    "ChildError",
    "Clock",
    "Duration",
    "Err",
    "Exited",
    "Killed",
    "LinkedProcessDown",
    "MailboxFull",
    "MaxChildren",
    "NameTaken",
    "NoProcess",
    "NotInProcess",
    "NotOwner",
    "NotRegistered",
    "Ok",
    "Overflow",
    "Pid",
    "ProcError",
    "ProcessExit",
    "Ref",
    "Retry",
    "Runtime",
    "Selected",
    "Settings",
    "Shutdown",
    "SpawnError",
    "StartError",
    "SystemClock",
    "TaskExit",
    "TaskTimeout",
    "after",
    "is_normal",
    "is_planned",
    "process",
    "run",
    "select",
    "sleep",
    "telemetry",
    "ticker",
    "timer",
    "with_retry",
]
