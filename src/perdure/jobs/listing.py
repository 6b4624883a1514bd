"""A job as one row of a list: what it does now, what it waits for, what it costs; pure.

The state of a job says who may act on it: RUNNING means that a worker owns it. People want to know
more: whether it works, waits for its next attempt or for a person, or has a worker that is silent.
That is its *shown state*, made from the job and the last entries of its journal.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from perdure.jobs.budget import Budget
from perdure.jobs.model import EntryKind, Job
from perdure.jobs.saga import UNDO_LIST
from perdure.jobs.state import ENDED, JobState, StepState
from perdure.jobs.waiting import describe_waits, is_left, waits_of
from perdure.jobs.wording import short_failure

_LONGEST_ERROR: Final = 300  # characters


class ShownState(StrEnum):
    """The state of a job as people see it."""

    PENDING = "pending"
    SCHEDULED = "scheduled"  # submitted with a delay that is not over
    RUNNING = "running"
    RETRYING = "retrying"  # a step waits for its next attempt
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_MESSAGE = "waiting_for_message"
    WAITING_FOR_CHILDREN = "waiting_for_children"
    SLEEPING = "sleeping"
    WAITING = "waiting"  # for something else, or for a worker
    STALE_HEARTBEAT = "stale_heartbeat"  # a worker owns it, and has not been heard of for a while
    STUCK = "stuck"  # a worker owns it, and it makes no progress, or its lease has run out
    PAUSED = "paused"
    COMPENSATING = "compensating"
    COMPLETED = "completed"
    FAILED = "failed"
    COMPENSATED = "compensated"
    CANCELLED = "cancelled"
    NEEDS_ATTENTION = "needs_attention"


_S = ShownState

# What a job waits for, the most important first: a person who is asked, an error, the rest.
_BY_WAIT: Final = {
    "approval": _S.WAITING_FOR_APPROVAL,
    "retry": _S.RETRYING,
    "message": _S.WAITING_FOR_MESSAGE,
    "child": _S.WAITING_FOR_CHILDREN,
    "children": _S.WAITING_FOR_CHILDREN,
    "timer": _S.SLEEPING,
}
_WAIT_OF: Final = {
    EntryKind.APPROVE: "approval",
    EntryKind.STEP: "retry",
    EntryKind.UNDO: "retry",
    EntryKind.RECEIVE: "message",
    EntryKind.CHILD: "child",
    EntryKind.SLEEP: "timer",
}


class LatestEntry(Struct, frozen=True, kw_only=True):
    """One of the last entries of a journal, without its payloads."""

    seq: int
    id: str
    kind: EntryKind
    state: StepState
    attempt: int
    wake_at: float | None


class JobFacts(Struct, frozen=True, kw_only=True):
    """A job with what its row in a list needs beside it."""

    job: Job
    latest: tuple[LatestEntry, ...] = ()  # of its journal, in order
    budget: Budget | None = None
    effects_in_doubt: int = 0
    stale: bool = False  # its worker does not renew its lease, or is silent


class CurrentStep(Struct, frozen=True, kw_only=True):
    """Where a job is: its running step, else what it waits for, else its last one."""

    id: str
    attempt: int
    state: StepState
    again_at: float | None  # when its next attempt begins, or its wait ends


class Cost(Struct, frozen=True, kw_only=True):
    """What a job and its children have spent or reserved, and the most that they may."""

    usd: float
    tokens: int
    calls: int
    limit_usd: float | None
    limit_tokens: int | None
    limit_calls: int | None
    shared: bool  # it is the budget of another job, of which this one is a part


class ReportedProgress(Struct, frozen=True, kw_only=True):
    """How far a running step is, as it last reported."""

    step: str
    done: float | None
    total: float | None
    note: str
    at: float | None
    heartbeat_at: float


class JobRow(Struct, frozen=True, kw_only=True):
    """A job in a list."""

    id: str
    name: str
    version: str
    key: str | None
    tenant: str
    user: str
    state: JobState
    shown_state: ShownState
    queue: str
    priority: int
    labels: dict[str, str]
    created_at: float
    started_at: float | None
    ended_at: float | None
    worked: float  # seconds that workers had it
    took: float | None  # seconds from its first start to its end, or until now
    owner: str | None  # the worker that has it …
    heartbeat_at: float | None  # … and when that last renewed its lease
    parent: str | None
    current: CurrentStep | None
    progress: tuple[ReportedProgress, ...]
    waits: str | None  # what it waits for, in words, without the time
    wakes_at: float | None  # when it goes on by itself
    error: str | None
    cost: Cost | None
    effects_in_doubt: int
    undone: bool  # what it did is or was undone, as far as possible …
    failed_undos: int  # … except for so much


def job_row(facts: JobFacts, now: float) -> JobRow:
    """Return the row of a job at a time of the store's clock."""
    job = facts.job
    return JobRow(
        id=job.id,
        name=job.name,
        version=job.version,
        key=job.key,
        tenant=job.tenant,
        user=job.user,
        state=job.state,
        shown_state=shown_state(facts, now),
        queue=job.queue,
        priority=job.priority,
        labels=job.labels,
        created_at=job.created_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        worked=job.worked,
        took=took(job, now),
        owner=job.owner,
        heartbeat_at=None if job.silent_for is None else now - job.silent_for,
        parent=job.parent,
        current=current_step(job, facts.latest),
        progress=tuple(_reported(job)),
        waits=describe_waits(job, None) or None,
        wakes_at=job.due_at if job.due_at is not None and job.due_at > now else None,
        error=None if job.error is None else short_failure(job.error, _LONGEST_ERROR),
        cost=None if facts.budget is None else _cost(job, facts.budget),
        effects_in_doubt=facts.effects_in_doubt,
        undone=is_undone(facts),
        failed_undos=job.failed_undos,
    )


