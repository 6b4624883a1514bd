from perdure.base.clock import Clock, SystemClock


def test_the_system_clock_is_a_clock_that_never_goes_back() -> None:
    clock: Clock = SystemClock()
    readings = [clock.monotonic_ns() for _ in range(100)]
    assert readings == sorted(readings)
    assert clock.monotonic() * 1e9 >= readings[0]


def test_both_units_tell_the_same_time() -> None:
    clock = SystemClock()
    before, between, after = clock.monotonic_ns(), clock.monotonic(), clock.monotonic_ns()
    assert before <= round(between * 1e9) + 1000  # a float of seconds rounds
    assert round(between * 1e9) <= after + 1000


def test_wall_time_counts_from_1970() -> None:
    clock = SystemClock()
    year_2020 = 1_577_836_800
    assert clock.time() > year_2020
    assert clock.time_ns() > year_2020 * 10**9
    assert type(clock.time_ns()) is int
