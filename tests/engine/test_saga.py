"""Sagas: what a failed job did is undone, in the reverse order, once, as durable steps."""

import asyncio
from typing import Any

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import IllegalTransition, JobFailed, Permanent
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState, StepState
from tests.support.engine import durable, until

ONCE = Retry(attempts=1)


class Shop:
    """Three steps that can be undone; `log` says what ran, `broken` what fails."""

    def __init__(self, app: App, *, pivot: bool = False, **options: Any) -> None:  # noqa: C901 - a job with many steps
        self.log: list[str] = []
        self.broken: set[str] = set()
        self._app = app

        @app.step(retry=ONCE)
        async def pay(ctx: StepContext, usd: int) -> str:
            return self.do("pay", f"payment of {usd}")

        @pay.compensate(retry=ONCE)
        async def refund(ctx: StepContext, usd: int, output: str | None) -> None:
            self.do("refund", f"{usd} {output}")

        @app.step(retry=ONCE, pivot=pivot)
        async def reserve(ctx: StepContext) -> str:
            return self.do("reserve", "reserved")

        @reserve.compensate(retry=ONCE)
        async def release(ctx: StepContext, output: str | None) -> None:
            self.do("release", str(output))

        @app.step(retry=ONCE)
        async def mail(ctx: StepContext) -> str:
            return self.do("mail", "sent")

        @mail.compensate(retry=ONCE)
        async def apologise(ctx: StepContext, output: str | None) -> None:
            self.do("apologise", str(output))

        @app.job(**options)
        async def order(ctx: JobContext, usd: int) -> str:
            await pay(usd)
            await reserve()
            await mail()
            if "end" in self.broken:
                raise RuntimeError("at the end")
            return "done"

        self.order = order

    def do(self, name: str, result: str) -> str:
        if name in self.broken:
            raise Permanent(f"{name} is broken")
        self.log.append(name if not name.startswith(("re", "ap")) else f"{name}({result})")
        return result

    async def submit(self) -> Handle[str]:
        return await self._app.submit(self.order(5))


async def states(handle: Handle[Any]) -> dict[str, str]:
    return {entry.id: entry.state.value for entry in await handle.journal()}


@pytest.mark.parametrize(
    ("broken", "undone"),
    [
        ("pay", ["refund(5 None)"]),
        ("reserve", ["release(None)", "refund(5 payment of 5)"]),
        ("mail", ["apologise(None)", "release(reserved)", "refund(5 payment of 5)"]),
        ("end", ["apologise(sent)", "release(reserved)", "refund(5 payment of 5)"]),
    ],
)
def test_what_was_done_is_undone_in_the_reverse_order(
    url: str, broken: str, undone: list[str]
) -> None:
    @durable
    async def test(app: App) -> None:
        shop = Shop(app)
        shop.broken.add(broken)
        async with app.running():
            handle = await shop.submit()
            await until(app, handle.id, JobState.COMPENSATED)
            with pytest.raises(JobFailed, match=r"broken|at the end"):
                await handle.result("5s")
        forward = [each for each in shop.log if "(" not in each or each.startswith("reserve")]
        assert shop.log == [*forward, *undone]
        found = await states(handle)
        assert found["pay#1"] == "COMPENSATED"
        assert found["undo:pay#1"] == "SUCCEEDED"

    test(url)


@durable
async def test_a_job_without_compensations_only_fails(app: App) -> None:
    @app.step(retry=ONCE)
    async def broken(ctx: StepContext) -> None:
        raise RuntimeError("down")

    @app.job
    async def job(ctx: JobContext) -> None:
        await broken()

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.FAILED)
    assert list(await states(handle)) == ["broken#1"]


@durable
async def test_an_error_that_the_code_handles_undoes_nothing(app: App) -> None:
    shop = Shop(app)
    shop.broken.add("mail")

    @app.job
    async def careful(ctx: JobContext) -> str:
        try:
            await app.find_step("mail")()
        except Exception:  # noqa: BLE001 - whatever it is, the code goes on
            return "without a mail"
        return "with a mail"

    async with app.running():
        handle = await app.submit(careful())
        assert await handle.result("5s") == "without a mail"
    assert shop.log == []


