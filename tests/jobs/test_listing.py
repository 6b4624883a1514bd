"""A job as a row of a list: the state that people see, and where the job is."""

from typing import Any

import pytest

from perdure.base.codec import encode
from perdure.jobs.budget import Amount, Budget, BudgetLimits
from perdure.jobs.failure import Failure
from perdure.jobs.listing import JobFacts, JobRow, LatestEntry, ShownState, job_row
from perdure.jobs.model import EntryKind, Job, Progress
from perdure.jobs.state import JobState, StepState

NOW = 1000.0


def _job(state: JobState, **values: Any) -> Job:
    given: dict[str, Any] = {"id": "a", "tenant": "t", "user": "kim", "name": "work"}
    more: dict[str, Any] = {"version": "1", "queue": "default", "priority": 0, "input": b"{}"}
    if state is JobState.RUNNING:
        more["owner"] = "w1"
    return Job(state=state, **(given | more | values))


def _entry(kind: EntryKind, state: StepState, seq: int = 0, **values: Any) -> LatestEntry:
    given: dict[str, Any] = {"id": f"e#{seq}", "attempt": 0, "wake_at": None}
    return LatestEntry(seq=seq, kind=kind, state=state, **(given | values))


def _row(job: Job, *latest: LatestEntry, **values: Any) -> JobRow:
    return job_row(JobFacts(job=job, latest=latest, **values), NOW)


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        (_entry(EntryKind.STEP, StepState.RUNNING), "running"),
        (_entry(EntryKind.STEP, StepState.SUCCEEDED), "running"),
        (_entry(EntryKind.STEP, StepState.PENDING), "running"),
        (_entry(EntryKind.STEP, StepState.PENDING, attempt=2, wake_at=NOW + 5), "retrying"),
        (_entry(EntryKind.SLEEP, StepState.PENDING, wake_at=NOW + 5), "sleeping"),
        (_entry(EntryKind.RECEIVE, StepState.PENDING), "waiting_for_message"),
        (_entry(EntryKind.APPROVE, StepState.PENDING), "waiting_for_approval"),
        (_entry(EntryKind.CHILD, StepState.PENDING), "waiting_for_children"),
    ],
)
def test_running_is_told_apart_by_what_the_job_does(entry: LatestEntry, shown: str) -> None:
    assert _row(_job(JobState.RUNNING), entry).shown_state == shown


def test_a_running_step_counts_more_than_one_that_waits() -> None:
    row = _row(
        _job(JobState.RUNNING),
        _entry(EntryKind.STEP, StepState.RUNNING, 1),
        _entry(EntryKind.SLEEP, StepState.PENDING, 2),
    )
    assert (row.shown_state, row.current and row.current.id) == ("running", "e#1")


@pytest.mark.parametrize(
    ("wait", "shown"),
    [
        (None, "waiting"),
        ([{"kind": "timer", "id": "sleep#1", "until": NOW + 9}], "sleeping"),
        ([{"kind": "timer"}, {"kind": "approval", "approval": "x"}], "waiting_for_approval"),
        ([{"kind": "retry", "id": "load#2"}], "retrying"),
        ([{"kind": "children", "of": 9}], "waiting_for_children"),
        ({"stored": "otherwise"}, "waiting"),
    ],
)
def test_waiting_is_told_apart_by_what_the_job_waits_for(wait: object, shown: str) -> None:
    job = _job(JobState.WAITING, wait=None if wait is None else encode(wait))
    assert _row(job).shown_state == shown


def test_a_job_took_the_time_from_its_first_start_to_its_end_or_until_now() -> None:
    begun: dict[str, Any] = {"created_at": NOW - 90, "started_at": NOW - 60}
    assert _row(_job(JobState.PENDING, created_at=NOW - 90)).took is None
    assert _row(_job(JobState.WAITING, **begun)).took == 60
    assert _row(_job(JobState.COMPLETED, **begun, ended_at=NOW - 20)).took == 40


