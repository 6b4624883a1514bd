"""What follows the failure of a job."""

from typing import Any

import pytest
from msgspec import Raw

from perdure.base.errors import ApprovalExpired, StepFailed
from perdure.jobs.failure import Failure, failure_of, stopped_at, type_name
from perdure.jobs.on_failure import FailureRules, after_failure

BUG = Failure(type="ValueError", message="row 7")
OUTAGE = Failure(type="ConnectionError", message="away", outage=True)
SILENCE = Failure(type=type_name(ApprovalExpired), message="nobody")
OUTCOME = Failure(type="SoldOut", message="no lamps", data=Raw(b"{}"))


@pytest.mark.parametrize(
    ("failure", "rules", "follows"),
    [
        (BUG, {}, "undo"),
        (BUG, {"app": "ask"}, "ask"),
        (BUG, {"app": "ask", "job": "park"}, "park"),
        (BUG, {"app": "ask", "job": "park", "step": "undo"}, "undo"),
        (BUG, {"job": "park", "is_cancelled": True}, "undo"),
        (OUTCOME, {"job": "park", "step": "ask"}, "undo"),
        (OUTAGE, {"job": "ask", "step": "undo"}, "park"),
        (OUTAGE, {"job": "ask", "on_outage": "fail"}, "ask"),
        (OUTAGE, {"on_outage": "fail"}, "undo"),
        (SILENCE, {"job": "undo"}, "park"),
    ],
)
def test_what_follows(failure: Failure, rules: dict[str, Any], follows: str) -> None:
    assert after_failure(failure, FailureRules(**rules)) == follows


def _failed(step: str) -> StepFailed:
    return StepFailed(step, "ValueError", "row 7")


def test_an_error_that_hides_where_it_came_from_came_from_nowhere() -> None:
    hides = RuntimeError("something else")
    hides.__context__, hides.__suppress_context__ = _failed("load#1"), True
    assert list(stopped_at(hides)) == []


def test_an_error_for_a_group_of_errors_came_from_all_of_them() -> None:
    error = RuntimeError("both")
    error.__cause__ = ExceptionGroup("both", [_failed("load#2"), _failed("load#1")])
    assert list(stopped_at(error)) == ["load#2", "load#1"]
    assert failure_of(error).step == "load#2"


def test_errors_that_are_reasons_of_each_other_end() -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert list(stopped_at(one)) == []
