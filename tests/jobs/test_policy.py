"""Which errors are tried again, and after how long."""

from datetime import timedelta
from random import Random
from typing import Any

import httpx
import pytest

from perdure.base.errors import (
    ArgumentError,
    Drift,
    Permanent,
    Shutdown,
    StepFailed,
    StepTimeout,
    Unstorable,
)
from perdure.base.retry import Retry
from perdure.jobs.policy import (
    LONGEST_WAIT,
    OUTAGE,
    STANDARD,
    Again,
    GiveUp,
    decide_retry,
    is_outage,
    is_permanent,
)


def http_error(status: int, headers: dict[str, str] | None = None) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://localhost")
    response = httpx.Response(status, headers=headers, request=request)
    return httpx.HTTPStatusError(f"status {status}", request=request, response=response)


class WithStatus(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Busy(Exception):
    def __init__(self, retry_after: Any) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


def delay(decision: Any) -> float:
    assert isinstance(decision, Again)
    return decision.delay


def test_a_step_is_tried_again_until_its_attempts_are_used_up() -> None:
    retry = Retry(attempts=3, initial_delay=1, factor=2)
    error = ValueError("x")
    decisions = [decide_retry(retry, error, attempt) for attempt in (1, 2, 3)]
    assert decisions == [Again(1.0), Again(2.0), GiveUp("used up")]


def test_only_the_listed_errors_are_tried_again() -> None:
    retry = Retry(attempts=9, on=(KeyError, OSError))
    assert isinstance(decide_retry(retry, KeyError("x"), 1), Again)
    assert isinstance(decide_retry(retry, ConnectionError(), 1), Again)
    assert decide_retry(retry, ValueError(), 1) == GiveUp("not retried")


@pytest.mark.parametrize(
    "error",
    [
        Permanent("no"),
        Unstorable("NaN"),
        ArgumentError("x", ["y"]),
        Drift("x"),
        StepFailed("a", "b", "c"),
        Shutdown("x"),
        ExceptionGroup("x", [ConnectionError(), Permanent("no")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_would_fail_again_for_certain_is_never_tried_again(error: BaseException) -> None:
    assert is_permanent(error)
    assert decide_retry(Retry(attempts=9, on=Exception), error, 1) == GiveUp("permanent")
    assert decide_retry(None, error, 1) == GiveUp("permanent")


OUTAGES = [
    ConnectionRefusedError(),
    TimeoutError(),
    httpx.ConnectError("x"),
    httpx.ReadTimeout("x"),
    http_error(503),
    http_error(500),
    http_error(429),
    http_error(408),
    WithStatus(502),
    ExceptionGroup("x", [http_error(503), ExceptionGroup("y", [ConnectionResetError()])]),
]
OURS = [
    ValueError(),
    TypeError(),
    FileNotFoundError(),
    StepTimeout("slow"),
    http_error(400),
    http_error(404),
    http_error(501),
    WithStatus(401),
    ExceptionGroup("x", [http_error(503), ValueError()]),
]


@pytest.mark.parametrize("error", OUTAGES, ids=repr)
def test_an_outage_of_another_system_is_outlasted(error: Exception) -> None:
    assert is_outage(error)
    assert isinstance(decide_retry(None, error, STANDARD.attempts), Again)
    assert decide_retry(None, error, OUTAGE.attempts) == GiveUp("used up", outage=True)


@pytest.mark.parametrize("error", OURS, ids=repr)
def test_any_other_error_shows_soon(error: Exception) -> None:
    assert not is_outage(error)
    assert decide_retry(None, error, STANDARD.attempts) == GiveUp("used up", outage=False)


def test_an_outage_is_waited_for_about_an_hour_and_a_bug_for_seconds() -> None:
    def waited(error: Exception, attempts: int) -> float:
        return sum(delay(decide_retry(None, error, n, Random(7))) for n in range(1, attempts))

    assert 2400 < waited(http_error(503), OUTAGE.attempts) < 5400
    assert waited(ValueError(), STANDARD.attempts) < 3


def test_the_policy_of_the_step_stands_over_the_kind_of_error() -> None:
    assert decide_retry(Retry(attempts=1), http_error(503), 1) == GiveUp("used up", outage=True)


@pytest.mark.parametrize("asked", [90, 90.0, "90", timedelta(seconds=90)], ids=repr)
def test_whoever_asks_for_time_gets_it(asked: Any) -> None:
    assert delay(decide_retry(Retry(initial_delay=1), Busy(asked), 1)) == 90
    assert delay(decide_retry(Retry(initial_delay=200), Busy(asked), 1)) == 200


def test_the_header_of_an_answer_is_heard() -> None:
    error = http_error(429, {"Retry-After": "120"})
    assert delay(decide_retry(Retry(initial_delay=1), error, 1)) == 120


@pytest.mark.parametrize("asked", [None, "Wed, 21 Oct 2026 07:28:00 GMT", -5, "soon", object()])
def test_what_is_no_time_is_not_waited_for(asked: Any) -> None:
    assert delay(decide_retry(Retry(initial_delay=1), Busy(asked), 1)) == 1


def test_nobody_is_waited_for_longer_than_a_day() -> None:
    assert delay(decide_retry(Retry(initial_delay=1), Busy(10**9), 1)) == LONGEST_WAIT