def test_a_job_that_is_stuck_shows_it_whatever_its_steps_do() -> None:
    step = _entry(EntryKind.STEP, StepState.RUNNING)
    for state in (JobState.RUNNING, JobState.COMPENSATING):
        assert _row(_job(state, stuck=True), step).shown_state is ShownState.STUCK


def test_a_stuck_job_whose_worker_is_silent_shows_that_since_it_is_the_reason() -> None:
    step = _entry(EntryKind.STEP, StepState.RUNNING)
    for state in (JobState.RUNNING, JobState.COMPENSATING):
        row = _row(_job(state, stuck=True), step, stale=True)
        assert row.shown_state is ShownState.STALE_HEARTBEAT


def test_a_job_whose_worker_is_gone_waits_for_another_one_and_does_not_run() -> None:
    step = _entry(EntryKind.STEP, StepState.RUNNING)
    row = _row(_job(JobState.RUNNING, owner=None), step)
    assert (row.shown_state, row.waits) == (ShownState.WAITING, "a worker")


def test_a_job_shows_when_its_worker_was_last_heard_of_also_if_its_steps_report_nothing() -> None:
    assert _row(_job(JobState.RUNNING, silent_for=4.0)).heartbeat_at == NOW - 4
    assert _row(_job(JobState.WAITING)).heartbeat_at is None


def test_a_silent_worker_shows_unless_the_job_has_ended() -> None:
    assert _row(_job(JobState.RUNNING), stale=True).shown_state is ShownState.STALE_HEARTBEAT
    assert _row(_job(JobState.COMPLETED), stale=True).shown_state is ShownState.COMPLETED


def test_every_state_of_a_job_has_one_that_is_shown() -> None:
    for state in JobState:
        assert _row(_job(state)).shown_state in ShownState


def test_a_delayed_job_is_scheduled_until_its_time() -> None:
    later, due = _job(JobState.PENDING, due_at=NOW + 1), _job(JobState.PENDING, due_at=NOW)
    assert [_row(each).shown_state for each in (later, due)] == ["scheduled", "pending"]
    assert [_row(each).wakes_at for each in (later, due)] == [NOW + 1, None]


def test_the_current_step_says_when_its_next_attempt_is() -> None:
    waits = _entry(EntryKind.STEP, StepState.PENDING, 3, attempt=2, wake_at=NOW + 12)
    row = _row(_job(JobState.RUNNING), _entry(EntryKind.STEP, StepState.SUCCEEDED, 2), waits)
    assert row.current is not None
    assert (row.current.id, row.current.attempt, row.current.again_at) == ("e#3", 2, NOW + 12)


def test_of_a_failed_job_the_failed_step_is_shown_and_of_a_completed_one_none() -> None:
    entries = [
        _entry(EntryKind.STEP, StepState.FAILED, 1, attempt=3),
        _entry(EntryKind.STEP, StepState.SUCCEEDED, 2),
    ]
    error = Failure(type="ValueError", message="no\nrow").pack()
    failed = _row(_job(JobState.FAILED, error=error), *entries)
    assert failed.current is not None
    assert (failed.current.id, failed.error) == ("e#1", "ValueError: no row")
    assert _row(_job(JobState.COMPLETED), *entries).current is None


def test_cost_counts_what_is_reserved_and_says_whose_budget_it_is() -> None:
    budget = Budget(
        root="b",
        limits=BudgetLimits(usd=5),
        spent=Amount.of(usd=1, tokens=10),
        reserved={"a/x": Amount.of(usd=0.5)},
    )
    cost = _row(_job(JobState.RUNNING, budget_of="b"), budget=budget).cost
    assert cost is not None
    assert (cost.usd, cost.tokens, cost.limit_usd, cost.shared) == (1.5, 10, 5, True)


def test_a_row_has_what_steps_report() -> None:
    progress = Progress(step="load#2", heartbeat_at=NOW, done=3, total=10, note="page 3", at=NOW)
    (one,) = _row(_job(JobState.RUNNING, progress=(progress,))).progress
    assert (one.step, one.done, one.total, one.note) == ("load#2", 3, 10, "page 3")
