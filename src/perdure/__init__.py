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
from perdure.app import App
from perdure.base import telemetry
from perdure.base.clock import Clock, SystemClock
from perdure.base.codec import Limits
from perdure.base.duration import Duration
from perdure.base.errors import (
    ApprovalExpired,
    ApprovalRejected,
    ArgumentError,
    BadResponse,
    BadReturn,
    BudgetExceeded,
    CallExit,
    CallTimeout,
    ChannelClosed,
    ChildError,
    DecisionRefused,
    DefinitionError,
    Drift,
    EffectInDoubt,
    EntriesError,
    HostBusy,
    HostDown,
    IllegalTransition,
    JobError,
    JobFailed,
    JobNotFound,
    JobParked,
    JournalConflict,
    KeyConflict,
    Killed,
    LeaseLost,
    LinkedProcessDown,
    MailboxFull,
    MaxChildren,
    Mistake,
    NameTaken,
    NameTakenAtBirth,
    NoProcess,
    NoServer,
    NoTable,
    NotInProcess,
    NotOwner,
    NotPortable,
    NotRegistered,
    PayloadTooLarge,
    Permanent,
    PlanError,
    ProcError,
    ProcessExit,
    Refused,
    RemoteError,
    SchemaError,
    Shutdown,
    SnapshotError,
    SpawnError,
    StartError,
    StepCrashed,
    StepFailed,
    StepTimeout,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
    TaskExit,
    TaskTimeout,
    UnknownName,
    Unstorable,
    WrongType,
    is_normal,
    is_planned,
)
from perdure.base.pid import Pid
from perdure.base.result import Err, Exited, Ok
from perdure.base.retry import Retry, with_retry
from perdure.base.secret import Secret
from perdure.base.settings import Overflow, Settings
from perdure.engine.handle import Handle
from perdure.engine.people.ask import Approved
from perdure.engine.policy import Rules
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.engine.worker.settings import WorkerSettings
from perdure.entries.load import Loaded, load_entries, load_yaml
from perdure.entries.service import Service, ready
from perdure.jobs.approval import Approval, ApprovalState, Person, Terms
from perdure.jobs.budget import Budget, BudgetLimits
from perdure.jobs.definition import JobDefinition, Step
from perdure.jobs.effect import DidNotHappen, Effect, EffectState, Happened, Unknown
from perdure.jobs.items import ItemPolicy
from perdure.jobs.model import Entry, Event, Job, JobQuery, QueueLimit
from perdure.jobs.parameters import Partial
from perdure.jobs.plan import Call, Plan, Ref
from perdure.jobs.redaction import Redaction
from perdure.jobs.registry import JobRegistry
from perdure.jobs.risk import Classifier, Facts, Gate, GatePolicy, RiskLevel
from perdure.jobs.state import JobState, StepState
from perdure.notify.people import Contact, People
from perdure.otp.agent import Agent
from perdure.otp.application import Application
from perdure.otp.pool import Pool
from perdure.otp.registry import Registry
from perdure.otp.server import Ask, Continue, GenServer, NoReply, Reply, ServerHandle, Stop, Timeout
from perdure.otp.snapshot import Snapshot
from perdure.otp.stream import AsyncStream, async_stream
from perdure.otp.supervision.dynamic import DynamicSupervisor
from perdure.otp.supervision.partition import PartitionSupervisor
from perdure.otp.supervision.spec import BRUTAL_KILL, IGNORE, ChildSpec, child
from perdure.otp.supervision.supervisor import Supervisor
from perdure.otp.table import Table
from perdure.otp.task import Task, join_many, poll_many
from perdure.otp.task_supervisor import TaskSupervisor
from perdure.otp.tree import full_tree, tree
from perdure.process.channel import Channel, Selected, select
from perdure.process.hosts import ProcessHost
from perdure.process.runtime import Runtime, run
from perdure.process.threads import offload
from perdure.process.timer import after, sleep, ticker, timer

__version__ = "0.1.0"

__all__ = [
    "BRUTAL_KILL",
    "IGNORE",
    "Agent",
    "App",
    "Application",
    "Approval",
    "ApprovalExpired",
    "ApprovalRejected",
    "ApprovalState",
    "Approved",
    "ArgumentError",
    "Ask",
    "AsyncStream",
    "BadResponse",
    "BadReturn",
    "Budget",
    "BudgetExceeded",
    "BudgetLimits",
    "Call",
    "CallExit",
    "CallTimeout",
    "Channel",
    "ChannelClosed",
    "ChildError",
    "ChildSpec",
    "Classifier",
    "Clock",
    "Contact",
    "Continue",
    "DecisionRefused",
    "DefinitionError",
    "DidNotHappen",
    "Drift",
    "Duration",
    "DynamicSupervisor",
    "Effect",
    "EffectInDoubt",
    "EffectState",
    "EntriesError",
    "Entry",
    "Err",
    "Event",
    "Exited",
    "Facts",
    "Gate",
    "GatePolicy",
    "GenServer",
    "Handle",
    "Happened",
    "HostBusy",
    "HostDown",
    "IllegalTransition",
    "ItemPolicy",
    "Job",
    "JobContext",
    "JobDefinition",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "JobParked",
    "JobQuery",
    "JobRegistry",
    "JobState",
    "JournalConflict",
    "KeyConflict",
    "Killed",
    "LeaseLost",
    "Limits",
    "LinkedProcessDown",
    "Loaded",
    "MailboxFull",
    "MaxChildren",
    "Mistake",
    "NameTaken",
    "NameTakenAtBirth",
    "NoProcess",
    "NoReply",
    "NoServer",
    "NoTable",
    "NotInProcess",
    "NotOwner",
    "NotPortable",
    "NotRegistered",
    "Ok",
    "Overflow",
    "Partial",
    "PartitionSupervisor",
    "PayloadTooLarge",
    "People",
    "Permanent",
    "Person",
    "Pid",
    "Plan",
    "PlanError",
    "Pool",
    "ProcError",
    "ProcessExit",
    "ProcessHost",
    "QueueLimit",
    "Redaction",
    "Ref",
    "Refused",
    "Registry",
    "RemoteError",
    "Reply",
    "Retry",
    "RiskLevel",
    "Rules",
    "Runtime",
    "SchemaError",
    "Secret",
    "Selected",
    "ServerHandle",
    "Service",
    "Settings",
    "Shutdown",
    "Snapshot",
    "SnapshotError",
    "SpawnError",
    "StartError",
    "Step",
    "StepContext",
    "StepCrashed",
    "StepFailed",
    "StepState",
    "StepTimeout",
    "Stop",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnreachable",
    "Supervisor",
    "SystemClock",
    "Table",
    "Task",
    "TaskExit",
    "TaskSupervisor",
    "TaskTimeout",
    "Terms",
    "Timeout",
    "Unknown",
    "UnknownName",
    "Unstorable",
    "WorkerSettings",
    "WrongType",
    "after",
    "async_stream",
    "child",
    "full_tree",
    "is_normal",
    "is_planned",
    "join_many",
    "load_entries",
    "load_yaml",
    "offload",
    "poll_many",
    "process",
    "ready",
    "run",
    "select",
    "sleep",
    "telemetry",
    "ticker",
    "timer",
    "tree",
    "with_retry",
]
