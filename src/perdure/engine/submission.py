"""Make the row of a new job from a call: for `app.submit`, schedules and child jobs."""

import secrets
from collections.abc import Mapping
from typing import Any, Final, TypedDict, cast

from perdure.base.clock import SystemClock
from perdure.base.codec import PayloadLimits, digest, fingerprint
from perdure.base.duration import Duration, job_seconds
from perdure.jobs.definition import NO_OPTIONS, Call, CallOptions, JobDefinition, check_options
from perdure.jobs.model import Job, JournalEntry, NewJob
from perdure.jobs.plan import Plan
from perdure.jobs.redaction import refuse_markers
from perdure.jobs.registry import DefinitionTable
from perdure.jobs.text_limits import check_given, check_labels

_CLOCK = SystemClock()


class SubmitOptions(TypedDict, total=False):
    """The options of `App.submit`, which explains them."""

    tenant: str
    user: str
    key: str | None
    queue: str | None
    priority: int | None
    delay: Duration
    deadline: Duration
    labels: Mapping[str, str]


_TEXTS = ("tenant", "user", "key", "queue")
OPTIONS: Final = tuple(SubmitOptions.__annotations__)


def new_job(
    registry: DefinitionTable,
    limits: PayloadLimits,
    call: Any,
    options: Mapping[str, Any],
) -> NewJob:
    """Return the job to store for a submission.

    Args:
        registry: The registry of the job, and of the steps of a plan.
        limits: The largest payloads.
        call: The call of a job, or a plan.
        options: The options of `App.submit`.

    Raises:
        TypeError: It is neither.
        ArgumentError: The arguments do not fit.
        PlanError: The plan cannot be run.
    """
    check_options(options, SubmitOptions, "app.submit")
    plan: bytes | None = None
    if isinstance(call, Plan):
        job: Any = call.named(registry)
        job.check(registry)
        name, plan, packed = job.name, job.to_json(), b"{}"
    else:
        job = job_of_call(call, "app.submit")
        name = registry.name(job)
        packed = job.pack(call.args, call.kwargs, limits)
        options = {**_given_by(call), **options}
    return stored_job(name, job, packed, options, plan)


def stored_job(
    name: str, job: Any, packed: bytes, options: Mapping[str, Any], plan: bytes | None = None
) -> NewJob:
    """Return the row of a job.

    Args:
        name: Its full name.
        job: What has its version, queue, priority, timeout and budget, if anything has.
        packed: The arguments.
        options: The options of the submission, which override those of the job.
        plan: The plan, if it is one.

    Raises:
        ArgumentError: Something in it only stands for a value that people are not shown.
    """
    check_given(**{name: options[name] for name in _TEXTS if name in options})
    refuse_markers(packed, f"the arguments of job {name!r}")
    refuse_markers(plan or b"", f"the plan {name!r}")
    priority, deadline = options.get("priority"), job_seconds(options.get("deadline"))
    return NewJob(
        id=new_id(),
        tenant=options.get("tenant", "default"),
        user=options.get("user", ""),
        name=name,
        version=getattr(job, "version", "1"),
        input=packed,
        plan=plan,
        queue=options.get("queue") or getattr(job, "queue", None) or "default",
        priority=getattr(job, "priority", 0) if priority is None else priority,
        key=options.get("key"),
        fingerprint=fingerprint(name, packed, plan or b"null"),
        delay=job_seconds(options.get("delay")) or 0.0,
        deadline=getattr(job, "timeout", None) if deadline is None else deadline,
        budget=getattr(job, "budget", None),
        labels=check_labels(options.get("labels") or {}),
    )


def job_of_call(call: Any, verb: str) -> JobDefinition[Any, Any]:
    """Return the job of what must be a call of one; `verb` is what it is used for.

    Raises:
        TypeError: It is not the call of a job; the message says what to write.
    """
    if isinstance(call, JobDefinition):
        call = cast("JobDefinition[..., Any]", call)
        raise TypeError(f"{verb} takes the call of a job: write `{call.name}(…)`, not {call.name}")
    definition = cast("Call[Any]", call.use()).definition if isinstance(call, Call) else None
    if isinstance(definition, JobDefinition):
        return definition
    what = (
        f"a call of step {definition.name!r}"
        if definition is not None
        else repr(cast("object", call))
    )
    raise TypeError(f"{verb} takes the call of a job made with @app.job, or a plan, not {what}")


def _given_by(call: Call[Any]) -> dict[str, Any]:
    """Return the options that the call itself has; those of the submission override them."""
    given = call.given
    found = {"queue": given.queue, "priority": given.priority, "deadline": given.timeout}
    return {name: value for name, value in found.items() if value is not None}


def child_job(
    parent: Job,
    entry: JournalEntry,
    definition: JobDefinition[Any, Any],
    name: str,
    packed: bytes,
    given: CallOptions = NO_OPTIONS,
) -> NewJob:
    """Return the job that a parent submits: the same one each time its code gets here."""
    return NewJob(
        id=child_id(parent.id, entry.id),
        tenant=parent.tenant,
        user=parent.user,
        name=name,
        version=definition.version,
        input=packed,
        queue=given.queue or definition.queue or parent.queue,
        priority=parent.priority if given.priority is None else given.priority,
        parent=parent.id,
        parent_seq=entry.seq,
        budget_of=parent.budget_of or parent.id,
        deadline=definition.timeout if given.timeout is None else given.timeout,
        labels=parent.labels,
    )


ID_LENGTH: Final = 32  # characters of the id of a job


def new_id() -> str:
    """Return the id of a new job: ordered by time, which keeps indexes small, then random."""
    return f"{_CLOCK.time_ns():016x}{secrets.token_hex(8)}"


def child_id(parent_id: str, entry_id: str) -> str:
    """Return the id of the job that a parent submits at this entry of its journal."""
    return parent_id[:16] + digest("child", parent_id, entry_id)[:16]
