import enum
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base.duration import (
    LONGEST_TEXT,
    Duration,
    job_seconds,
    named_seconds,
    required_seconds,
    seconds,
    spell,
)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (0, 0.0),
        (5, 5.0),
        (0.25, 0.25),
        (timedelta(minutes=1, milliseconds=5), 60.005),
        (timedelta(0), 0.0),
        ("0s", 0.0),
        ("5ns", 5e-9),
        ("7us", 7e-6),
        ("7\u00b5s", 7e-6),
        ("7\u03bcs", 7e-6),
        ("100ms", 0.1),
        ("3s", 3.0),
        ("1m", 60.0),
        ("2h", 7200.0),
        ("1m30s", 90.0),
        ("1h2m3s4ms5us6ns", 3723.004005006),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("+2s", 2.0),
        ("30s1m", 90.0),
        ("0.1s0.2s", 0.3),
    ],
)
def test_a_duration_is_given_in_seconds(duration: Duration, expected: float) -> None:
    assert seconds(duration) == expected
    assert required_seconds(duration) == expected
    assert type(required_seconds(duration)) is float


def test_none_means_no_limit() -> None:
    assert seconds(None) is None


def test_none_is_refused_where_a_limit_is_needed() -> None:
    with pytest.raises(TypeError, match="a limit is needed here"):
        required_seconds(None)


class Level(enum.IntEnum):
    LOW = 3
    HUGE = 10**400


class Reading(float):
    pass


def test_subclasses_of_numbers_are_numbers() -> None:
    assert required_seconds(Level.LOW) == 3.0
    assert type(required_seconds(Reading(1.5))) is float
    with pytest.raises(ValueError, match="too large"):
        required_seconds(Level.HUGE)
    with pytest.raises(ValueError, match="negative"):
        required_seconds(Reading(-1))


@pytest.mark.parametrize(
    ("duration", "why"),
    [
        (-1, "negative"),
        (-0.001, "negative"),
        (float("-inf"), "negative"),
        (float("nan"), "not a number"),
        (float("inf"), "too large"),
        (10**400, "too large"),
        pytest.param(-(10**5000), "negative", id="more digits than Python prints"),
        (timedelta(seconds=-1), "negative"),
        ("-5s", "negative"),
        ("", "not a sequence of numbers with units"),
        ("+", "not a sequence of numbers with units"),
        ("s", "not a sequence of numbers with units"),
        ("soon", "not a sequence of numbers with units"),
        (" 5s", "not a sequence of numbers with units"),
        ("1..5s", "a unit is missing"),
        (".s", "not a sequence of numbers with units"),
        ("\u0665s", "not a sequence of numbers with units"),
        ("5", "a unit is missing"),
        ("0", "a unit is missing"),
        ("1m30", "a unit is missing"),
        ("5s ", "unknown unit 's '"),
        ("5 s", "unknown unit ' s'"),
        ("5S", "unknown unit 'S'"),
        ("3d", "unknown unit 'd'"),
        ("1s-2s", "unknown unit 's-'"),
        ("1e3s", "unknown unit 'e'"),
        ("5s\n", "unknown unit"),
        ("1" * LONGEST_TEXT + "s", "longer than 64 characters"),
    ],
)
def test_a_bad_value_is_refused_with_the_reason_and_what_is_accepted(
    duration: Duration, why: str
) -> None:
    for convert in (seconds, required_seconds):
        with pytest.raises(ValueError, match="bad duration") as caught:
            convert(duration)
        assert why in str(caught.value)
        assert "use a number of seconds, a timedelta, or a string with units" in str(caught.value)


@pytest.mark.parametrize("duration", [True, False, b"5s", [5], 1j, object, ("5s",)])
def test_other_types_are_refused(duration: Any) -> None:
    with pytest.raises(TypeError, match="is not a duration; use a number of seconds"):
        seconds(duration)


def test_a_bad_text_is_refused_every_time() -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="unknown unit"):
            seconds("5x")


def test_an_error_can_begin_with_the_name_of_the_parameter() -> None:
    assert named_seconds("timeout", "1s") == 1.0
    with pytest.raises(ValueError, match=r"^timeout: bad duration '5': a unit is missing; use"):
        named_seconds("timeout", "5")
    with pytest.raises(TypeError, match=r"^timeout: bad duration None: a limit is needed here"):
        named_seconds("timeout", None)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0s"),
        (90, "1m30s"),
        (0.25, "250ms"),
        (7200, "2h"),
        (3600.5, "1h0.5s"),
        (60, "1m"),
        (1, "1s"),
        (1.5, "1.5s"),
        (0.0015, "1.5ms"),
        (1.5e-6, "1.5us"),
        (1.5e-7, "150ns"),
        (1e-12, "0s"),
        (0.9999999999, "1s"),
        (59.9999999999, "1m"),
        (100 * 3600, "100h"),
        ("90s", "1m30s"),
        (timedelta(days=1), "24h"),
    ],
)
def test_a_duration_is_spelled_for_people(duration: Duration, text: str) -> None:
    assert spell(duration) == text


@given(st.integers(min_value=0, max_value=10**15))
def test_what_is_spelled_is_read_back_to_the_nanosecond(nanoseconds: int) -> None:
    assert seconds(spell(nanoseconds / 10**9)) == nanoseconds / 10**9


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_every_finite_duration_can_be_spelled(duration: float) -> None:
    assert spell(duration)[0].isdigit()


@given(st.text(alphabet="0123456789.+-nuµmsh x", max_size=LONGEST_TEXT + 2))
def test_text_is_either_read_or_refused_with_a_sentence(text: str) -> None:
    try:
        result = required_seconds(text)
    except ValueError as error:
        assert str(error).startswith("bad duration")  # noqa: PT017  either outcome is fine
    else:
        assert 0 <= result < float("inf")


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from(["ns", "us", "ms", "s", "m", "h"])),
        min_size=1,
        max_size=6,
    )
)
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    sizes = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert seconds(text) == sum(number * sizes[unit] for number, unit in parts) / 10**9


@pytest.mark.parametrize(
    ("written", "expected"),
    [("3d", 259_200.0), ("1.5d", 129_600.0), ("1d12h", 129_600.0), ("90s", 90.0), (None, None)],
)
def test_what_jobs_wait_for_may_be_given_in_days(
    written: str | None, expected: float | None
) -> None:
    assert job_seconds(written) == expected


@pytest.mark.parametrize("written", ["d", "-1d", "1d-1h", "1h1d", "1dd", "3w"])
def test_days_that_are_none_are_refused(written: str) -> None:
    with pytest.raises(ValueError, match="bad duration"):
        job_seconds(written)
