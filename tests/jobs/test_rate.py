"""Rates: in any window of `per` seconds there are at most `rate` claims."""

from hypothesis import given
from hypothesis import strategies as st

from perdure.jobs.rate import MOST_CLAIMS, Claims, places_left, still_counting, with_claim

PER = 60.0


def claimed(arrivals: list[tuple[float, int]], rate: int) -> list[tuple[float, int]]:
    """Let so many wish to be claimed after each pause; give when and how many were."""
    claims: Claims = ()
    now, found = 0.0, list[tuple[float, int]]()
    for pause, wanted in arrivals:
        now += pause
        claims = still_counting(claims, now, PER)
        if number := min(wanted, places_left(claims, rate)):
            claims = with_claim(claims, now, number)
            found.append((now, number))
        assert len(claims) <= MOST_CLAIMS
    return found


def most_in_a_window(found: list[tuple[float, int]]) -> int:
    return max(
        (sum(number for at, number in found if begin <= at < begin + PER) for begin, _ in found),
        default=0,
    )


arrivals = st.lists(st.tuples(st.floats(0, 90), st.integers(1, 12)), max_size=60)


@given(arrivals, st.integers(1, 20))
def test_no_window_holds_more_claims_than_the_rate(
    given_arrivals: list[tuple[float, int]], rate: int
) -> None:
    assert most_in_a_window(claimed(given_arrivals, rate)) <= rate


@given(st.lists(st.floats(0, 0.5), min_size=200, max_size=300), st.integers(100, 400))
def test_no_window_holds_more_claims_than_a_high_rate(pauses: list[float], rate: int) -> None:
    found = claimed([(pause, 5) for pause in pauses], rate)
    assert most_in_a_window(found) <= rate


@given(arrivals, st.integers(1, 20), st.floats(-1e6, 1e6))
def test_one_window_after_a_clock_was_set_all_places_are_free(
    given_arrivals: list[tuple[float, int]], rate: int, step: float
) -> None:
    claims: Claims = ()
    now = 1e6
    for pause, wanted in given_arrivals:
        now += pause
        claims = still_counting(claims, now, PER)
        claims = with_claim(claims, now, min(wanted, places_left(claims, rate)))
    claims = still_counting(claims, now + step, PER)
    assert places_left(still_counting(claims, now + step + PER, PER), rate) == rate