@durable
async def test_after_a_pivot_nothing_is_undone(app: App) -> None:
    shop = Shop(app, pivot=True)
    shop.broken.add("mail")
    async with app.running():
        handle = await shop.submit()
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        assert b"reserve#1 is passed" in ((await handle.job()).error or b"")
        shop.broken.clear()
        await handle.retry()
        assert await handle.result("5s") == "done"
    assert shop.log == ["pay", "reserve(reserved)", "mail"]


@durable
async def test_an_undo_that_fails_stops_the_rest_until_it_is_retried(app: App) -> None:
    shop = Shop(app)
    shop.broken |= {"mail", "release"}
    async with app.running():
        handle = await shop.submit()
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        assert (await states(handle))["reserve#1"] == "COMPENSATION_FAILED"
        assert b"abandon_undo" in ((await handle.job()).wait or b"")
        assert "refund(5 payment of 5)" not in shop.log
        with pytest.raises(IllegalTransition, match="being undone"):
            await handle.cancel()
        shop.broken.remove("release")
        await handle.retry(reason="it is up again", by="kim")
        await until(app, handle.id, JobState.COMPENSATED)
    assert shop.log[-3:] == ["apologise(None)", "release(reserved)", "refund(5 payment of 5)"]
    assert (await states(handle))["reserve#1"] == "COMPENSATED"
    assert b"mail is broken" in ((await handle.job()).error or b"")


@durable
async def test_an_undo_can_be_marked_as_done_by_hand(app: App) -> None:
    shop = Shop(app)
    shop.broken |= {"mail", "release"}
    async with app.running():
        handle = await shop.submit()
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.skip("undo:reserve#1", "by telephone", by="kim")
        await until(app, handle.id, JobState.COMPENSATED)
    assert shop.log[-1] == "refund(5 payment of 5)"
    assert (await states(handle))["reserve#1"] == "COMPENSATED"


@durable
async def test_the_rest_can_be_undone_without_what_failed(app: App) -> None:
    shop = Shop(app)
    shop.broken |= {"mail", "release"}
    async with app.running():
        handle = await shop.submit()
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.abandon_undo("undo:reserve#1", "nobody knows how", by="kim")
        await until(app, handle.id, JobState.FAILED)
    assert shop.log[-1] == "refund(5 payment of 5)"
    assert (await states(handle))["reserve#1"] == "COMPENSATION_FAILED"


@durable
async def test_a_job_may_say_that_the_rest_is_always_undone(app: App) -> None:
    shop = Shop(app, on_undo_failure="continue")
    shop.broken |= {"mail", "release"}
    async with app.running():
        handle = await shop.submit()
        await until(app, handle.id, JobState.FAILED)
    assert shop.log[-1] == "refund(5 payment of 5)"


