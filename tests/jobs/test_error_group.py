"""Failures of the same cause are one group."""

from typing import Any

from perdure.jobs.error_group import (
    ErrorMark,
    ErrorState,
    FailedJob,
    group_failures,
    normalised,
)
from perdure.jobs.failure import Failure

TRACE = """Traceback (most recent call last):
  File "/srv/shop/{file}", line {line}, in pay
    charge()
  File "/usr/lib/python3.11/site-packages/httpx/_client.py", line 901, in post
    raise
"""


def _failed(id: str, at: float = 1.0, **values: Any) -> FailedJob:
    given: dict[str, Any] = {"type": "ValueError", "message": "no row 17", "step": "load#2"}
    error = Failure(**(given | values)).pack()
    return FailedJob(id=id, tenant="acme", name="migrate", at=at, error=error)


def test_what_differs_in_ids_and_numbers_only_is_one_group() -> None:
    groups = group_failures(
        [
            _failed("a", 1, message="no row 17 of 'kim'"),
            _failed("b", 3, message="no row 4,211 of 'ann'", step="load#9"),
            _failed("c", 2, message="no row 0xff of 'bob'"),
        ],
        {},
    )
    (group,) = groups
    assert (group.count, group.first_at, group.last_at, group.sample_job) == (3, 1, 3, "b")
    assert (group.step, group.message) == ("load", "no row 4,211 of 'ann'")


def test_another_type_step_or_place_is_another_group() -> None:
    groups = group_failures(
        [
            _failed("a"),
            _failed("b", type="KeyError"),
            _failed("c", step="save#1"),
            _failed("d", trace=TRACE.format(file="pay.py", line=3)),
            _failed("e", trace=TRACE.format(file="refund.py", line=3)),
        ],
        {},
    )
    assert len(groups) == 5
    assert {each.frame for each in groups} == {"", "pay.py in pay", "refund.py in pay"}


def test_another_line_of_the_same_function_is_the_same_group() -> None:
    traces = [TRACE.format(file="pay.py", line=line) for line in (3, 40)]
    groups = group_failures([_failed(str(n), trace=each) for n, each in enumerate(traces)], {})
    assert len(groups) == 1


def test_a_resolved_group_is_open_again_when_it_happens_again_and_an_ignored_one_is_not() -> None:
    (group,) = group_failures([_failed("a", 5)], {})
    for state, at, shown in (
        (ErrorState.RESOLVED, 6, ErrorState.RESOLVED),
        (ErrorState.RESOLVED, 4, ErrorState.OPEN),
        (ErrorState.IGNORED, 4, ErrorState.IGNORED),
    ):
        marks = {group.fingerprint: ErrorMark(state=state, by="ann", at=at)}
        assert group_failures([_failed("a", 5)], marks)[0].state is shown


def test_ids_of_all_kinds_are_left_out_of_a_message() -> None:
    text = "job 18e8f1cbc022d0eb574a8028152a5b55 at 10.0.0.7:5432 for 7f3c2a11-0b6e-4c1f-9d5e-1"
    assert normalised(text) == "job … at … for …-…"
