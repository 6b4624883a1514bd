"""An effect has one owner: what a step was only given the result of, it does not undo."""

from typing import Any

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import JobFailed, Permanent
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import EffectState
from perdure.jobs.state import JobState
from tests.support.engine import durable

LIMIT = "20s"
ONCE = Retry(attempts=1)


class Shop:
    """Jobs that pay for one order in steps with a compensation, and may fail after that."""

    def __init__(self, app: App, **mail: Any) -> None:
        self.refunded: list[str] = []
        self.taken_back: list[str] = []
        self.fails = False

        @app.step(retry=ONCE)
        async def take_back(ctx: StepContext, sent: str) -> None:
            self.taken_back.append(sent)

        mail = {"undo": take_back} if mail.get("undo") else mail

        @app.step(retry=ONCE)
        async def pay(ctx: StepContext, mails: bool) -> str:
            paid = await ctx.effect("payment", _charge, target="card", key="order 7")
            if mails:
                await ctx.effect("mail", _send, target="kim", **mail)
            return str(paid)

        pay.compensate(self._refund)

        @app.job
        async def order(ctx: JobContext, times: int = 1, mails: bool = False) -> None:
            for _ in range(times):
                await pay(mails)
            if self.fails:
                raise Permanent("out of stock")

        self.order = order

    async def _refund(self, ctx: StepContext, mails: bool, output: str | None) -> None:
        self.refunded.append(str(output))


async def _charge(key: str) -> str:
    return "charge"


async def _send(key: str) -> str:
    return "mail"


@durable
async def test_a_job_that_fails_does_not_undo_the_payment_of_another_job(app: App) -> None:
    shop = Shop(app)
    async with app.running():
        first = await app.submit(shop.order())
        await first.result(LIMIT)
        shop.fails = True
        second = await app.submit(shop.order())
        assert await second.wait(LIMIT) is JobState.FAILED
    assert shop.refunded == []
    assert [line.state for line in await first.effects()] == [EffectState.DONE]
    (line,) = await second.effects()
    assert (line.state, line.proof) == (EffectState.BORROWED, first.id)


@durable
async def test_of_two_steps_with_one_payment_one_gives_it_back(app: App) -> None:
    shop = Shop(app)
    shop.fails = True
    async with app.running():
        order = await app.submit(shop.order(3))
        assert await order.wait(LIMIT) is JobState.COMPENSATED
    assert shop.refunded == ["charge"]
    states = [line.state for line in await order.effects()]
    assert states == [EffectState.UNDONE, EffectState.BORROWED, EffectState.BORROWED]


@durable
async def test_of_a_step_that_borrowed_only_its_own_effects_are_undone(app: App) -> None:
    shop = Shop(app, undo=True)
    async with app.running():
        await (await app.submit(shop.order())).result(LIMIT)
        shop.fails = True
        second = await app.submit(shop.order(1, True))
        assert await second.wait(LIMIT) is JobState.COMPENSATED
    assert (shop.refunded, shop.taken_back) == ([], ["mail"])


@durable
async def test_what_a_step_that_borrowed_leaves_behind_is_named(app: App) -> None:
    shop = Shop(app)
    async with app.running():
        await (await app.submit(shop.order())).result(LIMIT)
        shop.fails = True
        second = await app.submit(shop.order(1, True))
        with pytest.raises(JobFailed, match=r"mail to kim \(pay#1\)"):
            await second.result(LIMIT)
    assert shop.refunded == []
