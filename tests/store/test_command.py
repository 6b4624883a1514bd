"""What people ask of jobs: obeyed at once where nobody works on them, always audited."""

import pytest

from perdure.base.errors import IllegalTransition, JobNotFound
from perdure.jobs.failure import Failure
from perdure.jobs.model import Command, EntryKind, Job
from perdure.jobs.state import JobState, StepState
from perdure.store.store import Store
from tests.support.store import (
    GONE,
    claim_one,
    claims,
    ends,
    entry,
    new_job,
    releases,
    started,
    write_of,
)


async def ask(store: Store, action: str, **values: object) -> Job:
    await store.command(Command(job_id="a", action=action, actor="kim", **values))  # pyright: ignore[reportArgumentType]  the fields of one action
    found = await store.job("a")
    assert found is not None
    return found


async def wait(store: Store, state: JobState = JobState.WAITING) -> None:
    """Have a job that has begun and that nobody owns."""
    claim = await started(store)
    await store.write(write_of(claim, entry(0), job=releases(state)))


def why(step: str = "") -> bytes:
    return Failure(type="E", message="", step=step).pack()


async def stopped(store: Store, step: str = "") -> None:
    """Have a parked job with two failed entries, whose error names one of them or none."""
    claim = await started(store)
    failed = [entry(seq, StepState.FAILED, error=why(), attempt=3) for seq in (0, 1)]
    parked = releases(JobState.NEEDS_ATTENTION, error=why(step))
    await store.write(write_of(claim, *failed, job=parked))


async def test_every_command_is_in_the_log_with_actor_and_reason(store: Store) -> None:
    await store.submit([new_job("a")])
    await ask(store, "pause", reason="too early")
    event = (await store.events("a"))[-1]
    assert (event.type, event.actor, event.data) == ("pause.asked", "kim", {"reason": "too early"})


async def test_a_command_to_nobody_is_refused(store: Store) -> None:
    with pytest.raises(JobNotFound):
        await store.command(Command(job_id="nowhere", action="cancel", actor="kim"))


async def test_a_job_that_never_began_is_cancelled_at_once(store: Store) -> None:
    await store.submit([new_job("a")])
    job = await ask(store, "cancel")
    assert job.state == JobState.CANCELLED
    assert job.ended_at is not None
    assert await claims(store) == []


async def test_cancel_of_a_job_at_work_is_a_request_to_its_owner(store: Store) -> None:
    await started(store)
    job = await ask(store, "cancel")
    assert (job.state, job.request) == (JobState.RUNNING, "cancel")
    assert [(news.news, news.request) for news in await store.news("w1")] == [(1, "cancel")]


async def test_cancel_of_a_waiting_job_lets_a_worker_end_it(store: Store) -> None:
    await wait(store)
    assert (await ask(store, "cancel")).request == "cancel"
    assert (await claim_one(store)).job.request == "cancel"


@pytest.mark.parametrize("state", [JobState.PAUSED, JobState.NEEDS_ATTENTION])
async def test_cancel_of_a_parked_job_lets_a_worker_end_it(store: Store, state: JobState) -> None:
    await wait(store, state)
    await ask(store, "cancel")
    claim = await claim_one(store)
    assert claim.job.request == "cancel"
    await store.write(write_of(claim, job=ends(JobState.CANCELLED)))


async def test_an_ended_job_cannot_be_cancelled(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, job=ends()))
    with pytest.raises(IllegalTransition, match="is COMPLETED"):
        await ask(store, "cancel")


async def test_the_end_of_a_cancelled_child_wakes_its_parent(store: Store) -> None:
    claim = await started(store, "p")
    child = new_job("a", parent="p", delay=3600.0)
    await store.write(write_of(claim, job=releases(), children=(child,), news_seen=0))
    await ask(store, "cancel")
    assert (await claim_one(store)).job.id == "p"


async def test_a_paused_job_is_not_claimed_until_it_is_resumed(store: Store) -> None:
    await store.submit([new_job("a")])
    assert (await ask(store, "pause")).state == JobState.PAUSED
    assert await claims(store) == []
    await store.send("a", "hello", b"1")
    assert await claims(store) == []
    assert (await ask(store, "resume")).state == JobState.PENDING
    assert (await claim_one(store)).job.id == "a"


