"""What was undone does not stand: nobody is given its result, and the next job does it again."""

import asyncio
from typing import Any

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import JobFailed, Permanent
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import EffectState
from perdure.jobs.state import JobState
from tests.support.engine import durable, job_of, until

LIMIT = "20s"


class Shop:
    """A step that pays for an order under a business key, and jobs that may fail after it."""

    def __init__(self, app: App, way: str = "undo") -> None:
        self.charged: list[str] = []
        self.refunded: list[str] = []
        self.fails = False
        self.refund_begun, self.refund_goes_on = asyncio.Event(), asyncio.Event()
        self.refund_goes_on.set()
        self.refund_errors: list[Exception] = []

        @app.step(retry=Retry(attempts=1))
        async def refund(ctx: StepContext, charge: str) -> None:
            await self._give_back(charge)

        options: Any = {"undo": refund} if way == "undo" else {}

        @app.step(retry=Retry(attempts=1))
        async def pay(ctx: StepContext) -> str:
            if way == "compensation":  # nothing else undoes it
                await ctx.record_effect("receipt", "order 7")
            call = self._charge
            return str(await ctx.effect("payment", call, target="card", key="order 7", **options))

        if way == "compensation":
            pay.compensate(self._pay_back)

        @app.job
        async def order(ctx: JobContext) -> str:
            paid = await pay()
            if self.fails:
                raise Permanent("out of stock")
            return paid

        self.order = order

    async def _charge(self, key: str) -> str:
        self.charged.append(key)
        return f"charge {len(self.charged)}"

    async def _give_back(self, charge: str) -> None:
        self.refund_begun.set()
        await self.refund_goes_on.wait()
        if self.refund_errors:
            raise self.refund_errors.pop(0)
        self.refunded.append(charge)

    async def _pay_back(self, ctx: StepContext, output: str) -> None:
        await self._give_back(output)


@pytest.mark.parametrize("way", ["undo", "compensation"])
def test_a_refunded_business_key_is_paid_for_again_by_the_next_job(url: str, way: str) -> None:
    @durable
    async def case(app: App) -> None:
        shop = Shop(app, way)
        shop.fails = True
        async with app.running():
            first = await app.submit(shop.order())
            assert await first.wait(LIMIT) is JobState.COMPENSATED
            shop.fails = False
            second, third = await app.submit(shop.order()), await app.submit(shop.order())
            assert await second.result(LIMIT) == "charge 2"
            assert await third.result(LIMIT) == "charge 2"
        assert shop.refunded == ["charge 1"]
        assert len(set(shop.charged)) == len(shop.charged) == 2
        lines = [line for line in await first.effects() if line.kind == "payment"]
        assert [line.state for line in lines] == [EffectState.UNDONE]

    case(url)


@durable
async def test_what_was_recorded_is_not_when_its_step_was_undone(app: App) -> None:
    shop = Shop(app, "compensation")
    shop.fails = True

    @app.step
    async def recorded(ctx: StepContext) -> bool:
        return await ctx.was_effect_recorded("receipt", "order 7")

    is_recorded = job_of(app, recorded)
    async with app.running():
        assert await (await app.submit(shop.order())).wait(LIMIT) is JobState.COMPENSATED
        assert await (await app.submit(is_recorded())).result(LIMIT) is False
        shop.fails = False
        await (await app.submit(shop.order())).result(LIMIT)
        assert await (await app.submit(is_recorded())).result(LIMIT) is True


@durable
async def test_while_it_is_being_undone_nobody_is_given_the_result(app: App) -> None:
    shop = Shop(app)
    shop.fails = True
    shop.refund_goes_on.clear()
    async with app.running():
        first = await app.submit(shop.order())
        await shop.refund_begun.wait()
        shop.fails = False
        second = await app.submit(shop.order())
        await until(app, second.id, JobState.WAITING)
        shop.refund_goes_on.set()
        assert await second.result(LIMIT) == "charge 2"
        assert await first.wait(LIMIT) is JobState.COMPENSATED


