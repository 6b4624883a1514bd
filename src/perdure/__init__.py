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
    NameTakenAtBirth,
    NoProcess,
    NoServer,
    NoTable,
    NotInProcess,
    NotOwner,
    NotRegistered,
    ProcError,
    ProcessExit,
    Shutdown,
    SnapshotError,
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
from perdure.otp.agent import Agent
from perdure.otp.application import Application
from perdure.otp.directive import Continue, NoReply, Reply, Stop, Timeout
from perdure.otp.dynamic import DynamicSupervisor
from perdure.otp.partition import PartitionSupervisor
from perdure.otp.pool import Pool
from perdure.otp.registry import Registry
from perdure.otp.server import Ask, GenServer, ServerHandle
from perdure.otp.snapshot import Snapshot
from perdure.otp.spec import BRUTAL_KILL, IGNORE, ChildSpec, child
from perdure.otp.stream import AsyncStream, async_stream
from perdure.otp.supervisor import Supervisor
from perdure.otp.table import Table
from perdure.otp.task import Task
from perdure.otp.task_many import join_many, poll_many
from perdure.otp.task_supervisor import TaskSupervisor
from perdure.otp.tree import tree
from perdure.process.channel import Channel, Selected, select
from perdure.process.run import run
from perdure.process.runtime import Runtime
from perdure.process.timer import after, sleep, ticker, timer

__version__ = "0.1.0"

__all__ = [
    "BRUTAL_KILL",
    "IGNORE",
    "Agent",
    "Application",
    "Ask",
    "AsyncStream",
    "BadReturn",
    "CallExit",
    "CallTimeout",
    "Channel",
    "ChannelClosed",
    "ChildError",
    "ChildSpec",
    "Clock",
    "Continue",
    "Duration",
    "DynamicSupervisor",
    "Err",
    "Exited",
    "GenServer",
    "Killed",
    "LinkedProcessDown",
    "MailboxFull",
    "MaxChildren",
    "NameTaken",
    "NameTakenAtBirth",
    "NoProcess",
    "NoReply",
    "NoServer",
    "NoTable",
    "NotInProcess",
    "NotOwner",
    "NotRegistered",
    "Ok",
    "Overflow",
    "PartitionSupervisor",
    "Pid",
    "Pool",
    "ProcError",
    "ProcessExit",
    "Ref",
    "Registry",
    "Reply",
    "Retry",
    "Runtime",
    "Selected",
    "ServerHandle",
    "Settings",
    "Shutdown",
    "Snapshot",
    "SnapshotError",
    "SpawnError",
    "StartError",
    "Stop",
    "Supervisor",
    "SystemClock",
    "Table",
    "Task",
    "TaskExit",
    "TaskSupervisor",
    "TaskTimeout",
    "Timeout",
    "after",
    "async_stream",
    "child",
    "is_normal",
    "is_planned",
    "join_many",
    "poll_many",
    "process",
    "run",
    "select",
    "sleep",
    "telemetry",
    "ticker",
    "timer",
    "tree",
    "with_retry",
]
