"""Exceptions that a step or job declares come back as their own type, wherever they go."""

import asyncio
import traceback
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import JobFailed, JobParked, StepFailed, Unavailable
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState, StepState
from tests.support.declined import DeclinedThere, steps
from tests.support.engine import durable, until


class Declined(Exception):
    def __init__(self, code: int, *, price: Decimal) -> None:
        super().__init__(f"declined with {code}")
        self.code = code
        self.price = price


@dataclass
class SoldOut(ConnectionError):
    item: str


def declined(calls: list[int], app: App, **options: Any) -> Any:
    @app.step(raises=(Declined, SoldOut), **options)
    async def pay(ctx: StepContext, usd: int) -> str:
        calls.append(ctx.attempt)
        raise Declined(usd, price=Decimal("1.50"))

    return pay


@durable
async def test_a_declared_exception_is_caught_as_its_own_type_and_not_retried(app: App) -> None:
    calls: list[int] = []
    pay = declined(calls, app, retry=Retry(attempts=5, initial_delay="1ms"))

    @app.job
    async def job(ctx: JobContext) -> list[Any]:
        try:
            await pay(51)
        except Declined as error:
            cause = error.__cause__
            assert isinstance(cause, StepFailed)
            return [error.code, str(error.price), str(error), cause.step]
        return []

    async with app.running():
        handle = await app.submit(job())
        assert await handle.result("5s") == [51, "1.50", "declined with 51", "pay#1"]
    assert calls == [1]
    (entry,) = await handle.journal()
    assert entry.state is StepState.FAILED


@durable
async def test_a_replay_raises_it_again_with_what_it_holds(app: App) -> None:
    calls: list[int] = []
    seen: list[tuple[int, Decimal]] = []
    pay = declined(calls, app)

    @app.job
    async def job(ctx: JobContext) -> None:
        try:
            await pay(51)
        except Declined as error:
            seen.append((error.code, error.price))
        await ctx.receive("go")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        await handle.result("5s")
    assert calls == [1]
    assert seen == [(51, Decimal("1.50"))] * 2


@durable
async def test_who_waits_for_a_job_gets_what_the_job_declares(app: App) -> None:
    pay = declined([], app)

    @app.job(raises=(Declined,))
    async def order(ctx: JobContext) -> str:
        return await pay(51)

    @app.job
    async def quiet(ctx: JobContext) -> str:
        return await pay(51)

    async with app.running():
        handle = await app.submit(order())
        with pytest.raises(Declined) as caught:
            await handle.result("5s")
        assert (caught.value.code, caught.value.price) == (51, Decimal("1.50"))
        assert isinstance(caught.value.__cause__, JobFailed)
        other = await app.submit(quiet())
        with pytest.raises(JobFailed, match=r"Declined: declined with 51"):
            await other.result("5s")
        with pytest.raises(JobFailed):
            await (await app.handle(other.id)).result("5s")
    failure = await handle.failure()
    assert failure is not None
    assert failure.step == "pay#1"


@durable
async def test_a_parent_gets_what_its_child_declares_also_in_a_replay(app: App) -> None:
    seen: list[str] = []
    caught = asyncio.Event()

    @app.job(raises=SoldOut)
    async def child(ctx: JobContext) -> None:
        raise SoldOut("lamp")

    @app.job
    async def job(ctx: JobContext) -> None:
        try:
            await ctx.child(child())
        except SoldOut as error:
            seen.append(error.item)
            caught.set()
        await ctx.receive("go")

    async with app.running():
        handle = await app.submit(job())
        await caught.wait()
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        await handle.result("5s")
    assert seen == ["lamp", "lamp"]


@durable
async def test_an_outcome_that_nobody_catches_undoes_the_job_and_keeps_its_type(app: App) -> None:
    undone: list[str] = []
    pay = declined([], app)

    @app.step
    async def reserve(ctx: StepContext) -> str:
        return "place"

    @reserve.compensate
    async def release(ctx: StepContext, output: str | None) -> None:
        undone.append(str(output))

    @app.job(raises=(Declined,))
    async def order(ctx: JobContext) -> None:
        await reserve()
        await pay(51)

    async with app.running():
        handle = await app.submit(order())
        with pytest.raises(Declined):
            await handle.result("5s")
    assert undone == ["place"]
    assert await handle.status() is JobState.COMPENSATED


