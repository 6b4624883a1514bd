"""When schedules are due."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base.errors import DefinitionError
from perdure.jobs.cron import MOST_CAUGHT_UP, Due, check_cron, due, key, next_time

BERLIN = "Europe/Berlin"


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def test_a_schedule_is_said_in_words() -> None:
    assert check_cron("*/15 9-17 * * 1-5").startswith("Every 15th minute from 09:00")


@pytest.mark.parametrize("cron", ["", "* * * *", "61 * * * *", "0 0 30 2 *", "daily"])
def test_what_is_no_cron_expression_is_refused(cron: str) -> None:
    with pytest.raises(DefinitionError, match="not a cron expression"):
        check_cron(cron)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd"])
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(DefinitionError, match="unknown time zone"):
        check_cron("* * * * *", zone)


def test_the_hours_are_those_of_the_time_zone() -> None:
    found = next_time("0 9 * * *", BERLIN, at("2026-01-01T00:00"))
    assert found == at("2026-01-01T09:00", BERLIN) == at("2026-01-01T08:00")


def test_a_time_that_the_clock_skips_in_spring_comes_after_the_gap() -> None:
    found = next_time("30 2 * * *", BERLIN, at("2026-03-28T12:00", BERLIN))
    assert found == at("2026-03-29T03:00", BERLIN)


def test_a_time_that_comes_twice_in_autumn_is_taken_once() -> None:
    first = next_time("30 2 * * *", BERLIN, at("2026-10-24T12:00", BERLIN))
    assert first is not None
    assert first == at("2026-10-25T02:30", BERLIN)
    assert next_time("30 2 * * *", BERLIN, first) == at("2026-10-26T02:30", BERLIN)


NEW_YORK, LORD_HOWE = "America/New_York", "Australia/Lord_Howe"  # there it is half an hour


def times_between(cron: str, zone: str, begin: str, end: str) -> list[str]:
    """Give the times of a day in UTC."""
    found, now, last = list[str](), at(begin, zone) - 1, at(end, zone)
    while (now := next_time(cron, zone, now) or last) < last:
        found.append(f"{datetime.fromtimestamp(now, UTC):%d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("cron", "zone", "day", "expected"),
    [
        # At fixed hours, each time of the day counts once, whatever the minutes are.
        ("*/30 2 * * *", BERLIN, "2026-10-25", ["25 00:00", "25 00:30"]),
        ("0,30 2 * * *", BERLIN, "2026-10-25", ["25 00:00", "25 00:30"]),
        (
            "*/30 1-3 * * *",
            BERLIN,
            "2026-10-25",
            "24 23:00 24 23:30 25 00:00 25 00:30 25 02:00 25 02:30",
        ),
        ("*/30 1 * * *", NEW_YORK, "2026-11-01", ["01 05:00", "01 05:30"]),
        ("*/15 1 * * *", LORD_HOWE, "2026-04-05", "04 14:00 04 14:15 04 14:30 04 14:45"),
        # Times that the clocks skip come after the gap, together.
        ("*/30 2 * * *", BERLIN, "2026-03-29", ["29 01:00"]),
        ("*/30 2 * * *", NEW_YORK, "2026-03-08", ["08 07:00"]),
        ("*/15 2 * * *", LORD_HOWE, "2026-10-04", ["03 15:30", "03 15:45"]),
        # In every hour, or every so many, time goes on: the hour that comes twice counts twice.
        ("30 * * * *", BERLIN, "2026-10-25", 25),
        ("30 * * * *", BERLIN, "2026-03-29", 23),
        ("*/30 * * * *", NEW_YORK, "2026-11-01", 50),
        ("*/30 * * * *", LORD_HOWE, "2026-04-05", 49),
        ("*/30 * * * *", LORD_HOWE, "2026-10-04", 47),
        ("0 */6 * * *", BERLIN, "2026-10-25", 4),
    ],
)
def test_on_a_day_on_which_the_clocks_change_each_time_counts_as_often_as_cron_says(
    cron: str, zone: str, day: str, expected: list[str] | str | int
) -> None:
    found = times_between(cron, zone, f"{day}T00:00", f"{day}T23:59:59")
    if isinstance(expected, str):
        words = expected.split()
        expected = [" ".join(words[place : place + 2]) for place in range(0, len(words), 2)]
    assert (len(found) if isinstance(expected, int) else found) == expected


@given(
    st.sampled_from(["*/30 2", "*/15 1", "0,30 1-3", "*/7 0-4", "59 2", "*/20 2,23"]),
    st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, "America/Sao_Paulo", "Africa/Cairo"]),
    st.sampled_from([65, 66, 86, 87, 93, 94, 112, 113, 275, 276, 296, 297, 301, 302, 303, 304]),
)
def test_at_fixed_hours_every_day_has_each_wall_time_at_most_once(
    hours: str, zone: str, days: int
) -> None:
    begin = at("2025-12-31T12:00", zone) + days * 86400
    seen, now = list[datetime](), begin
    while (now := next_time(f"{hours} * * *", zone, now) or 0.0) < begin + 86400:
        seen.append(datetime.fromtimestamp(now, ZoneInfo(zone)).replace(fold=0, tzinfo=None))
    assert len(seen) == len(set(seen))
    plain = times_between(f"{hours} * * *", "UTC", "2026-01-01T00:00", "2026-01-02T00:00")
    assert len(seen) <= len(plain)


def test_a_missed_time_that_comes_twice_is_made_up_for_once() -> None:
    begin, now = at("2026-10-25T02:00", BERLIN), at("2026-10-25T12:00", BERLIN)
    found = due("*/30 2 * * *", BERLIN, begin, now, "all")
    assert found.times == (begin, begin + 1800)


def test_before_its_time_nothing_is_due() -> None:
    assert due("0 * * * *", "UTC", 7200, 7199.9) == Due((), 7200)


HOURLY = [at(f"2026-01-01T0{hour}:00") for hour in range(6)]
LATE = at("2026-01-01T05:30")


@pytest.mark.parametrize(
    ("catch_up", "times"),
    [("skip", ()), ("one", (HOURLY[5],)), ("all", tuple(HOURLY[1:]))],
)
def test_missed_times_are_made_up_for_as_the_policy_says(
    catch_up: str, times: tuple[float, ...]
) -> None:
    found = due("0 * * * *", "UTC", HOURLY[1], LATE, catch_up)  # pyright: ignore[reportArgumentType]
    assert found == Due(times, at("2026-01-01T06:00"))


@pytest.mark.parametrize("catch_up", ["skip", "one", "all"])
def test_a_time_that_is_just_over_is_not_missed(catch_up: str) -> None:
    found = due("0 * * * *", "UTC", HOURLY[1], HOURLY[1] + 5, catch_up)  # pyright: ignore[reportArgumentType]
    assert found == Due((HOURLY[1],), HOURLY[2])


def test_after_years_only_the_latest_times_are_made_up_for() -> None:
    now = at("2026-01-01T00:00")
    found = due("* * * * *", "UTC", at("2016-01-01T00:00"), now, "all")
    assert len(found.times) == MOST_CAUGHT_UP
    assert found.times[-1] == now
    assert found.times[0] == now - 60 * (MOST_CAUGHT_UP - 1)
    assert found.next_at == now + 60


@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "0 0 1 * 1", "15 1-3 * 3,10 0"]),
    st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe"]),
    st.floats(1.7e9, 1.9e9),
)
def test_the_next_time_is_always_later(cron: str, zone: str, after: float) -> None:
    first = next_time(cron, zone, after)
    assert first is not None
    assert first > after
    second = next_time(cron, zone, first)
    assert second is not None
    assert second > first


def test_each_time_has_its_own_key() -> None:
    stamp = datetime(2026, 1, 1, 9, 30, tzinfo=UTC).timestamp()
    assert key("nightly", stamp) == "nightly@2026-01-01T09:30:00Z"