def is_undone(facts: JobFacts) -> bool:
    """Whether an undo of the job has begun; nothing comes after its undo list in the journal."""
    if facts.job.state in (JobState.COMPENSATING, JobState.COMPENSATED):
        return True
    undos = [each for each in facts.latest if each.kind is EntryKind.UNDO]
    # An undo that found nothing to undo does not count.
    return any(each.id != UNDO_LIST or each.state is not StepState.SKIPPED for each in undos)


def took(job: Job, now: float) -> float | None:
    """Return the seconds from the first start of a job to its end, or until now, waits included."""
    if job.started_at is None:
        return None
    return max(0.0, (now if job.ended_at is None else job.ended_at) - job.started_at)


def shown_state(facts: JobFacts, now: float) -> ShownState:
    """Return the state of a job as people see it."""
    job = facts.job
    if facts.stale and job.state not in ENDED:  # which also says why it makes no progress
        return _S.STALE_HEARTBEAT
    if job.stuck or is_left(job):
        return _S.STUCK if job.stuck else _S.WAITING
    match job.state:
        case JobState.PENDING:
            return _S.SCHEDULED if job.due_at is not None and job.due_at > now else _S.PENDING
        case JobState.WAITING:
            return _first_wait((one.kind for one in waits_of(job)), _S.WAITING)
        case JobState.RUNNING:
            return _while_running(facts.latest)
        case _:
            return ShownState(job.state.lower())


def plain_state(job: Job) -> str:
    """Return the state of a job by its row alone, for people: `shown_state` in fewer words."""
    return "STUCK" if job.stuck else JobState.WAITING if is_left(job) else job.state


def _while_running(latest: Sequence[LatestEntry]) -> ShownState:
    """Return what a job does that a worker has: short waits are spent in memory."""
    if any(each.state is StepState.RUNNING for each in latest):
        return _S.RUNNING
    return _first_wait((_WAIT_OF[each.kind] for each in latest if _waits(each)), _S.RUNNING)


def _waits(entry: LatestEntry) -> bool:
    """Whether an entry waits; a step that has never begun, or begins again, does not."""
    if entry.state is not StepState.PENDING or entry.kind not in _WAIT_OF:
        return False
    is_step = entry.kind in (EntryKind.STEP, EntryKind.UNDO)
    return not is_step or (entry.attempt > 0 and entry.wake_at is not None)


def _first_wait(kinds: Iterable[str], otherwise: ShownState) -> ShownState:
    found = set(kinds)
    return next((state for kind, state in _BY_WAIT.items() if kind in found), otherwise)


def current_step(job: Job, latest: Sequence[LatestEntry]) -> CurrentStep | None:
    """Return where a job is; None if it has ended well, or has not begun."""
    if job.state in (JobState.COMPLETED, JobState.COMPENSATED) or not latest:
        return None
    open_states = (StepState.FAILED,) if job.state in ENDED else _OPEN
    for state in open_states:
        for each in reversed(latest):
            if each.state is state:
                return _current(each)
    return None if job.state in ENDED else _current(latest[-1])


_OPEN: Final = (StepState.RUNNING, StepState.COMPENSATING, StepState.PENDING, StepState.FAILED)


def _current(entry: LatestEntry) -> CurrentStep:
    waits = entry.state is StepState.PENDING
    again_at = entry.wake_at if waits else None
    return CurrentStep(id=entry.id, attempt=entry.attempt, state=entry.state, again_at=again_at)


def _reported(job: Job) -> Iterable[ReportedProgress]:
    for one in job.progress:
        yield ReportedProgress(
            step=one.step,
            done=one.done,
            total=one.total,
            note=one.note,
            at=one.at,
            heartbeat_at=one.heartbeat_at,
        )


def _cost(job: Job, budget: Budget) -> Cost:
    gone, limits = budget.gone, budget.limits
    return Cost(
        usd=gone.usd,
        tokens=gone.tokens,
        calls=gone.calls,
        limit_usd=limits.usd,
        limit_tokens=limits.tokens,
        limit_calls=limits.calls,
        shared=job.budget_of is not None,
    )
