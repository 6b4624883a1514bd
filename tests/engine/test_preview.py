"""What an undo and a fork would do, told before anybody asks for it."""

import pytest

from perdure.app import App
from perdure.base.retry import Retry
from perdure.client import Client
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.errors import JobNotFound
from perdure.jobs.state import JobState, StepState
from tests.support.engine import durable


def _shop(app: App) -> None:
    """Define a job that reserves, mails and pays, and then waits."""

    @app.step
    async def cancel_payment(ctx: StepContext, receipt: str) -> None: ...

    @app.step
    async def reserve(ctx: StepContext, item: str) -> str:
        return item

    @reserve.compensate
    async def release(ctx: StepContext, item: str, output: str | None) -> None: ...

    @app.step
    async def look(ctx: StepContext) -> int:
        return 1

    @app.step
    async def mail(ctx: StepContext) -> None:
        await ctx.effect("email", _answer, target="ann", undo=None)

    @app.step
    async def pay(ctx: StepContext) -> None:
        await ctx.effect("payment", _answer, target="card 1", undo=cancel_payment)
        await ctx.effect("parcel", _answer, target="ann")

    @app.job(on_cancel="abandon")
    async def order(ctx: JobContext) -> None:
        await reserve("chair")
        await look()
        await mail()
        await pay()
        await ctx.receive("go")

    _ = release, order


async def _answer(key: str) -> str:
    return f"receipt {key[:4]}"


@durable
async def test_an_undo_is_told_in_order_with_what_stays_and_why(app: App) -> None:
    _shop(app)
    async with app.running():
        handle = await app.submit(app.jobs["order"]())
        await handle.until(JobState.WAITING)
        shown = await app.insight.undo(handle.id)
        assert [(each.id, each.kind, each.what, each.by) for each in shown.items] == [
            ("undo:pay#1/2", "effect", "payment to card 1", "cancel_payment"),
            ("undo:reserve#1", "compensation", "reserve#1", None),
        ]
        assert {each.state for each in shown.items} == {StepState.PENDING}
        assert [(each.what, each.why) for each in shown.remains] == [
            ("email to ann", "the code says that it may stay"),
            ("parcel to ann", "nothing undoes it: neither it nor its step has an undo"),
        ]
        assert (shown.begun, shown.pivot, shown.plain) == (False, None, 1)
        await handle.cancel()
        await handle.wait("10s")


@durable
async def test_what_was_told_is_what_is_then_undone(app: App) -> None:
    _shop(app)
    async with app.running():
        handle = await app.submit(app.jobs["order"]())
        await handle.until(JobState.WAITING)
        before = await app.insight.undo(handle.id)
        assert (before.begun, before.ended) == (False, False)
        await handle.cancel()
        await handle.wait("10s")
        await handle.compensate("all back")
        await handle.wait("10s")
        after = await app.insight.undo(handle.id)
        assert after.begun
        assert [each.id for each in after.items] == [each.id for each in before.items]
        assert {each.state for each in after.items} == {StepState.SUCCEEDED}


@durable
async def test_an_undo_that_has_ended_says_so_and_does_not_count_its_own_effects_as_left(
    app: App,
) -> None:
    broken = True

    @app.step
    async def pay(ctx: StepContext) -> None:
        await ctx.effect("payment", _answer, target="card 1")

    @pay.compensate(retry=Retry(attempts=1))
    async def refund(ctx: StepContext, output: None) -> None:
        await ctx.effect("refund", _answer, target="card 1")
        if broken:
            raise ValueError("no luck")

    @app.job(on_undo_failure="continue")
    async def order(ctx: JobContext) -> None:
        await pay()
        raise ValueError("no stock")

    _ = refund
    async with app.running():
        handle = await app.submit(order())
        await handle.wait("10s")
        row, told = await app.insight.row(handle.id), await app.insight.undo(handle.id)
        assert (row.state, row.undone, row.failed_undos) == (JobState.FAILED, True, 1)
        assert [each.state for each in told.items] == [StepState.FAILED]
        assert (told.begun, told.ended) == (True, True)
        # The payment itself succeeded, and its undo failed.
        (first, _) = await app.insight.attempts(handle.id)
        assert (first.step, first.outcome) == ("pay#1", "succeeded")
        broken = False
        await handle.compensate("mended", by="kim")
        await handle.wait("10s")
        row, told = await app.insight.row(handle.id), await app.insight.undo(handle.id)
        assert (row.state, row.undone, row.failed_undos) == (JobState.COMPENSATED, True, 0)
        assert (told.begun, told.ended, told.remains) == (True, True, ())
        reasons = [event.data for event in await handle.events() if "compensated" in event.type]
        assert reasons == [{"reason": "ValueError: no stock"}]


@durable
async def test_a_client_without_the_code_tells_the_same_as_the_app(app: App) -> None:
    _shop(app)
    async with app.running():
        handle = await app.submit(app.jobs["order"]())
        await handle.until(JobState.WAITING)
        async with Client(app.url) as client:
            assert await client.insight.undo(handle.id) == await app.insight.undo(handle.id)
        await handle.cancel()
        await handle.wait("10s")


@durable
async def test_after_a_pivot_nothing_is_undone(app: App) -> None:
    @app.step
    async def reserve(ctx: StepContext) -> None:
        await ctx.effect("booking", _answer, target="room")

    @reserve.compensate
    async def release(ctx: StepContext, output: None) -> None: ...

    @app.step(pivot=True)
    async def sign(ctx: StepContext) -> None: ...

    @app.job
    async def job(ctx: JobContext) -> None:
        await reserve()
        await sign()
        await ctx.receive("go")

    _ = release
    async with app.running():
        handle = await app.submit(job())
        await handle.until(JobState.WAITING)
        shown = await app.insight.undo(handle.id)
        assert (shown.pivot, shown.items) == ("sign#1", ())
        assert [each.why for each in shown.remains] == ["the pivot sign#1 is passed"]
        await handle.cancel()
        await handle.until(JobState.NEEDS_ATTENTION, timeout="10s")


@durable
async def test_a_fork_is_told_with_what_it_reuses_and_which_effects_it_repeats(app: App) -> None:
    _shop(app)
    async with app.running():
        handle = await app.submit(app.jobs["order"]())
        await handle.until(JobState.WAITING)
        shown = await app.insight.fork(handle.id, "pay")
        assert {each.id: each.outcome for each in shown.entries} == {
            "reserve#1": "reused",
            "look#1": "reused",
            "mail#1": "reused",
            "pay#1": "anew",
            "receive:go#1": "anew",
        }
        assert [(each.what, each.outcome) for each in shown.effects] == [
            ("email to ann", "skipped"),
            ("payment to card 1", "repeats"),
            ("parcel to ann", "repeats"),
        ]
        assert shown.refused is None
        with pytest.raises(LookupError, match="no step 'nothing#1'"):
            await app.insight.fork(handle.id, "nothing")
        with pytest.raises(JobNotFound):
            await app.insight.undo("nobody")
        await handle.cancel()
        await handle.wait("10s")
        await handle.compensate()
        await handle.wait("10s")
        undone = await app.insight.fork(handle.id, "receive:go#1")
        assert undone.refused is not None
        assert "was undone" in undone.refused
