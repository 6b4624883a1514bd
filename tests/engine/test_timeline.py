"""The attempts at steps, and what a job did at which time."""

import asyncio
from typing import Any

import perdure
from perdure.app import App
from perdure.base.retry import Retry
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.errors import Permanent
from perdure.jobs.model import EntryKind, Job, JobEvent, JournalEntry
from perdure.jobs.state import JobState, StepState
from perdure.jobs.timeline import attempts_of, timeline
from tests.support.engine import durable, nodes

AGAIN = Retry(attempts=3, initial_delay="30ms", jitter=0)


@durable
async def test_attempts_have_their_times_errors_worker_and_back_off(app: App) -> None:
    @app.step(retry=AGAIN)
    async def load(ctx: StepContext) -> int:
        if ctx.attempt < 3:
            raise ValueError(f"no luck {ctx.attempt}")
        return 1

    @app.job
    async def job(ctx: JobContext) -> int:
        return await load()

    async with app.running():
        (node,) = nodes(app)
        handle = await app.submit(job())
        await handle.result("10s")
        first, second, third = await app.insight.attempts(handle.id)
        assert [each.outcome for each in (first, second, third)] == ["retried"] * 2 + ["succeeded"]
        assert [each.attempt for each in (first, second, third)] == [1, 2, 3]
        assert first.error == "ValueError: no luck 1"
        assert {each.worker for each in (first, second, third)} == {node.owner}
        for one, following in ((first, second), (second, third)):
            assert one.started_at is not None
            assert one.ended_at is not None
            assert one.backoff_until is not None
            assert following.started_at is not None
            assert one.started_at <= one.ended_at <= one.backoff_until <= following.started_at
        assert await app.insight.attempts(handle.id, "load#2") == []
        shown = await app.insight.timeline(handle.id)
        (entry,) = shown.entries
        kinds = [span.kind for span in entry.spans]
        assert kinds == ["work", "backoff", "work", "backoff", "work"]
        assert shown.queue
        assert {span.kind for span in shown.queue} == {"queue"}


@durable
async def test_a_step_that_fails_for_good_ends_with_a_failed_attempt(app: App) -> None:
    @app.step
    async def load(ctx: StepContext) -> int:
        raise Permanent("no luck")

    @app.job
    async def job(ctx: JobContext) -> int:
        return await load()

    async with app.running():
        handle = await app.submit(job())
        await handle.wait("10s")
        (only,) = await app.insight.attempts(handle.id)
        assert (only.outcome, only.backoff_until) == ("failed", None)
        assert only.started_at is not None


@durable
async def test_the_attempt_that_runs_now_is_shown_as_running(app: App) -> None:
    begun = asyncio.Event()

    @app.step
    async def load(ctx: StepContext) -> None:
        begun.set()
        await ctx.save_checkpoint(1)
        await perdure.process.sleep("1h")

    @app.job
    async def job(ctx: JobContext) -> None:
        await load()

    async with app.running():
        handle = await app.submit(job())
        await begun.wait()
        while not (found := await app.insight.attempts(handle.id)):
            await perdure.process.sleep("5ms")
        assert [each.outcome for each in found] == ["running"]
        await handle.cancel()
        await handle.wait("10s")


def _job(**values: Any) -> Job:
    given: dict[str, Any] = {
        "id": "a",
        "tenant": "t",
        "user": "",
        "name": "work",
        "version": "3",
        "queue": "q",
    }
    more: dict[str, Any] = {"priority": 0, "input": b"{}", "state": JobState.COMPLETED}
    return Job(**(given | more | values))


def _entry(**values: Any) -> JournalEntry:
    given: dict[str, Any] = {"seq": 0, "id": "load#1", "kind": EntryKind.STEP, "name": "load"}
    given["state"] = StepState.SUCCEEDED
    return JournalEntry(**(given | values))


def _event(kind: str, at: float, **data: object) -> JobEvent:
    return JobEvent(type=kind, at=at, data=data, actor="w1")


def test_an_attempt_that_nobody_recorded_was_interrupted() -> None:
    log = [_event("claimed", 1), _event("lease.expired", 5), _event("claimed", 6)]
    entry = _entry(attempt=2, started_at=7.0, ended_at=8.0)
    lost, done = attempts_of(_job(), [entry], log)
    assert (lost.outcome, lost.attempt, lost.started_at) == ("interrupted", 1, None)
    assert (done.outcome, done.attempt, done.version) == ("succeeded", 2, "3")


def test_the_queue_is_drawn_from_each_cause_to_the_next_claim() -> None:
    log = [
        _event("submitted", 0, delay=2.0),
        _event("claimed", 5),
        _event("step.retried", 6, step="load#1", attempt=1, began_at=5.0, again_at=7.0),
        _event("lease.expired", 20),
        _event("claimed", 23),
        _event("claimed", 105),
    ]
    journal = [
        _entry(attempt=2, started_at=7.0, ended_at=9.0),
        _entry(seq=1, id="sleep#1", kind=EntryKind.SLEEP, started_at=24.0, wake_at=100.0),
    ]
    shown = timeline(_job(), journal, log, [], 200.0)
    # The back-off until 7 was spent in memory: the step began again before the next claim.
    assert [(span.start, span.end) for span in shown.queue] == [(2, 5), (20, 23), (100, 105)]


def test_a_job_that_is_ready_now_waits_in_the_queue_without_an_end() -> None:
    job = _job(state=JobState.PENDING)
    (span,) = timeline(job, [], [_event("submitted", 3)], [], 9.0).queue
    assert (span.start, span.end) == (3, None)
    assert timeline(job, [], [_event("submitted", 3, delay=60)], [], 9.0).queue == ()
