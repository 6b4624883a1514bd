"""The telemetry events of the engine: their names, measurements and metadata.

Callers on hot paths first check whether anybody listens (`listens`), so an event without a handler
costs one dict lookup. Times are in seconds.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from perdure.base import telemetry
from perdure.base.telemetry import Event
from perdure.jobs.approval import Approval, Refusal, Vote
from perdure.jobs.budget import Amount, ModelUsage
from perdure.jobs.definition import CHAT, Step
from perdure.jobs.effect import Effect
from perdure.jobs.model import (
    Claim,
    Job,
    JobChange,
    JobTrace,
    JournalEntry,
    NewJob,
    Schedule,
    Submitted,
)
from perdure.jobs.outbox import Notice

if TYPE_CHECKING:  # a caller that runs nothing does not load what workers are made of
    from perdure.engine.worker_port import WorkerPort

JOB_CARRY: Final[Event] = ("perdure", "job", "carry")
JOB_ENTER: Final[Event] = ("perdure", "job", "enter")
JOB_LEAVE: Final[Event] = ("perdure", "job", "leave")
STEP_ENTER: Final[Event] = ("perdure", "step", "enter")
JOB_SUBMIT: Final[Event] = ("perdure", "job", "submit")
JOB_UNSERVED: Final[Event] = ("perdure", "job", "unserved")
JOB_CLAIM: Final[Event] = ("perdure", "job", "claim")
JOB_RELEASE: Final[Event] = ("perdure", "job", "release")
JOB_PARK: Final[Event] = ("perdure", "job", "park")
JOB_END: Final[Event] = ("perdure", "job", "end")
JOB_STUCK: Final[Event] = ("perdure", "job", "stuck")
STEP_START: Final[Event] = ("perdure", "step", "start")
STEP_STOP: Final[Event] = ("perdure", "step", "stop")
STEP_RETRY: Final[Event] = ("perdure", "step", "retry")
STEP_CHECKPOINT: Final[Event] = ("perdure", "step", "checkpoint")
PAYLOAD_LARGE: Final[Event] = ("perdure", "payload", "large")
UNDO_FAIL: Final[Event] = ("perdure", "undo", "fail")
LEASE_RENEW: Final[Event] = ("perdure", "lease", "renew")
LEASE_LOSE: Final[Event] = ("perdure", "lease", "lose")
LEASE_REFUSE: Final[Event] = ("perdure", "lease", "refuse")
LEASE_TAKE: Final[Event] = ("perdure", "lease", "take")
EFFECT: Final[dict[str, Event]] = {
    "INTENT": ("perdure", "effect", "intent"),
    "DONE": ("perdure", "effect", "done"),
    "FAILED": ("perdure", "effect", "fail"),
    "IN_DOUBT": ("perdure", "effect", "doubt"),
}
EFFECT_REUSE: Final[Event] = ("perdure", "effect", "reuse")
APPROVAL_ASK: Final[Event] = ("perdure", "approval", "ask")
APPROVAL_DECIDE: Final[Event] = ("perdure", "approval", "decide")
SPEND: Final[Event] = ("perdure", "spend", "settle")
MODEL_ANSWER: Final[Event] = ("perdure", "model", "answer")
SCHEDULE_FIRE: Final[Event] = ("perdure", "schedule", "fire")
NOTICE_SEND: Final[Event] = ("perdure", "notice", "send")
LOOP_LAG: Final[Event] = ("perdure", "loop", "lag")
WORKER_UP: Final[Event] = ("perdure", "worker", "up")
WORKER_DRAIN: Final[Event] = ("perdure", "worker", "drain")
WORKER_DOWN: Final[Event] = ("perdure", "worker", "down")

listens = telemetry.has_handlers


class RunFacts(Protocol):
    """The metadata of a run in its events."""

    @property
    def job(self) -> Job: ...
    @property
    def node(self) -> "WorkerPort": ...
    @property
    def epoch(self) -> int: ...
    @property
    def begun_at(self) -> float: ...
    def now(self) -> float: ...


class StepFacts(Protocol):
    """The metadata of a step in its events."""

    @property
    def run(self) -> RunFacts: ...
    @property
    def entry(self) -> JournalEntry: ...
    @property
    def step(self) -> Step[..., Any]: ...


# Jobs


def submitted(jobs: Iterable[NewJob], kept: Iterable[Submitted]) -> None:
    """Emit that jobs have been stored."""
    if listens(JOB_SUBMIT):
        for job, result in zip(jobs, kept, strict=True):
            facts = {**_job(job), "job_id": result.id, "new": result.created}
            telemetry.execute(JOB_SUBMIT, {"count": 1}, facts)


def carried(job: NewJob) -> NewJob:
    """Return a job to submit with the span that submits it, if somebody traces.

    A handler of the event writes `traceparent` into the `carrier` of its metadata.
    """
    if not listens(JOB_CARRY):
        return job
    carrier: dict[str, str] = {}
    telemetry.execute(JOB_CARRY, {}, {**_job(job), "carrier": carrier})
    return replace(job, trace=carrier.get("traceparent"))


def entered(run: RunFacts, trace: JobTrace | None) -> str | None:
    """Emit that a run begins, in its own process; return its span, if somebody traces."""
    carrier: dict[str, str] = {}
    facts = {**_job(run.job), "worker": run.node.owner, "epoch": run.epoch, "trace": trace}
    more = {"state": run.job.state.value, "parent": run.job.parent, "carrier": carrier}
    telemetry.execute(JOB_ENTER, {"claims": run.job.claims}, {**facts, **more})
    return carrier.get("traceparent")


def left(run: RunFacts, outcome: str) -> None:
    """Emit that the process of a run ends, however it does."""
    if listens(JOB_LEAVE):
        facts = {**_job(run.job), "worker": run.node.owner, "epoch": run.epoch}
        telemetry.execute(JOB_LEAVE, {}, {**facts, "outcome": outcome})


def unserved(job: NewJob, job_id: str, reason: str) -> None:
    """Emit that no worker can claim a job that was just submitted."""
    if listens(JOB_UNSERVED):
        facts = {**_job(job), "job_id": job_id, "reason": reason}
        telemetry.execute(JOB_UNSERVED, {"count": 1}, facts)


def claimed(node: "WorkerPort", claims: Iterable[Claim]) -> None:
    """Emit that this worker has claimed jobs."""
    if listens(JOB_CLAIM):
        for claim in claims:
            job = claim.job
            measured = {"claims": job.claims, "age": claim.now - job.created_at}
            facts = {**_job(job), "worker": node.owner, "first": job.epoch == 1}
            telemetry.execute(JOB_CLAIM, measured, facts)


def concluded(run: RunFacts, change: JobChange, reason: str | None) -> None:
    """Emit how a run ended, once that is durable."""
    event = JOB_END
    if change.release:
        event = JOB_PARK if change.state == "NEEDS_ATTENTION" else JOB_RELEASE
    if not listens(event):
        return
    job, node = run.job, run.node
    measured: dict[str, Any] = {
        "duration": (duration := node.loop.time() - run.begun_at),
        "worked": job.worked + duration,
        "age": run.now() - job.created_at,
        "claims": job.claims,
    }
    facts = {**_job(job), "worker": node.owner, "state": change.state.value, "reason": reason}
    telemetry.execute(event, measured, facts)


def stuck(run: RunFacts, reason: str) -> None:
    """Emit that a job makes no progress."""
    if listens(JOB_STUCK):
        facts = {**_job(run.job), "worker": run.node.owner, "reason": reason}
        telemetry.execute(JOB_STUCK, {"count": 1}, facts)


def _job(job: Job | NewJob) -> dict[str, Any]:
    return {"job_id": job.id, "name": job.name, "tenant": job.tenant, "queue": job.queue}


# Steps


def step_started(operation: StepFacts, attempt: int) -> None:
    """Emit that an attempt begins."""
    telemetry.execute(STEP_START, {"attempt": attempt}, _step(operation))


def step_entered(operation: StepFacts, attempt: int) -> None:
    """Emit that the code of an attempt is about to run, in its own process."""
    telemetry.execute(STEP_ENTER, {"attempt": attempt}, _step(operation))


def step_stopped(operation: StepFacts, attempt: int, begun_at: float, outcome: str) -> None:
    """Emit how an attempt has ended; before that, what a model was asked and has answered."""
    entry = operation.entry
    if outcome == "succeeded" and entry.name.startswith(CHAT) and listens(MODEL_ANSWER):
        facts = {**_step(operation), "output": entry.output}
        telemetry.execute(MODEL_ANSWER, {"attempt": attempt}, facts)
    measured = {"attempt": attempt, "duration": operation.run.node.loop.time() - begun_at}
    telemetry.execute(STEP_STOP, measured, {**_step(operation), "outcome": outcome})


def step_retried(operation: StepFacts, attempt: int, delay: float, error: str) -> None:
    """Emit that a step is retried."""
    if listens(STEP_RETRY):
        measured = {"attempt": attempt, "delay": delay}
        telemetry.execute(STEP_RETRY, measured, {**_step(operation), "reason": error})


def payload_large(operation: StepFacts, what: str, size: int) -> None:
    """Emit that a result or a checkpoint is large."""
    if listens(PAYLOAD_LARGE):
        telemetry.execute(PAYLOAD_LARGE, {"bytes": size}, {**_step(operation), "what": what})


def checkpoint_saved(operation: StepFacts, number: int, size: int) -> None:
    """Emit that a checkpoint is durable."""
    if listens(STEP_CHECKPOINT):
        measured = {"number": number, "bytes": size}
        telemetry.execute(STEP_CHECKPOINT, measured, _step(operation))


def undo_failed(operation: StepFacts, attempt: int, error: str) -> None:
    """Emit that something could not be undone, and no attempt is left."""
    if listens(UNDO_FAIL):
        facts = {**_step(operation), "reason": error}
        telemetry.execute(UNDO_FAIL, {"attempt": attempt}, facts)


def _step(operation: StepFacts) -> dict[str, Any]:
    run, entry = operation.run, operation.entry
    facts = {**_job(run.job), "worker": run.node.owner}
    return {**facts, "step": entry.id, "step_name": entry.name, "tool": operation.step.tool}


# Leases


def leases_renewed(node: "WorkerPort", asked: int, kept: int, duration: float) -> None:
    """Emit that the leases of a worker were renewed."""
    measured = {"asked": asked, "kept": kept, "duration": duration}
    telemetry.execute(LEASE_RENEW, measured, {"worker": node.owner})


def lease_lost(run: RunFacts) -> None:
    """Emit that this worker no longer owns a job, or may no longer own it."""
    facts = {**_job(run.job), "worker": run.node.owner, "epoch": run.epoch}
    telemetry.execute(LEASE_LOSE, {"count": 1}, facts)


def write_refused(run: RunFacts) -> None:
    """Emit that the store refused a write, because the job has another owner by now."""
    if listens(LEASE_REFUSE):
        facts = {**_job(run.job), "worker": run.node.owner, "epoch": run.epoch}
        telemetry.execute(LEASE_REFUSE, {"count": 1}, facts)


def leases_taken(node: "WorkerPort", jobs: int, workers: int) -> None:
    """Emit that jobs were taken from workers that are gone."""
    if listens(LEASE_TAKE):
        measured = {"jobs": jobs, "workers": workers}
        telemetry.execute(LEASE_TAKE, measured, {"worker": node.owner})


# Effects and people


def effect_written(run: RunFacts, effect: Effect) -> None:
    """Emit a line of the ledger: an intent once it is durable, any other when it is known."""
    _effect(EFFECT[effect.state.value], run, effect)


def effect_reused(run: RunFacts, effect: Effect) -> None:
    """Emit that the recorded result of an effect is used, and it is not repeated."""
    if listens(EFFECT_REUSE):
        _effect(EFFECT_REUSE, run, effect)


def _effect(event: Event, run: RunFacts, effect: Effect) -> None:
    facts = {**_job(run.job), "worker": run.node.owner, "step": effect.place.step}
    facts |= {"kind": effect.kind, "target": effect.target, "key": effect.key}
    telemetry.execute(event, {"count": 1}, facts)


def approval_asked(approval: Approval) -> None:
    """Emit that people are asked."""
    telemetry.execute(APPROVAL_ASK, {"count": 1}, _approval(approval))


def voted(result: Approval | Refusal, vote: Vote) -> None:
    """Emit that somebody has voted, if the vote counts; `state` says whether it decides."""
    if isinstance(result, Approval):
        facts = {"verdict": vote.verdict, "person": vote.person.id, "channel": vote.channel}
        ended = result.decided_at
        waited = {} if ended is None else {"decided": 1, "waited": ended - result.created_at}
        telemetry.execute(APPROVAL_DECIDE, {"count": 1, **waited}, {**_approval(result), **facts})


def _approval(approval: Approval) -> dict[str, Any]:
    return {
        "approval_id": approval.id,
        "job_id": approval.job_id,
        "tenant": approval.tenant,
        "step": approval.step,
        "title": approval.title,
        "risk": str(approval.risk),
        "state": approval.state.value,
    }


def spent(operation: StepFacts, amount: Amount, usage: ModelUsage | None) -> None:
    """Emit what a step has spent, once that is durable."""
    if listens(SPEND):
        measured = {"usd": amount.usd, "tokens": amount.tokens, "calls": amount.calls}
        telemetry.execute(SPEND, measured, {**_step(operation), "usage": usage})


def notice_sent(notice: Notice) -> None:
    """Emit how one delivery of a notice went: `state` says so."""
    if listens(NOTICE_SEND):
        facts = {"channel": notice.channel, "kind": notice.kind.value, "state": notice.state.value}
        telemetry.execute(NOTICE_SEND, {"tries": notice.tries}, {**facts, "job_id": notice.job_id})


# Workers


def schedule_fired(node: "WorkerPort", schedule: Schedule, jobs: int, lag: float) -> None:
    """Emit that the jobs of a schedule were submitted, so many seconds after they were due."""
    if listens(SCHEDULE_FIRE):
        facts = {"schedule": schedule.name, "worker": node.owner}
        telemetry.execute(SCHEDULE_FIRE, {"jobs": jobs, "lag": lag}, facts)


def loop_lag(node: "WorkerPort", lag: float) -> None:
    """Emit how late the event loop of a worker came to its pulse."""
    telemetry.execute(LOOP_LAG, {"lag": lag}, {"worker": node.owner})


def worker(event: Event, node: "WorkerPort") -> None:
    """Emit that a worker is up, drains, or is down."""
    facts = {"worker": node.owner, "queues": tuple(node.queues)}
    telemetry.execute(event, {"concurrency": node.settings.concurrency}, facts)
