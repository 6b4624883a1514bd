"""Perdure: a fault-tolerant runtime for long-running Python work.

    import perdure
    from perdure import process

    async def main() -> None:
        pid = process.spawn_monitored(worker)
        ...

    perdure.run(main)

Durable jobs start at `perdure.App`. The kernel verbs are in `perdure.process`; tasks, agents,
servers and supervisors in `perdure.otp`; exceptions in `perdure.errors`; people and approvals in
`perdure.approvals`; services that are declared in files in `perdure.entries`.

A name is loaded on first use, so that `import perdure` is cheap: a program that only spawns
processes never loads a database driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure import approvals, entries, errors, otp, process
    from perdure.app import App
    from perdure.base import telemetry
    from perdure.base.codec import PayloadLimits
    from perdure.base.duration import Duration
    from perdure.base.encryption import Encryption
    from perdure.base.retry import Retry, with_retry
    from perdure.base.secret import Secret
    from perdure.base.settings import Settings
    from perdure.client import Client
    from perdure.engine.handle import Handle
    from perdure.engine.registry import JobRegistry
    from perdure.engine.run.context import JobContext, current_job
    from perdure.engine.settings import WorkerSettings
    from perdure.engine.steps.step_context import StepContext, SyncStepContext
    from perdure.engine.steps.transaction import transaction
    from perdure.engine.sync import SyncHandle
    from perdure.jobs.budget import Budget, BudgetLimits
    from perdure.jobs.bulk import BulkReport
    from perdure.jobs.definition import Call, JobCall, JobDefinition, Step, StepCall
    from perdure.jobs.effect import DidNotHappen, Effect, EffectState, Happened, Unknown
    from perdure.jobs.items import ItemPolicy
    from perdure.jobs.model import Job, JobEvent, JobQuery, JournalEntry, QueueLimit
    from perdure.jobs.output import OutputPiece
    from perdure.jobs.parameters import Partial
    from perdure.jobs.plan import Plan, PlanCall, Ref
    from perdure.jobs.redaction import Redaction
    from perdure.jobs.state import JobState, StepState
    from perdure.jobs.tool import ToolAnswer, ToolCall, Tools
    from perdure.otp.supervision.spec import BRUTAL_KILL
    from perdure.process.runtime import run

__version__ = "0.1.0"

_MODULE_OF = {
    "BRUTAL_KILL": "perdure.otp.supervision.spec",
    "App": "perdure.app",
    "Budget": "perdure.jobs.budget",
    "BudgetLimits": "perdure.jobs.budget",
    "BulkReport": "perdure.jobs.bulk",
    "Call": "perdure.jobs.definition",
    "Client": "perdure.client",
    "DidNotHappen": "perdure.jobs.effect",
    "Duration": "perdure.base.duration",
    "Effect": "perdure.jobs.effect",
    "EffectState": "perdure.jobs.effect",
    "Encryption": "perdure.base.encryption",
    "Handle": "perdure.engine.handle",
    "Happened": "perdure.jobs.effect",
    "ItemPolicy": "perdure.jobs.items",
    "Job": "perdure.jobs.model",
    "JobCall": "perdure.jobs.definition",
    "JobContext": "perdure.engine.run.context",
    "JobDefinition": "perdure.jobs.definition",
    "JobEvent": "perdure.jobs.model",
    "JobQuery": "perdure.jobs.model",
    "JobRegistry": "perdure.engine.registry",
    "JobState": "perdure.jobs.state",
    "JournalEntry": "perdure.jobs.model",
    "OutputPiece": "perdure.jobs.output",
    "Partial": "perdure.jobs.parameters",
    "PayloadLimits": "perdure.base.codec",
    "Plan": "perdure.jobs.plan",
    "PlanCall": "perdure.jobs.plan",
    "QueueLimit": "perdure.jobs.model",
    "Redaction": "perdure.jobs.redaction",
    "Ref": "perdure.jobs.plan",
    "Retry": "perdure.base.retry",
    "Secret": "perdure.base.secret",
    "Settings": "perdure.base.settings",
    "Step": "perdure.jobs.definition",
    "StepCall": "perdure.jobs.definition",
    "StepContext": "perdure.engine.steps.step_context",
    "StepState": "perdure.jobs.state",
    "SyncHandle": "perdure.engine.sync",
    "SyncStepContext": "perdure.engine.steps.step_context",
    "ToolAnswer": "perdure.jobs.tool",
    "ToolCall": "perdure.jobs.tool",
    "Tools": "perdure.jobs.tool",
    "Unknown": "perdure.jobs.effect",
    "WorkerSettings": "perdure.engine.settings",
    "current_job": "perdure.engine.run.context",
    "run": "perdure.process.runtime",
    "transaction": "perdure.engine.steps.transaction",
    "with_retry": "perdure.base.retry",
}
_MODULES = {
    "approvals": "perdure.approvals",
    "entries": "perdure.entries",
    "errors": "perdure.errors",
    "otp": "perdure.otp",
    "process": "perdure.process",
    "telemetry": "perdure.base.telemetry",
}

__all__ = [
    "BRUTAL_KILL",
    "App",
    "Budget",
    "BudgetLimits",
    "BulkReport",
    "Call",
    "Client",
    "DidNotHappen",
    "Duration",
    "Effect",
    "EffectState",
    "Encryption",
    "Handle",
    "Happened",
    "ItemPolicy",
    "Job",
    "JobCall",
    "JobContext",
    "JobDefinition",
    "JobEvent",
    "JobQuery",
    "JobRegistry",
    "JobState",
    "JournalEntry",
    "OutputPiece",
    "Partial",
    "PayloadLimits",
    "Plan",
    "PlanCall",
    "QueueLimit",
    "Redaction",
    "Ref",
    "Retry",
    "Secret",
    "Settings",
    "Step",
    "StepCall",
    "StepContext",
    "StepState",
    "SyncHandle",
    "SyncStepContext",
    "ToolAnswer",
    "ToolCall",
    "Tools",
    "Unknown",
    "WorkerSettings",
    "approvals",
    "current_job",
    "entries",
    "errors",
    "otp",
    "process",
    "run",
    "telemetry",
    "transaction",
    "with_retry",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use, and keep it."""
    if module := _MODULES.get(name):
        value: object = import_module(module)
    elif module := _MODULE_OF.get(name):
        value = getattr(import_module(module), name)
    else:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
