"""Numbers over time, for the page of metrics; pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from perdure.jobs.gauges import Backlog

MINUTE: Final = 60.0
LONGEST: Final = 24 * 60  # minutes


class StepStats(Struct, frozen=True, kw_only=True):
    """How a step did in recent jobs."""

    step: str
    count: int
    failed: int
    attempts: int  # of all of them together
    largest_checkpoint: int  # bytes

    @property
    def failure_rate(self) -> float:
        """The share of those that failed for good."""
        return self.failed / self.count if self.count else 0.0

    @property
    def attempts_needed(self) -> float:
        """How many attempts each of them took, on average."""
        return self.attempts / self.count if self.count else 0.0


class Percentiles(Struct, frozen=True, kw_only=True):
    """Of a sample; None if it is empty."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None


def percentiles(sample: Sequence[float]) -> Percentiles:
    """Return the percentiles of a sample: each is one of its values."""
    ordered = sorted(sample)

    def rank(share: float) -> float | None:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None

    return Percentiles(count=len(ordered), p50=rank(0.5), p95=rank(0.95), p99=rank(0.99))


def per_minute(
    counted: Mapping[int, int], now: float, minutes: int
) -> tuple[tuple[float, int], ...]:
    """Return a number for each of the last minutes, also where nothing was counted.

    `counted` has the numbers by minute since the epoch.
    """
    last = int(now // MINUTE)
    shown = range(last - minutes + 1, last + 1)
    return tuple((each * MINUTE, counted.get(each, 0)) for each in shown)


class MetricsFacts(Struct, frozen=True, kw_only=True):
    """What was read for the page of metrics, of all tenants or of one."""

    now: float
    submitted: dict[int, int]  # by minute
    ended: dict[str, dict[int, int]]  # by state, then by minute
    worked: tuple[float, ...]  # seconds of work of jobs that completed in this time
    worked_before: tuple[float, ...]  # … and in a time as long before it
    steps: tuple[StepStats, ...]
    sampled_jobs: int
    reused: int  # how often the recorded result of an effect was used again, in the sampled jobs
    stuck: int
    failed_undos: int
    approvals: Backlog
    in_doubt: Backlog
    queues: dict[str, Backlog]


class QueueBacklog(Struct, frozen=True, kw_only=True):
    """The jobs of a queue that are ready, and for how long the oldest of them has waited."""

    name: str
    ready: int
    oldest: float


class SeedGauges(Struct, frozen=True, kw_only=True):
    """The seven figures to watch, with the limits at which somebody should look."""

    job_duration_seconds: Percentiles  # worked time
    job_duration_usual_p95: float | None  # of the time before: look at twice as much
    step_failure_rate: float  # of the worst step: look at 0.3
    step_failure_worst: str | None
    step_attempts_avg: float | None  # of the step that needs most: look at 2
    step_attempts_worst: str | None
    job_stuck_count: int  # look at 1
    compensation_failure_count: int  # look at 1
    side_effect_duplicate_count: int
    checkpoint_size_bytes: int  # the largest: look at 10 KB


class MetricsPage(Struct, frozen=True, kw_only=True):
    """What the page of metrics shows."""

    now: float
    minutes: int
    series: dict[str, tuple[tuple[float, int], ...]]
    gauges: SeedGauges
    steps: tuple[StepStats, ...]  # the worst first
    sampled_jobs: int  # so many of the newest jobs tell about steps, effects and checkpoints
    queues: tuple[QueueBacklog, ...]
    approvals: Backlog
    in_doubt: Backlog


_MOST_STEPS: Final = 50
_FEW: Final = 5  # runs of a step below which its rate says nothing


def metrics_page(facts: MetricsFacts, minutes: int) -> MetricsPage:
    """Return the page of metrics."""
    series = {
        "submitted": per_minute(facts.submitted, facts.now, minutes),
        **{
            state.lower(): per_minute(facts.ended.get(state, {}), facts.now, minutes)
            for state in ("COMPLETED", "FAILED", "CANCELLED", "COMPENSATED")
        },
    }
    worst = sorted(facts.steps, key=_trouble, reverse=True)
    return MetricsPage(
        now=facts.now,
        minutes=minutes,
        series=series,
        gauges=_gauges(facts, worst),
        steps=tuple(worst[:_MOST_STEPS]),
        sampled_jobs=facts.sampled_jobs,
        queues=tuple(
            QueueBacklog(name=name, ready=each.count, oldest=each.oldest)
            for name, each in sorted(facts.queues.items())
        ),
        approvals=facts.approvals,
        in_doubt=facts.in_doubt,
    )


def _trouble(step: StepStats) -> tuple[float, float, int, str]:
    return step.failure_rate, step.attempts_needed, step.count, step.step


def _gauges(facts: MetricsFacts, worst: Sequence[StepStats]) -> SeedGauges:
    telling = [each for each in worst if each.count >= _FEW] or list(worst)
    tried = max(telling, key=lambda each: each.attempts_needed, default=None)
    return SeedGauges(
        job_duration_seconds=percentiles(facts.worked),
        job_duration_usual_p95=percentiles(facts.worked_before).p95,
        step_failure_rate=telling[0].failure_rate if telling else 0.0,
        step_failure_worst=telling[0].step if telling and telling[0].failed else None,
        step_attempts_avg=None if tried is None else tried.attempts_needed,
        step_attempts_worst=tried.step if tried is not None and tried.attempts_needed > 1 else None,
        job_stuck_count=facts.stuck,
        compensation_failure_count=facts.failed_undos,
        side_effect_duplicate_count=facts.reused,
        checkpoint_size_bytes=max((each.largest_checkpoint for each in facts.steps), default=0),
    )
