"""A fork has done what its source has done: nothing that was undone, nothing that is at work."""

import asyncio

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import IllegalTransition, Permanent
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState
from tests.support.engine import durable

ONCE = Retry(attempts=1)


@durable
async def test_a_fork_behind_a_step_that_was_undone_is_refused(app: App) -> None:
    done: list[str] = []

    @app.step(retry=ONCE)
    async def pay(ctx: StepContext) -> str:
        done.append("pay")
        return f"paid {len(done)}"

    @pay.compensate
    async def refund(ctx: StepContext, output: str | None) -> None:
        done.append("refund")

    @app.step(retry=ONCE)
    async def ship(ctx: StepContext, works: bool) -> None:
        if not works:
            raise Permanent("no stock")

    @app.job
    async def order(ctx: JobContext, works: bool) -> str:
        paid = await pay()
        await ship(works)
        return paid

    async with app.running():
        handle = await app.submit(order(False))
        assert await handle.wait("20s") is JobState.COMPENSATED
        with pytest.raises(IllegalTransition, match=r"pay#1 of job .* was undone: fork before it"):
            await handle.fork("ship", True)
        fork = await handle.fork("pay", True)
        assert await fork.result("20s") == "paid 3"
    assert done == ["pay", "refund", "pay"]


@durable
async def test_the_undo_of_a_fork_leaves_alone_what_its_source_is_at(app: App) -> None:
    done: list[str] = []
    at_it, goes_on = asyncio.Event(), asyncio.Event()

    @app.step(retry=ONCE)
    async def pay(ctx: StepContext, order: str) -> None:
        done.append(f"pay {order}")
        at_it.set()
        await goes_on.wait()

    @pay.compensate
    async def refund(ctx: StepContext, order: str, output: None) -> None:
        done.append(f"refund {order}")

    @app.step(retry=ONCE)
    async def pack(ctx: StepContext) -> None: ...

    @app.job
    async def both(ctx: JobContext, works: bool) -> None:
        if not works:
            raise Permanent("it is not to be")
        await ctx.gather(pay("order 7"), pack())

    async with app.running():
        handle = await app.submit(both(True))
        await at_it.wait()
        while {each.id for each in await handle.journal()} != {"pay#1", "pack#1"}:
            await perdure.process.sleep("2ms")
        fork = await handle.fork("pack", False)
        assert await fork.wait("20s") is JobState.FAILED
        goes_on.set()
        assert await handle.wait("20s") is JobState.COMPLETED
    assert done == ["pay order 7"]