@durable
async def test_an_outcome_that_looks_like_an_outage_does_not_park_the_job(app: App) -> None:
    @app.step(raises=(SoldOut,))
    async def buy(ctx: StepContext) -> None:
        raise SoldOut("lamp")

    @app.job(raises=(SoldOut,))
    async def job(ctx: JobContext) -> None:
        await buy()

    async with app.running():
        handle = await app.submit(job())
        with pytest.raises(SoldOut):
            await handle.result("5s")
    assert await handle.status() is JobState.FAILED


@durable
async def test_an_undo_that_raises_an_outcome_is_an_undo_that_failed(app: App) -> None:
    @app.step(raises=(SoldOut,))
    async def buy(ctx: StepContext) -> None: ...

    @buy.compensate(retry=Retry(attempts=1))
    async def sell(ctx: StepContext, output: None) -> None:
        raise SoldOut("lamp")

    @app.job
    async def job(ctx: JobContext) -> None:
        await buy()
        raise RuntimeError("no")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.NEEDS_ATTENTION)


@durable
async def test_an_outcome_comes_out_of_another_os_process(app: App) -> None:
    app.include(steps)
    pay = steps.steps["pay_there"]

    @app.job
    async def job(ctx: JobContext) -> list[Any]:
        try:
            await pay(51)
        except DeclinedThere as error:
            return [error.code, error.reason, str(error)]
        return []

    async with app.running():
        handle = await app.submit(job())
        assert await handle.result("20s") == [51, "no money", "declined: no money"]


@durable
async def test_an_outcome_that_is_not_declared_any_more_parks_the_job(app: App) -> None:
    again = asyncio.Event()

    @app.step(raises=(SoldOut,))
    async def buy(ctx: StepContext) -> None:
        raise SoldOut("lamp")

    @app.job
    async def job(ctx: JobContext) -> None:
        try:
            await buy()
        except SoldOut:
            await ctx.receive("go")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)

    later = App(app.url, worker=app.worker_settings)

    @later.step(name="buy")
    async def buy_later(ctx: StepContext) -> None:
        again.set()

    @later.job(name="job")
    async def job_later(ctx: JobContext) -> None:
        await buy_later()

    async with later.running():
        await handle.send("go")
        await until(later, handle.id, JobState.NEEDS_ATTENTION)
    failure = await handle.failure()
    await later.close()
    assert failure is not None
    assert "does not declare in `raises` any more" in failure.message
    assert not again.is_set()


# The lines of code


def lines_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@durable
async def test_a_failed_job_shows_the_lines_of_its_steps_also_to_a_parent(app: App) -> None:
    @app.step(retry=Retry(attempts=1))
    async def divide(by: int) -> float:
        return 1 / by  # here the step fails

    @app.job
    async def job() -> float:
        return await divide(0)  # here the job fails

    @app.job
    async def parent() -> float:
        return await job()  # here its parent fails

    async with app.running():
        with pytest.raises(JobFailed) as caught:
            await app.run(parent())
    shown = lines_of(caught.value)
    where = [shown.index(f"here {who} fails") for who in ("the step", "the job", "its parent")]
    assert where == sorted(where)  # the cause comes first


@durable
async def test_a_step_that_failed_at_an_earlier_run_still_shows_its_lines(app: App) -> None:
    shown: list[str] = []

    @app.step(retry=Retry(attempts=1))
    async def divide(by: int) -> float:
        return 1 / by  # here the step fails

    @app.job
    async def job(ctx: JobContext) -> None:
        try:
            await divide(0)
        except StepFailed as error:
            shown.append(lines_of(error))
        await ctx.receive("go")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        await handle.result("20s")
    assert len(shown) == 2
    assert all("here the step fails" in each for each in shown)


@durable
async def test_a_parked_job_shows_the_lines_too(app: App) -> None:
    @app.step(retry=Retry(attempts=1))
    async def fetch() -> None:
        raise Unavailable("the shop is closed")  # here it stops

    @app.job
    async def job() -> None:
        await fetch()

    async with app.running():
        with pytest.raises(JobParked) as caught:
            await app.run(job())
    assert "# here it stops" in lines_of(caught.value)
