"""Make the row of a new job from a call: for `app.submit`, schedules and child jobs."""

import secrets
from typing import Any

from perdure.base.clock import SystemClock
from perdure.base.codec import PayloadLimits, digest, fingerprint
from perdure.base.duration import job_seconds
from perdure.jobs.definition import JobDefinition
from perdure.jobs.model import Job, JournalEntry, NewJob
from perdure.jobs.plan import Plan
from perdure.jobs.registry import JobRegistry, job_name
from perdure.jobs.text_limits import check_given

_CLOCK = SystemClock()
_TEXTS = ("tenant", "user", "key", "queue")
_OPTIONS = (*_TEXTS, "priority", "delay", "deadline")


def new_job(
    registry: JobRegistry,
    limits: PayloadLimits,
    job: Any,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> NewJob:
    """Return the job to store for a submission.

    Args:
        registry: The registry of the job, and of the steps of a plan.
        limits: The largest payloads.
        job: A job, or a plan.
        args: The positional arguments of the job.
        options: The options of `App.submit`; the rest are arguments of the job by name.

    Raises:
        ArgumentError: The arguments do not fit.
        PlanError: The plan cannot be run.
    """
    known = {name: options.pop(name) for name in _OPTIONS if name in options}
    check_given(**{name: known[name] for name in _TEXTS if name in known})
    plan: bytes | None = None
    if isinstance(job, Plan):
        job.check(registry)
        name, plan, packed = job.name, job.to_json(), b"{}"
    else:
        name = job_name(registry, job, "app.submit")
        packed = job.pack(args, options, limits)
    priority, deadline = known.get("priority"), job_seconds(known.get("deadline"))
    return NewJob(
        id=new_id(),
        tenant=known.get("tenant", "default"),
        user=known.get("user", ""),
        name=name,
        version=getattr(job, "version", "1"),
        input=packed,
        plan=plan,
        queue=known.get("queue") or getattr(job, "queue", None) or "default",
        priority=getattr(job, "priority", 0) if priority is None else priority,
        key=known.get("key"),
        fingerprint=fingerprint(job.name, packed, plan or b"null"),
        delay=job_seconds(known.get("delay")) or 0.0,
        deadline=getattr(job, "timeout", None) if deadline is None else deadline,
    )


def child_job(
    parent: Job,
    entry: JournalEntry,
    definition: JobDefinition[Any, Any],
    name: str,
    packed: bytes,
) -> NewJob:
    """Return the job that a parent submits: the same one each time its code gets here."""
    return NewJob(
        id=child_id(parent.id, entry.id),
        tenant=parent.tenant,
        user=parent.user,
        name=name,
        version=definition.version,
        input=packed,
        queue=definition.queue or parent.queue,
        priority=parent.priority,
        parent=parent.id,
        parent_seq=entry.seq,
        budget_of=parent.budget_of or parent.id,
        deadline=definition.timeout,
    )


def new_id() -> str:
    """Return the id of a new job: ordered by time, which keeps indexes small, then random."""
    return f"{_CLOCK.time_ns():016x}{secrets.token_hex(8)}"


def child_id(parent_id: str, entry_id: str) -> str:
    """Return the id of the job that a parent submits at this entry of its journal."""
    return parent_id[:16] + digest("child", parent_id, entry_id)[:16]
