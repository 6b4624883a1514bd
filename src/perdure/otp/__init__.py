"""OTP on the kernel: tasks, agents, servers, supervisors, registries and tables.

from perdure.otp import Supervisor, Task, child
"""

from perdure.base.result import Err, Exited, Ok
from perdure.otp.agent import Agent
from perdure.otp.application import Application
from perdure.otp.pool import Pool
from perdure.otp.registry import Registry
from perdure.otp.server import Ask, Continue, GenServer, NoReply, Reply, ServerHandle, Stop, Timeout
from perdure.otp.snapshot import Snapshot
from perdure.otp.stream import AsyncStream, async_stream
from perdure.otp.supervision import (
    BRUTAL_KILL,
    IGNORE,
    ChildSpec,
    DynamicSupervisor,
    PartitionSupervisor,
    Supervisor,
    child,
)
from perdure.otp.table import Table
from perdure.otp.task import Task, join_many, poll_many
from perdure.otp.task_supervisor import TaskSupervisor
from perdure.otp.tree import full_tree, tree

__all__ = [
    "BRUTAL_KILL",
    "IGNORE",
    "Agent",
    "Application",
    "Ask",
    "AsyncStream",
    "ChildSpec",
    "Continue",
    "DynamicSupervisor",
    "Err",
    "Exited",
    "GenServer",
    "NoReply",
    "Ok",
    "PartitionSupervisor",
    "Pool",
    "Registry",
    "Reply",
    "ServerHandle",
    "Snapshot",
    "Stop",
    "Supervisor",
    "Table",
    "Task",
    "TaskSupervisor",
    "Timeout",
    "async_stream",
    "child",
    "full_tree",
    "join_many",
    "poll_many",
    "tree",
]
