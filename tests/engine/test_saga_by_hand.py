"""Undoing what people have touched: retried, forked, compensated by hand, or parked by a crash."""

from typing import Any

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import IllegalTransition, Permanent
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import Effect, EffectState, Place
from perdure.jobs.model import EntryKind, JobChange, JournalEntry, QueueLimit, Write
from perdure.jobs.state import JobState, StepState
from tests.support.engine import QUICK, durable, until

ONCE = Retry(attempts=1)


class Shop:
    """Two steps that can be undone, and a failure at the end; `broken` are those that fail."""

    def __init__(self, app: App, **options: Any) -> None:
        self.log: list[str] = []
        self.broken: set[str] = set()

        @app.step(retry=ONCE)
        async def act(ctx: StepContext, name: str) -> str:
            return self._do(name)

        @act.compensate(retry=ONCE)
        async def undo(ctx: StepContext, name: str, output: str | None) -> None:
            self._do(f"-{name}")

        @app.job(**options)
        async def order(ctx: JobContext) -> None:
            await act("a")
            await act("b")
            self._do("end")

        self.order = order

    def _do(self, name: str) -> str:
        if name in self.broken:
            raise Permanent(f"{name} is broken")
        self.log.append(name)
        return name


@durable
async def test_a_retry_of_a_job_that_was_partly_undone_goes_on_with_the_undo(app: App) -> None:
    shop = Shop(app, on_undo_failure="continue")
    shop.broken = {"end", "-b"}
    handle = await app.submit(shop.order())
    async with app.running():
        assert await handle.wait("10s") is JobState.FAILED
        shop.broken = set()
        await handle.retry()
        assert await handle.wait("10s") is JobState.COMPENSATED
    assert shop.log == ["a", "b", "-a", "-b"]


@durable
async def test_a_job_that_was_left_undone_is_not_run_again(app: App) -> None:
    shop = Shop(app)
    shop.broken = {"end", "-b"}
    handle = await app.submit(shop.order())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.abandon_undo("undo:act#2", "impossible", by="kim")
        assert await handle.wait("10s") is JobState.FAILED
        shop.broken = set()
        with pytest.raises(IllegalTransition, match="submit it again"):
            await handle.retry()
    assert shop.log == ["a", "b", "-a"]


@durable
async def test_an_undo_of_a_step_that_the_code_has_no_more_can_be_skipped(app: App) -> None:
    shop = Shop(app)
    shop.broken = {"end", "-b"}
    handle = await app.submit(shop.order())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    later = App(app.url, worker=QUICK)

    @later.job
    async def order(ctx: JobContext) -> None: ...

    async with later.running():
        for undo in ("undo:act#2", "undo:act#1"):
            await handle.skip(undo, "undone by hand", by="kim")
            await handle.until(JobState.NEEDS_ATTENTION, JobState.COMPENSATED)
        assert await handle.wait("10s") is JobState.COMPENSATED
    await later.close()
    assert shop.log == ["a", "b"]


@durable
async def test_a_fork_does_not_undo_what_it_has_not_done(app: App) -> None:
    shop = Shop(app)
    source = await app.submit(shop.order())
    async with app.running():
        await source.result("10s")
        shop.broken = {"end"}
        forked = await source.fork("act#2")
        assert await forked.wait("10s") is JobState.COMPENSATED
    assert shop.log == ["a", "b", "end", "b", "-b"]


@durable
async def test_an_intent_of_a_job_that_is_compensated_by_hand_is_undone(app: App) -> None:
    """A worker died with an open call, others after it; then a person has all undone."""
    shop = Shop(app, max_claims=1)
    handle = await app.submit(shop.order())
    store = await app.store()
    (claim,) = await store.claim("dead", {"default": QueueLimit()}, 1, 60.0)
    begun = JournalEntry(
        seq=1,
        id="act#1",
        kind=EntryKind.STEP,
        name="act",
        state=StepState.RUNNING,
        attempt=1,
        input=b'{"name":"a"}',
    )
    line = Effect(
        job_id=handle.id,
        tenant=claim.job.tenant,
        no=0,
        place=Place("act#1", 1),
        key="k",
        kind="payment",
        target="card",
        called_at=claim.now,
    )
    parked = JobChange(
        state=JobState.NEEDS_ATTENTION, error=b'{"type":"x","message":"y"}', release=True
    )
    await store.write(
        Write(
            job_id=handle.id,
            owner="dead",
            epoch=claim.epoch,
            entries=(begun,),
            effects=(line,),
            job=parked,
        )
    )
    await handle.compensate()
    async with app.running():
        assert await handle.wait("10s") is JobState.COMPENSATED
    assert shop.log == ["-a"]
    assert [one.state for one in await handle.effects()] == [EffectState.UNDONE]
