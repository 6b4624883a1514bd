"""The attempts of steps, and what a job did at which time: made from its journal and log; pure.

A step that succeeds at once has one entry of the journal and no line of the log. What failed before
is in the log: when the attempt began and ended, and when the next one was to begin. An attempt that
neither ended nor failed was interrupted: its worker died, or the job was stopped.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from perdure.jobs.approval import Approval
from perdure.jobs.effect import is_of_step
from perdure.jobs.model import EntryKind, Job, JobEvent, JournalEntry
from perdure.jobs.state import ENDED, StepState

AttemptOutcome: TypeAlias = Literal["succeeded", "retried", "failed", "running", "interrupted"]
# A step that failed is in the log: any other one that is or was undone had succeeded.
_SUCCEEDED: Final = frozenset(
    {
        StepState.SUCCEEDED,
        StepState.COMPENSATING,
        StepState.COMPENSATED,
        StepState.COMPENSATION_FAILED,
    }
)
_ENDS: Final[dict[str, AttemptOutcome]] = {"step.retried": "retried", "step.failed": "failed"}


class StepAttempt(Struct, frozen=True, kw_only=True):
    """One attempt at a step."""

    step: str
    attempt: int
    started_at: float | None
    ended_at: float | None
    outcome: AttemptOutcome
    error: str | None
    worker: str | None
    version: str
    backoff_until: float | None  # when the next attempt begins


def attempts_of(
    job: Job, journal: Iterable[JournalEntry], log: Sequence[JobEvent], step: str | None = None
) -> list[StepAttempt]:
    """Return the attempts at steps that are known, in the order of the journal.

    Args:
        job: The job.
        journal: Its journal.
        log: Its log.
        step: Only those of this step ("load#2").
    """
    ended: dict[str, list[JobEvent]] = {}
    for event in log:
        if event.type in _ENDS:
            ended.setdefault(str(event.data.get("step", "")), []).append(event)
    claims = [event for event in log if event.type == "claimed"]
    found: list[StepAttempt] = []
    for entry in journal:
        if entry.kind in (EntryKind.STEP, EntryKind.UNDO) and step in (None, entry.id):
            found += _attempts(job, entry, ended.get(entry.id, ()), claims)
    return found


def _attempts(
    job: Job, entry: JournalEntry, ended: Sequence[JobEvent], claims: Sequence[JobEvent]
) -> Iterable[StepAttempt]:
    last = 0
    for event in ended:
        number = int(event.data.get("attempt", 0))
        last = last if number > last else 0  # a person let it begin again
        yield from _interrupted(job, entry, range(last + 1, number))
        yield StepAttempt(
            step=entry.id,
            attempt=number,
            started_at=event.data.get("began_at"),
            ended_at=event.at,
            outcome=_ENDS[event.type],
            error=event.data.get("error"),
            worker=event.actor or None,
            version=job.version,
            backoff_until=event.data.get("again_at"),
        )
        last = number
    yield from _latest(job, entry, last, claims)


def _latest(
    job: Job, entry: JournalEntry, last: int, claims: Sequence[JobEvent]
) -> Iterable[StepAttempt]:
    """Yield the attempt of which the journal knows and the log does not."""
    works = entry.state is StepState.RUNNING
    if entry.attempt <= last or not (works or entry.state in _SUCCEEDED):
        return
    yield from _interrupted(job, entry, range(last + 1, entry.attempt))
    runs = works and job.owner is not None and job.state not in ENDED
    yield StepAttempt(
        step=entry.id,
        attempt=entry.attempt,
        started_at=entry.started_at,
        ended_at=entry.ended_at,
        outcome="running" if runs else "interrupted" if works else "succeeded",
        error=None,
        worker=_worker_at(claims, entry.started_at),
        version=job.version,
        backoff_until=None,
    )


def _interrupted(job: Job, entry: JournalEntry, numbers: range) -> Iterable[StepAttempt]:
    for number in numbers:
        yield StepAttempt(
            step=entry.id,
            attempt=number,
            started_at=None,
            ended_at=None,
            outcome="interrupted",
            error=None,
            worker=None,
            version=job.version,
            backoff_until=None,
        )


def _worker_at(claims: Sequence[JobEvent], moment: float | None) -> str | None:
    """Return the worker that had claimed the job last before a moment."""
    before = [each for each in claims if moment is None or each.at <= moment]
    return before[-1].actor if before else None


# What was done at which time

SpanKind: TypeAlias = Literal["queue", "work", "backoff", "approval", "sleep", "message", "child"]
_WAITS: Final[dict[EntryKind, SpanKind]] = {
    EntryKind.SLEEP: "sleep",
    EntryKind.RECEIVE: "message",
    EntryKind.CHILD: "child",
    EntryKind.APPROVE: "approval",
}


class TimelineSpan(Struct, frozen=True, kw_only=True):
    """A piece of time; without an end it lasts."""

    kind: SpanKind
    start: float
    end: float | None
    attempt: int | None = None


class EntrySpans(Struct, frozen=True, kw_only=True):
    """The pieces of time of one entry of the journal."""

    id: str
    seq: int
    spans: tuple[TimelineSpan, ...]


class Timeline(Struct, frozen=True, kw_only=True):
    """What a job did at which time.

    Attributes:
        queue: When the job was ready, and no worker had it.
        entries: Those of which the journal alone does not tell all: with failed attempts, back-off
            or people who were asked. Any other one worked from its start to its end, or waited.
    """

    queue: tuple[TimelineSpan, ...]
    entries: tuple[EntrySpans, ...]


def timeline(
    job: Job,
    journal: Sequence[JournalEntry],
    log: Sequence[JobEvent],
    approvals: Sequence[Approval],
    now: float,
) -> Timeline:
    """Return what a job did at which time, up to now."""
    tried: dict[str, list[StepAttempt]] = {}
    for attempt in attempts_of(job, journal, log):
        tried.setdefault(attempt.step, []).append(attempt)
    entries: list[EntrySpans] = []
    for entry in journal:
        asked = [each for each in approvals if is_of_step(each.step, entry.id)]
        spans = _spans(entry, tried.get(entry.id, []), asked)
        if len(spans) > 1:
            entries.append(EntrySpans(id=entry.id, seq=entry.seq, spans=spans))
    return Timeline(queue=tuple(_queued(job, journal, log, now)), entries=tuple(entries))


def _spans(
    entry: JournalEntry, tried: Sequence[StepAttempt], asked: Sequence[Approval]
) -> tuple[TimelineSpan, ...]:
    spans = [
        TimelineSpan(kind="approval", start=each.created_at, end=each.decided_at) for each in asked
    ]
    kind = _WAITS.get(entry.kind)
    if kind is not None and entry.started_at is not None and kind != "approval":
        spans.append(TimelineSpan(kind=kind, start=entry.started_at, end=entry.ended_at))
    for each in tried:
        if each.started_at is not None:
            work = TimelineSpan(
                kind="work", start=each.started_at, end=each.ended_at, attempt=each.attempt
            )
            spans.append(work)
        if each.backoff_until is not None and each.ended_at is not None:
            spans.append(TimelineSpan(kind="backoff", start=each.ended_at, end=each.backoff_until))
    return tuple(sorted(spans, key=lambda span: span.start))


def _queued(
    job: Job, journal: Sequence[JournalEntry], log: Sequence[JobEvent], now: float
) -> Iterable[TimelineSpan]:
    """Yield when a job was ready and no worker had it: from the cause to the claim.

    A cause after which the job did something before the next claim is none: a worker had it.
    """
    ready, busy = sorted(_ready_times(journal, log)), sorted(_busy_times(journal, log))
    claims: list[float | None] = [event.at for event in log if event.type == "claimed"]
    if job.owner is None and job.state not in ENDED:
        claims.append(None)  # it may be ready now
    for claim in claims:
        end = now if claim is None else claim
        place = bisect_left(busy, end)
        since = busy[place - 1] if place else -math.inf
        first = bisect_right(ready, since)
        if first < len(ready) and ready[first] <= end:
            yield TimelineSpan(kind="queue", start=ready[first], end=claim)


def _busy_times(journal: Sequence[JournalEntry], log: Sequence[JobEvent]) -> Iterable[float]:
    """Yield moments at which a worker had the job."""
    for event in log:
        if event.type in _ENDS or event.type == "claimed":
            yield event.at
    for entry in journal:
        for moment in (entry.started_at, entry.ended_at):
            if moment is not None:
                yield moment


_READY: Final = frozenset({"lease.expired", "resume.asked", "retry.asked", "compensate.asked"})


def _ready_times(journal: Sequence[JournalEntry], log: Sequence[JobEvent]) -> Iterable[float]:
    for event in log:
        data: dict[str, Any] = event.data
        if event.type == "submitted":
            yield event.at + float(data.get("delay", 0.0))
        elif event.type in _READY:
            yield event.at
        elif data.get("again_at") is not None:
            yield float(data["again_at"])
    for entry in journal:
        if entry.kind is EntryKind.SLEEP and entry.wake_at is not None:
            yield entry.wake_at