@durable
async def test_a_cancelled_job_is_undone_if_it_says_so(app: App) -> None:
    log: list[str] = []
    begun = asyncio.Event()

    @app.step
    async def act(ctx: StepContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    @act.compensate
    async def undo(ctx: StepContext, output: None) -> None:
        log.append("undone")

    @app.job(on_cancel="compensate")
    async def job(ctx: JobContext) -> None:
        await act()

    async with app.running():
        handle = await app.submit(job())
        await begun.wait()
        await handle.cancel("wrong", by="kim")
        await until(app, handle.id, JobState.CANCELLED)
        with pytest.raises(IllegalTransition, match=r"was undone .*: submit it again"):
            await handle.retry()
    assert log == ["undone"]
    assert (await states(handle))["act#1"] == StepState.COMPENSATED


@durable
async def test_a_cancelled_job_is_left_as_it_is_if_nothing_is_said(app: App) -> None:
    shop = Shop(app)
    gate = asyncio.Event()

    @app.step
    async def hang(ctx: StepContext) -> None:
        gate.set()
        await asyncio.Event().wait()

    @app.job
    async def job(ctx: JobContext) -> None:
        await app.find_step("pay")(5)
        await hang()

    async with app.running():
        handle = await app.submit(job())
        await gate.wait()
        await handle.cancel()
        await until(app, handle.id, JobState.CANCELLED)
        assert shop.log == ["pay"]
        await handle.compensate("after all", by="kim")  # a person may still ask for it
        await until(app, handle.id, JobState.COMPENSATED)
    assert shop.log == ["pay", "refund(5 payment of 5)"]


@durable
async def test_a_cancelled_job_comes_to_its_end_if_it_says_so(app: App) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.step
    async def act(ctx: StepContext) -> str:
        begun.set()
        await gate.wait()
        return "done"

    @app.job(on_cancel="finish")
    async def job(ctx: JobContext) -> str:
        return await act()

    async with app.running():
        handle = await app.submit(job())
        await begun.wait()
        await handle.cancel()
        gate.set()
        assert await handle.result("5s") == "done"


@durable
async def test_an_effect_is_undone_by_the_step_that_it_names(app: App) -> None:
    log: list[Any] = []
    keys: list[str] = []

    @app.step
    async def refund(ctx: StepContext, charge: Any, why: str) -> None:
        assert ctx.undone is not None
        log.append(("refund", charge, why, ctx.undone.target))
        await ctx.effect("refund", keys.append, target="card")

    @app.step(retry=ONCE)
    async def pay(ctx: StepContext) -> None:
        for n in (1, 2):
            undo = (refund, {"why": "cancelled"})
            await ctx.effect("payment", lambda _, n=n: {"id": n}, target=f"card {n}", undo=undo)
        raise Permanent("after both")

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.COMPENSATED)
    assert log == [
        ("refund", {"id": 2}, "cancelled", "card 2"),
        ("refund", {"id": 1}, "cancelled", "card 1"),
    ]
    assert [line.kind for line in await handle.effects()] == ["payment"] * 2 + ["refund"] * 2
    assert (await states(handle))["pay#1"] == "COMPENSATED"


@durable
async def test_a_person_may_choose_to_undo_what_is_in_doubt(app: App) -> None:
    log: list[Any] = []

    @app.step
    async def refund(ctx: StepContext, charge: Any) -> None:
        assert ctx.undone is not None
        log.append((charge, ctx.undone.state.value))

    async def charge(key: str) -> None:
        raise TimeoutError

    @app.step
    async def pay(ctx: StepContext) -> None:
        await ctx.effect("payment", charge, target="card", undo=refund)

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.resolve(1, "compensate", by="kim")
        await until(app, handle.id, JobState.COMPENSATED)
    assert log == [(None, "IN_DOUBT")]


@durable
async def test_an_undo_waits_for_its_retry_without_a_worker_and_goes_on_after_a_restart(
    app: App,
) -> None:
    tries: list[str] = []

    @app.step(retry=ONCE)
    async def act(ctx: StepContext) -> None:
        raise Permanent("no")

    @act.compensate(retry=Retry(attempts=3, initial_delay="300ms", jitter=0))
    async def undo(ctx: StepContext, output: None) -> None:
        tries.append("undo")
        if len(tries) < 3:
            raise RuntimeError("again")

    @app.job
    async def job(ctx: JobContext) -> None:
        await act()

    handle = await app.submit(job())
    async with app.running():
        while len(tries) < 1:
            await until(app, handle.id, JobState.COMPENSATING)
            await perdure.process.sleep("10ms")
    assert (await handle.job()).state is JobState.COMPENSATING
    async with app.running():
        await until(app, handle.id, JobState.COMPENSATED)
    assert len(tries) == 3


@durable
async def test_an_ended_job_has_no_open_intent(app: App) -> None:
    begun = asyncio.Event()

    async def hang(key: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.step
    async def pay(ctx: StepContext) -> None:
        await ctx.effect("payment", hang, target="card")

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()

    async with app.running():
        handle = await app.submit(job())
        await begun.wait()
        await handle.cancel()
        await until(app, handle.id, JobState.CANCELLED)
    assert [line.state for line in await handle.effects()] == ["IN_DOUBT"]
