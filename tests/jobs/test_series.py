"""Numbers over time."""

from perdure.jobs.series import per_minute, percentiles


def test_a_minute_in_which_nothing_happened_is_a_zero() -> None:
    assert per_minute({10: 4, 12: 1, 3: 9}, 12 * 60 + 30, 3) == ((600, 4), (660, 0), (720, 1))


def test_percentiles_are_values_of_the_sample() -> None:
    found = percentiles([float(number) for number in range(1, 101)])
    assert (found.count, found.p50, found.p95, found.p99) == (100, 50, 95, 99)
    assert percentiles([3.0]).p99 == 3.0
    assert percentiles([]).p50 is None
