"""Numbers over time."""

from perdure.jobs.gauges import Backlog
from perdure.jobs.series import MetricsFacts, StepStats, metrics_page, per_minute, percentiles


def _step(name: str, count: int, attempts: int) -> StepStats:
    return StepStats(step=name, count=count, failed=0, attempts=attempts, largest_checkpoint=0)


def test_a_minute_in_which_nothing_happened_is_a_zero() -> None:
    assert per_minute({10: 4, 12: 1, 3: 9}, 12 * 60 + 30, 3) == ((600, 4), (660, 0), (720, 1))


def test_percentiles_are_values_of_the_sample() -> None:
    found = percentiles([float(number) for number in range(1, 101)])
    assert (found.count, found.p50, found.p95, found.p99) == (100, 50, 95, 99)
    assert percentiles([3.0]).p99 == 3.0
    assert percentiles([]).p50 is None


def test_the_attempts_of_the_step_that_needs_most_are_not_hidden_by_the_others() -> None:
    steps = (_step("read", 80, 80), _step("pay", 20, 80), _step("once", 1, 9))
    facts = MetricsFacts(
        now=0.0,
        submitted={},
        ended={},
        worked=(),
        worked_before=(),
        steps=steps,
        sampled_jobs=1,
        reused=0,
        stuck=0,
        failed_undos=0,
        approvals=Backlog(),
        in_doubt=Backlog(),
        queues={},
    )
    page = metrics_page(facts, 1)
    assert (page.gauges.step_attempts_avg, page.gauges.step_attempts_worst) == (4, "pay")
    assert [each.step for each in page.steps] == ["once", "pay", "read"]
