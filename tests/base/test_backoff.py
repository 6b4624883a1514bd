import asyncio
import dataclasses
import pickle
import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base.errors import Shutdown
from perdure.base.retry import Retry

FINITE = st.floats(min_value=0, max_value=sys.float_info.max)


def test_the_standard_policy_is_four_calls_with_doubling_pauses() -> None:
    policy = Retry()
    assert policy.attempts == 4
    assert [policy.delay(failures) for failures in (1, 2, 3)] == [0.2, 0.4, 0.8]


def test_after_no_failure_there_is_nothing_to_wait_for() -> None:
    assert Retry(jitter=0.5).delay(0) == 0.0


def test_durations_are_kept_in_seconds() -> None:
    policy = Retry(initial_delay="1m30s", max_delay="2h")
    assert (policy.initial_delay, policy.max_delay) == (90.0, 7200.0)
    assert Retry(initial_delay="200ms") == Retry(initial_delay=0.2)


def test_a_pause_is_never_longer_than_most() -> None:
    policy = Retry(initial_delay="1s", factor=10, max_delay="30s")
    assert [policy.delay(failures) for failures in (1, 2, 3, 4)] == [1.0, 10.0, 30.0, 30.0]
    assert Retry(initial_delay="1s", max_delay="500ms").delay(1) == 0.5


def test_a_factor_of_one_keeps_the_pause() -> None:
    assert Retry(initial_delay=3, factor=1).delay(10**400) == 3.0


def test_no_first_pause_means_no_pause_at_all() -> None:
    assert Retry(initial_delay=0, factor=1e300).delay(10**9) == 0.0


def test_huge_numbers_do_not_overflow() -> None:
    assert Retry(max_delay="1h").delay(10**400) == 3600.0
    assert 1e300 < Retry().delay(10**400) <= sys.float_info.max
    assert Retry(initial_delay=1e300, jitter=1).delay(10**400, Random(1)) <= sys.float_info.max


@given(FINITE, st.floats(1, 1e300), FINITE, st.floats(0, 1), st.integers(0, 10**400))
def test_every_pause_is_between_zero_and_most(
    first: float, factor: float, most: float, jitter: float, failures: int
) -> None:
    policy = Retry(initial_delay=first, factor=factor, max_delay=most, jitter=jitter)
    assert 0 <= policy.delay(failures, Random(7)) <= most


@given(st.floats(0.001, 1000), st.floats(1, 4), st.integers(1, 40), st.floats(0, 1), st.integers())
def test_jitter_moves_a_pause_by_its_fraction_at_most(
    first: float, factor: float, failures: int, jitter: float, seed: int
) -> None:
    exact = Retry(initial_delay=first, factor=factor).delay(failures)
    assert exact == pytest.approx(first * factor ** (failures - 1))
    moved = Retry(initial_delay=first, factor=factor, jitter=jitter).delay(failures, Random(seed))
    assert exact * (1 - jitter) <= moved <= exact * (1 + jitter)


def test_jitter_goes_both_ways_and_is_the_same_for_the_same_seed() -> None:
    policy = Retry(initial_delay=1, jitter=0.5)
    pauses = [policy.delay(1, Random(seed)) for seed in range(50)]
    assert min(pauses) < 0.7
    assert max(pauses) > 1.3
    assert pauses == [policy.delay(1, Random(seed)) for seed in range(50)]


def test_jitter_needs_no_source_of_chance() -> None:
    policy = Retry(initial_delay=1, jitter=0.5)
    pauses = {policy.delay(1) for _ in range(20)}
    assert len(pauses) > 1
    assert all(0.5 <= pause <= 1.5 for pause in pauses)


def test_pauses_at_the_cap_still_differ() -> None:
    policy = Retry(initial_delay=100, max_delay=10, jitter=0.5)
    pauses = [policy.delay(1, Random(seed)) for seed in range(50)]
    assert len(set(pauses)) == 50
    assert all(5 <= pause <= 10 for pause in pauses)


def test_a_single_class_of_exceptions_may_stand_alone() -> None:
    assert Retry(on=OSError).on == (OSError,)
    assert Retry(on=[OSError, KeyError]).on == (OSError, KeyError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attempts": 0}, "attempts must be 1 or more"),
        ({"attempts": -3}, "attempts must be 1 or more"),
        ({"initial_delay": "5"}, "initial_delay: bad duration '5': a unit is missing"),
        ({"initial_delay": -1}, "initial_delay: bad duration -1: negative"),
        ({"max_delay": "soon"}, "max_delay: bad duration 'soon'"),
        ({"factor": 0.5}, "factor must be 1 or more, not 0.5"),
        ({"factor": float("inf")}, "factor must be 1 or more"),
        ({"factor": float("nan")}, "factor must be 1 or more"),
        ({"jitter": -0.1}, "jitter must be from 0 to 1"),
        ({"jitter": 1.1}, "jitter must be from 0 to 1"),
        ({"jitter": float("nan")}, "jitter must be from 0 to 1"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Retry(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attempts": 2.0}, "attempts must be an int"),
        ({"attempts": True}, "attempts must be an int"),
        ({"attempts": None}, "attempts must be an int"),
        ({"initial_delay": None}, "initial_delay: bad duration None"),
        ({"factor": "2"}, "factor must be a number"),
        ({"jitter": True}, "jitter must be a number"),
        ({"on": ["OSError"]}, "on must hold subclasses of Exception"),
        ({"on": [OSError()]}, "on must hold subclasses of Exception"),
        ({"on": BaseException}, "on must hold subclasses of Exception"),
        ({"on": [asyncio.CancelledError]}, "on must hold subclasses of Exception"),
        ({"on": [Shutdown]}, "on must hold subclasses of Exception"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Retry(**arguments)


def test_a_negative_number_of_failures_is_refused() -> None:
    with pytest.raises(ValueError, match="failures must be 0 or more"):
        Retry().delay(-1)


def test_a_policy_cannot_be_changed_but_copied_with_a_change() -> None:
    policy = Retry(max_delay="1s")
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.attempts = 5  # pyright: ignore[reportAttributeAccessIssue]
    assert dataclasses.replace(policy, attempts=5) == Retry(attempts=5, max_delay=1)
    assert hash(policy) == hash(Retry(max_delay=1.0))


def test_a_policy_can_travel_to_another_os_process() -> None:
    policy = Retry(3, "1s", 3, "1m", 0.1, (OSError,))
    assert pickle.loads(pickle.dumps(policy)) == policy