@durable
async def test_what_could_not_be_undone_is_lent_only_when_a_person_says_that_it_stands(
    app: App,
) -> None:
    shop = Shop(app)
    shop.fails = True
    shop.refund_errors = [Permanent("the bank says no")]
    async with app.running():
        first = await app.submit(shop.order())
        await until(app, first.id, JobState.NEEDS_ATTENTION)
        shop.fails = False
        second = await app.submit(shop.order())
        await until(app, second.id, JobState.WAITING)
        undo = next(entry for entry in await first.journal() if entry.id.startswith("undo:"))
        await first.abandon_undo(undo.id, "it stands", by="kim")
        assert await first.wait(LIMIT) is JobState.FAILED
        assert await second.result(LIMIT) == "charge 1"


@durable
async def test_what_a_person_has_undone_is_undone(app: App) -> None:
    shop = Shop(app)
    shop.fails = True
    shop.refund_errors = [Permanent("the bank says no")]
    async with app.running():
        first = await app.submit(shop.order())
        await until(app, first.id, JobState.NEEDS_ATTENTION)
        undo = next(entry for entry in await first.journal() if entry.id.startswith("undo:"))
        await first.skip(undo.id, "refunded at the counter", by="kim")
        assert await first.wait(LIMIT) is JobState.COMPENSATED
        shop.fails = False
        assert await (await app.submit(shop.order())).result(LIMIT) == "charge 2"
    assert [line.state for line in await first.effects()] == ["UNDONE"]


@durable
async def test_a_doubt_that_was_undone_is_none_any_more(app: App) -> None:
    refunded: list[str] = []

    async def charge(key: str) -> str:
        raise TimeoutError("no answer")

    @app.step
    async def refund(ctx: StepContext, charge: str | None) -> None:
        assert ctx.undone is not None
        refunded.append(ctx.undone.key)

    @app.step(retry=Retry(attempts=1))
    async def pay(ctx: StepContext) -> str:
        return str(await ctx.effect("payment", charge, target="card", undo=refund))

    @app.job
    async def order(ctx: JobContext) -> str:
        return await pay()

    async with app.running():
        handle = await app.submit(order())
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.resolve(1, "compensate", by="kim")
        with pytest.raises(JobFailed):
            await handle.result(LIMIT)
    (line,) = await handle.effects()
    assert line.state is EffectState.UNDONE
    assert refunded == [line.key]
    assert await (await app.store()).open_effects() == []


@pytest.mark.parametrize(("kept", "charges"), [(None, 1), ("1h", 1), ("0s", 2)])
def test_a_business_key_outlives_its_deleted_job_as_long_as_it_is_kept(
    url: str, kept: str | None, charges: int
) -> None:
    @durable
    async def case(app: App) -> None:
        charged: list[str] = []

        async def charge(key: str) -> str:
            charged.append(key)
            return f"charge {len(charged)}"

        @app.step
        async def pay(ctx: StepContext) -> str:
            options: Any = {} if kept is None else {"key_kept": kept}
            details = {"note": "for kim"}
            got = await ctx.effect(
                "payment", charge, target="kim's card", key="order 7", details=details, **options
            )
            return str(got)

        @app.job
        async def order(ctx: JobContext) -> str:
            return await pay()

        async with app.running():
            first = await app.submit(order())
            await first.result(LIMIT)
            store = await app.store()
            assert await store.prune(await store.now() + 1, 10) == 1
            left = await store.effects(first.id)
            assert all((line.target, line.details) == ("(deleted)", None) for line in left)
            assert await (await app.submit(order())).result(LIMIT) == f"charge {charges}"
        assert len(charged) == charges

    case(url)


@durable
async def test_what_cannot_be_undone_stays_done_though_its_step_is_compensated(app: App) -> None:
    sent: list[str] = []

    @app.step(irreversible=True, approval="never")
    async def send(ctx: StepContext) -> str:
        async def deliver(key: str) -> str:
            sent.append("mail")
            return "sent"

        return await ctx.effect("mail", deliver, target="kim", key="welcome kim")

    @send.compensate
    async def apologise(ctx: StepContext, output: str | None) -> None:
        sent.append("apology")

    @app.job
    async def welcome(ctx: JobContext, fails: bool = False) -> str:
        answer = await send()
        if fails:
            raise Permanent("not yet")
        return answer

    async with app.running():
        first = await app.submit(welcome(True))
        assert await first.wait(LIMIT) is JobState.COMPENSATED
        assert [line.state for line in await first.effects()] == [EffectState.DONE]
        assert await (await app.submit(welcome())).result(LIMIT) == "sent"
    assert sent == ["mail", "apology"]
