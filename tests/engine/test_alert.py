"""Alerts: people are told, once, of a job that does not get on."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import perdure
from perdure.app import App
from perdure.base.errors import JobFailed
from perdure.engine.handle import Handle
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.definition import OnUndoFailure
from perdure.jobs.model import QueueLimit
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.state import JobState
from tests.engine.test_approval import Loud
from tests.support.engine import QUICK, durable, nodes, until
from tests.support.store import notices


async def alerts(app: App, job_id: str) -> list[Notice]:
    """Read which alerts about a job were written, whether or not they are delivered yet."""
    found = await notices(await app.store(), job_id)
    return [each for each in found if each.kind.startswith("alert.") and not each.recipient]


@durable
async def test_a_step_without_progress_is_told_of_once_however_often_it_is_taken_over(
    app: App,
) -> None:
    slack = Loud("slack")
    app.policy = Policy(channels=(slack,))
    runs: list[int] = []

    @app.step
    async def hang(ctx: StepContext) -> int:
        runs.append(len(runs) + 1)
        if len(runs) < 3:
            await asyncio.Event().wait()
        return len(runs)

    @app.job
    async def job(ctx: JobContext) -> int:
        return await hang()

    brief = replace(
        QUICK, lease="1s", heartbeat="100ms", stop_before_expiry="200ms", stuck_after="1s"
    )
    async with app.running(brief):
        handle, store = await app.submit(job()), await app.store()
        for time in (1, 2):
            while await stuck(handle) < time:
                await perdure.process.sleep("20ms")
            await store.reap(0, [nodes(app)[0].owner])  # as if the worker had died
        assert await handle.result("20s") == 3
        await slack.has_told(1)
    ((kind, text),) = slack.told
    assert kind is NoticeKind.STUCK
    assert "hang#1 reported no progress" in text
    assert len(await alerts(app, handle.id)) == 1


async def stuck(handle: Handle[Any]) -> int:
    """Count how often the log says that a job is stuck."""
    return [event.type for event in await handle.events()].count("job.stuck")


@durable
async def test_a_job_that_its_workers_die_of_is_told_of(app: App) -> None:
    slack = Loud("slack")
    app.policy = Policy(channels=(slack,))

    @app.job(max_claims=2)
    async def job(ctx: JobContext) -> int:
        return 1

    handle, store = await app.submit(job()), await app.store()
    for owner in ("w1", "w2"):
        assert await store.claim(owner, {"default": QueueLimit()}, 1, 60)
        assert await store.reap(0, [owner]) == [handle.id]
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await slack.has_told(1)
        await handle.resume("the disk is larger now", by="kim")
        assert await handle.result("5s") == 1
    ((kind, text),) = slack.told
    assert kind is NoticeKind.NEEDS_ATTENTION
    assert "2 workers in a row" in text


@durable
async def test_a_job_that_is_parked_again_after_a_person_resumed_it_is_told_of_again(
    app: App,
) -> None:
    slack = Loud("slack")
    app.policy = Policy(channels=(slack,))

    @app.step(retry=perdure.Retry(attempts=1))
    async def call(ctx: StepContext) -> None:
        raise ConnectionError("the bank is away")

    @app.job
    async def job(ctx: JobContext) -> None:
        await call()

    async with app.running():
        handle = await app.submit(job())
        for time in (1, 2):
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            await slack.has_told(time)
            await handle.resume("again", by="kim")
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    assert {kind for kind, _ in slack.told} == {NoticeKind.NEEDS_ATTENTION}
    assert len(await alerts(app, handle.id)) == 3


@durable
async def test_who_was_told_why_a_job_is_parked_is_not_told_twice(app: App) -> None:
    app.policy = Policy(channels=(Loud("slack"),))

    async def unsure(key: str) -> None:
        raise TimeoutError

    @app.step
    async def pay(ctx: StepContext) -> None:
        await ctx.effect("payment", unsure, target="card")

    @app.job
    async def doubts(ctx: JobContext) -> None:
        await pay()

    @app.job
    async def waits(ctx: JobContext) -> None:
        await ctx.approve("Ship it?", expires="10ms")

    async with app.running():
        doubt, late = await app.submit(doubts()), await app.submit(waits(), user="kim")
        for handle in (doubt, late):
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
    assert [each.kind for each in await alerts(app, doubt.id)] == [NoticeKind.IN_DOUBT]
    assert NoticeKind.NEEDS_ATTENTION not in [each.kind for each in await alerts(app, late.id)]


@durable
async def test_a_job_that_simply_fails_alerts_nobody(app: App) -> None:
    app.policy = Policy(channels=(Loud("slack"),))

    @app.job
    async def job(ctx: JobContext) -> None:
        raise ValueError

    async with app.running():
        handle = await app.submit(job())
        with pytest.raises(JobFailed):
            await handle.result("5s")
    assert await alerts(app, handle.id) == []


class Trip:
    """A job of two bookings and a failure; both compensations fail until they are mended."""

    def __init__(self, app: App, on_undo_failure: OnUndoFailure) -> None:
        self.broken = True

        @app.step
        async def book(ctx: StepContext, what: str) -> None: ...

        @book.compensate(retry=perdure.Retry(attempts=1))
        async def unbook(ctx: StepContext, what: str, output: None) -> None:
            if self.broken:
                raise ValueError(f"the {what} is away")

        @app.job(on_undo_failure=on_undo_failure)
        async def trip(ctx: JobContext) -> None:
            await book("hotel")
            await book("flight")
            raise ValueError("no visa")

        self.job = trip


@durable
async def test_every_compensation_that_failed_alerts_people_also_if_the_undo_continues(
    app: App,
) -> None:
    slack, pager = Loud("slack"), Loud("pager")
    app.policy = Policy(channels=(slack,), alerts=(pager,))
    trip = Trip(app, "continue")
    async with app.running():
        handle = await app.submit(trip.job())
        await until(app, handle.id, JobState.FAILED)
        # Both stand: the end of the job does not resolve them.
        assert [each.kind for each in await alerts(app, handle.id)] == [NoticeKind.UNDO_FAILED] * 4
        assert (await app.insight.metrics()).gauges.compensation_failure_count == 2
        await slack.has_told(2)
        texts = sorted(text for _, text in slack.told)
        assert "undo:book#1 could not be undone: ValueError: the hotel is away" in texts[0]
        assert "undo:book#2 could not be undone: ValueError: the flight is away" in texts[1]
        trip.broken = False
        await handle.compensate("mended", by="kim")
        await until(app, handle.id, JobState.COMPENSATED)
        assert (await app.insight.metrics()).gauges.compensation_failure_count == 0
    kinds = [each.kind for each in await alerts(app, handle.id)]
    assert kinds.count(NoticeKind.RESOLVED) == 2  # for the channel that gets them
    assert kinds.count(NoticeKind.UNDO_FAILED) == 4


@durable
async def test_a_compensation_that_fails_again_after_a_person_retried_it_alerts_again(
    app: App,
) -> None:
    app.policy = Policy(channels=(Loud("slack"),))
    trip = Trip(app, "stop")
    async with app.running():
        handle = await app.submit(trip.job())
        for time in (1, 2):
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            kinds = [each.kind for each in await alerts(app, handle.id)]
            assert kinds == [NoticeKind.UNDO_FAILED] * time
            assert (await app.insight.metrics()).gauges.compensation_failure_count == 1
            await handle.retry(by="kim")
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.abandon_undo("undo:book#2", "nobody knows how", by="kim")
        while len(await alerts(app, handle.id)) < 4:  # the hotel
            await perdure.process.sleep("20ms")
        assert (await app.insight.metrics()).gauges.compensation_failure_count == 1