async def test_a_paused_job_goes_back_to_what_it_was(store: Store) -> None:
    await wait(store)
    await ask(store, "pause")
    assert (await ask(store, "resume")).state == JobState.WAITING
    claim = await claim_one(store)
    await store.write(write_of(claim, job=releases(JobState.COMPENSATING)))
    await ask(store, "pause")
    assert (await ask(store, "resume")).state == JobState.COMPENSATING


async def test_a_paused_job_remembers_what_it_was_whatever_else_is_asked_of_it(
    store: Store,
) -> None:
    claim = await started(store)
    undo = entry(1, StepState.PENDING, id="undo:step#0", kind=EntryKind.UNDO)
    await store.write(write_of(claim, undo, job=releases(JobState.COMPENSATING)))
    await ask(store, "pause")
    await ask(store, "skip", seq=1)
    assert (await ask(store, "resume")).state == JobState.COMPENSATING


async def test_pause_of_a_job_at_work_is_obeyed_by_its_owner(store: Store) -> None:
    claim = await started(store)
    assert (await ask(store, "pause")).request == "pause"
    change = releases(JobState.PAUSED, clear_request=True)
    await store.write(write_of(claim, job=change, news_seen=0))
    assert await claims(store) == []
    job = await ask(store, "resume")
    assert (job.state, job.request) == (JobState.WAITING, None)


async def test_a_cancel_that_comes_while_its_job_is_being_parked_is_obeyed(store: Store) -> None:
    claim = await started(store)
    await ask(store, "cancel")
    change = releases(JobState.NEEDS_ATTENTION, error=why())
    await store.write(write_of(claim, job=change, news_seen=claim.news))
    (again,) = await claims(store)
    assert again.job.request == "cancel"


async def test_a_job_that_is_parked_though_it_knows_of_the_cancel_stays_so(store: Store) -> None:
    claim = await started(store)
    await ask(store, "cancel")
    change = releases(JobState.NEEDS_ATTENTION, error=why())
    await store.write(write_of(claim, job=change, news_seen=claim.news + 1))
    assert await claims(store) == []


async def test_a_pause_that_was_not_obeyed_yet_can_be_taken_back(store: Store) -> None:
    await started(store)
    await ask(store, "pause")
    assert (await ask(store, "resume")).request is None


async def test_a_resume_is_not_overruled_by_an_owner_that_still_obeys_the_pause(
    store: Store,
) -> None:
    claim = await started(store)
    await ask(store, "pause")
    (seen,) = await store.news("w1")
    await ask(store, "resume")
    change = releases(JobState.PAUSED, clear_request=True)
    await store.write(write_of(claim, job=change, news_seen=seen.news))
    assert (await claim_one(store)).job.id == "a"


async def test_a_cancel_is_not_lost_to_an_owner_that_obeys_the_pause_before(store: Store) -> None:
    claim = await started(store)
    await ask(store, "pause")
    (seen,) = await store.news("w1")
    await ask(store, "cancel")
    change = releases(JobState.PAUSED, clear_request=True)
    await store.write(write_of(claim, job=change, news_seen=seen.news))
    assert (await claim_one(store)).job.request == "cancel"


async def test_cancel_stands_over_pause(store: Store) -> None:
    await started(store)
    await ask(store, "cancel")
    assert (await ask(store, "pause")).request == "cancel"


@pytest.mark.parametrize("action", ["resume", "retry"])
async def test_a_job_that_runs_can_be_neither_resumed_nor_retried(
    store: Store, action: str
) -> None:
    await started(store)
    with pytest.raises(IllegalTransition, match="is RUNNING"):
        await ask(store, action)


async def test_a_failed_job_can_be_retried_and_its_epoch_goes_on(store: Store) -> None:
    claim = await started(store)
    failed = entry(1, StepState.FAILED, error=b'"E"', attempt=3)
    change = ends(JobState.FAILED, error=why())
    await store.write(write_of(claim, entry(0), failed, job=change))
    job = await ask(store, "retry", reason="the gateway is back")
    assert (job.state, job.error, job.ended_at) == (JobState.PENDING, None, None)
    again = await claim_one(store)
    assert again.epoch == claim.epoch + 1
    done, open_ = again.journal
    assert done == entry(0)
    assert (open_.state, open_.attempt, open_.error) == (StepState.PENDING, 0, None)
    with pytest.raises(Exception, match="is lost"):
        await store.write(write_of(claim, entry(2)))


async def test_who_resumes_a_failed_job_is_told_of_retry(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, job=ends(JobState.FAILED)))
    with pytest.raises(IllegalTransition, match=r"is FAILED.*retry runs it again"):
        await ask(store, "resume")


@pytest.mark.parametrize("action", ["resume", "retry"])
async def test_what_a_parked_job_stopped_at_begins_again_and_earlier_failures_stay(
    store: Store, action: str
) -> None:
    await stopped(store, entry(1).id)
    await ask(store, action)
    states = [(one.state, one.attempt) for one in await store.journal("a")]
    assert states == [(StepState.FAILED, 3), (StepState.PENDING, 0)]


@pytest.mark.parametrize(
    ("action", "state"), [("resume", StepState.FAILED), ("retry", StepState.PENDING)]
)
async def test_a_job_that_no_entry_stopped_is_resumed_as_it_stands_and_retried_from_its_start(
    store: Store, action: str, state: StepState
) -> None:
    await stopped(store)
    await ask(store, action)
    assert {one.state for one in await store.journal("a")} == {state}


async def test_a_retry_from_an_entry_leaves_those_before_it(store: Store) -> None:
    claim = await started(store)
    entries = [entry(seq, StepState.FAILED, attempt=2) for seq in range(3)]
    await store.write(write_of(claim, *entries, job=ends(JobState.CANCELLED)))
    await ask(store, "retry", seq=1)
    states = [each.state for each in await store.journal("a")]
    assert states == [StepState.FAILED, StepState.PENDING, StepState.PENDING]


async def test_a_job_that_needs_attention_can_be_retried(store: Store) -> None:
    await wait(store, JobState.NEEDS_ATTENTION)
    assert (await ask(store, "retry")).state == JobState.PENDING
    assert (await claim_one(store)).epoch == 2


async def test_a_completed_job_cannot_be_retried(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, job=ends()))
    with pytest.raises(IllegalTransition, match="is COMPLETED"):
        await ask(store, "retry")


async def test_a_skipped_step_has_the_output_that_a_person_gave(store: Store) -> None:
    claim = await started(store)
    failed = entry(0, StepState.FAILED, error=b'"E"')
    await store.write(write_of(claim, failed, job=ends(JobState.FAILED)))
    await ask(store, "skip", seq=0, output=b"42", reason="done by hand")
    again = await claim_one(store)
    (found,) = again.journal
    assert (found.state, found.output, found.error) == (StepState.SKIPPED, b"42", None)
    event = (await store.events("a"))[-2]
    assert event.data == {"reason": "done by hand", "seq": 0}


async def test_a_skipped_step_stays_so_when_the_job_is_retried(store: Store) -> None:
    claim = await started(store)
    failed = entry(0, StepState.FAILED), entry(1, StepState.FAILED)
    await store.write(write_of(claim, *failed, job=ends(JobState.FAILED)))
    await ask(store, "skip", seq=0, output=b"42")
    claim = await claim_one(store)
    await store.write(write_of(claim, job=ends(JobState.FAILED)))
    await ask(store, "retry")
    states = [each.state for each in await store.journal("a")]
    assert states == [StepState.SKIPPED, StepState.PENDING]


async def test_what_has_succeeded_or_is_not_there_cannot_be_skipped(store: Store) -> None:
    await wait(store)
    with pytest.raises(IllegalTransition, match="is SUCCEEDED"):
        await ask(store, "skip", seq=0)
    with pytest.raises(IllegalTransition, match="no journal entry 7"):
        await ask(store, "skip", seq=7)


async def test_a_step_of_a_job_at_work_cannot_be_skipped(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, entry(0, StepState.RUNNING)))
    with pytest.raises(IllegalTransition, match="at work"):
        await ask(store, "skip", seq=0)


async def test_a_job_whose_owner_died_can_be_paused_and_cancelled(store: Store) -> None:
    await store.submit([new_job("a")])
    await claim_one(store, lease=GONE)
    await store.reap(1)
    assert (await ask(store, "pause")).state == JobState.PAUSED
    await ask(store, "resume")
    assert (await ask(store, "cancel")).request == "cancel"


async def test_what_is_asked_survives_the_death_of_the_owner(store: Store) -> None:
    await store.submit([new_job("a")])
    await claim_one(store, lease=GONE)
    await ask(store, "cancel")
    await store.reap(1)
    assert (await claim_one(store)).job.request == "cancel"
