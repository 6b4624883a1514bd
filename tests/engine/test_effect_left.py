"""Calls that are interrupted in their middle: nobody goes on as if they had not been made."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Partial, Retry
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import EffectState
from perdure.jobs.model import JobQuery
from perdure.jobs.state import JobState
from tests.support import process_effects
from tests.support.engine import durable, job_of, until

ONCE = Retry(attempts=1)


class Bank:
    """A receiver that does not answer its first call: nobody knows whether it has paid."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.patience = asyncio.timeout(None)  # of its caller, which ends with the first call

    async def charge(self, key: str) -> str:
        self.calls.append(key)
        if len(self.calls) > 1:
            return "again"
        with suppress(RuntimeError):  # its caller waits for ever
            self.patience.reschedule(0)
        await asyncio.Event().wait()
        return "never"

    def limit(self) -> asyncio.Timeout:
        """Return the patience of a caller."""
        self.patience = asyncio.timeout(None)
        return self.patience


async def decided(app: App, handle: Handle[Any], result: Any) -> Any:
    """Wait until a person is asked, say that the call has happened, and return the result."""
    await until(app, handle.id, JobState.NEEDS_ATTENTION)
    (line,) = await handle.effects()
    assert line.state is EffectState.IN_DOUBT
    await handle.resolve(line.no, "happened", result=result, by="kim")
    return await handle.result("10s")


@pytest.mark.parametrize("attempts", [1, 3])
def test_an_item_is_not_skipped_while_its_call_is_open(url: str, attempts: int) -> None:
    @durable
    async def test(app: App) -> None:
        bank = Bank()

        @app.step(retry=Retry(attempts=attempts))
        async def pay(ctx: StepContext) -> list[str]:
            paid: list[str] = []
            async for person in ctx.items(["ann", "kim"], on_error="skip"):
                async with bank.limit():
                    paid.append(await ctx.effect("payment", bank.charge, target=person))
            return paid

        handle = await app.submit(job_of(app, pay)())
        async with app.running():
            assert await decided(app, handle, "ref-1") == ["ref-1", "again"]
        assert len(bank.calls) == 2

    test(url)


@durable
async def test_code_that_interrupts_its_own_call_cannot_end_its_step(app: App) -> None:
    bank = Bank()

    @app.step
    async def pay(ctx: StepContext) -> str:
        try:
            async with bank.limit():
                return str(await ctx.effect("payment", bank.charge, target="card"))
        except TimeoutError:
            return "not paid"

    await _is_called_once(app, bank, pay)


@durable
async def test_code_that_interrupts_its_own_call_cannot_pay_in_another_way(app: App) -> None:
    bank = Bank()

    @app.step
    async def pay(ctx: StepContext) -> str:
        try:
            async with bank.limit():
                return str(await ctx.effect("payment", bank.charge, target="card"))
        except TimeoutError:
            return str(await ctx.effect("payment", bank.charge, target="account"))

    await _is_called_once(app, bank, pay)


@durable
async def test_a_part_of_a_step_does_not_end_while_its_call_is_open(app: App) -> None:
    bank = Bank()

    @app.step
    async def pay(ctx: StepContext) -> Any:
        if ctx.load_checkpoint() is not None:
            raise ValueError("no")
        try:
            async with bank.limit():
                paid = str(await ctx.effect("payment", bank.charge, target="card"))
        except TimeoutError:
            return Partial(output="nothing", checkpoint=1)
        return paid

    await _is_called_once(app, bank, pay)


async def _is_called_once(app: App, bank: Bank, pay: Any) -> None:
    """Run a step, say that its call happened, and check that this is its result."""
    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        assert await decided(app, handle, "ref-1") == "ref-1"
    assert len(bank.calls) == 1


@pytest.mark.parametrize("in_doubt", ["ask", "replay"])
def test_a_call_of_a_loser_is_in_doubt_at_once_and_after_a_pause(url: str, in_doubt: Any) -> None:
    @durable
    async def test(app: App) -> None:
        bank = Bank()

        @app.step
        async def pay(ctx: StepContext) -> str:
            got = await ctx.effect("payment", bank.charge, target="card", in_doubt=in_doubt)
            return str(got)

        @app.step
        async def wait(ctx: StepContext) -> str:
            while not bank.calls:
                await perdure.process.sleep("2ms")
            return "first"

        @app.job
        async def job(ctx: JobContext) -> str:
            found = await ctx.first(pay(), wait())
            await ctx.receive("go")
            return str(found.value)

        handle = await app.submit(job())
        async with app.running():
            await until(app, handle.id, JobState.WAITING)
            assert [line.state for line in await handle.effects()] == ["IN_DOUBT"]
        async with app.running():
            await handle.send("go", None)
            assert await handle.result("10s") == "first"
        assert [line.state for line in await handle.effects()] == ["IN_DOUBT"]
        assert await (await app.store()).violations() == []
        assert len(bank.calls) == 1

    test(url)


@durable
async def test_a_call_of_a_step_that_failed_is_in_doubt_at_once_and_after_a_pause(app: App) -> None:
    bank = Bank()

    @app.step(retry=ONCE, timeout="1s")
    async def pay(ctx: StepContext) -> str:
        return str(await ctx.effect("payment", bank.charge, target="card", in_doubt="replay"))

    @app.job
    async def job(ctx: JobContext) -> str:
        try:
            return await pay()
        except perdure.errors.StepFailed:
            await ctx.receive("go")
            return "caught"

    handle = await app.submit(job())
    async with app.running():
        await until(app, handle.id, JobState.WAITING)
        assert [line.state for line in await handle.effects()] == ["IN_DOUBT"]
    async with app.running():
        await handle.send("go", None)
        assert await handle.result("10s") == "caught"
    assert [line.state for line in await handle.effects()] == ["IN_DOUBT"]
    assert await (await app.store()).violations() == []


@durable
async def test_an_undo_whose_last_attempt_is_interrupted_in_a_call_waits_for_a_person(
    app: App,
) -> None:
    bank = Bank()

    @app.step
    async def pay(ctx: StepContext) -> str:
        return "paid"

    @pay.compensate(retry=ONCE)
    async def refund(ctx: StepContext, output: str | None) -> None:
        async with bank.limit():
            await ctx.effect("refund", bank.charge, target="card", undo=None)

    assert refund

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()
        raise ValueError("no")

    handle = await app.submit(job())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        (line,) = await handle.effects()
        assert line.state is EffectState.IN_DOUBT
        await handle.resolve(line.no, "happened", result=None, by="kim")
        assert await handle.wait("10s") is JobState.COMPENSATED
    assert len(bank.calls) == 1


@durable
async def test_a_thread_whose_last_attempt_times_out_in_a_call_waits_for_a_person(
    app: App,
) -> None:
    calls: list[str] = []
    over = threading.Event()

    def charge(key: str) -> str:
        calls.append(key)
        over.wait()
        return "late"

    @app.step(retry=ONCE, timeout="1s")
    def pay(ctx: Any) -> str:
        return str(ctx.effect("payment", charge, target="card"))

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        over.set()
        assert await decided(app, handle, "ref-1") == "ref-1"
    assert len(calls) == 1


@durable
async def test_two_steps_with_one_business_key_leave_one_doubt(app: App) -> None:
    bank = Bank()

    @app.step(retry=ONCE, timeout="1s")
    async def hurried(ctx: StepContext) -> str:
        return str(await ctx.effect("payment", bank.charge, target="card", key="order 7"))

    @app.step
    async def patient(ctx: StepContext) -> str:
        while not bank.calls:
            await perdure.process.sleep("2ms")
        return str(await ctx.effect("payment", bank.charge, target="card", key="order 7"))

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return list(await ctx.gather(hurried(), patient()))

    handle = await app.submit(job())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        (line,) = [each for each in await handle.effects() if each.state is EffectState.IN_DOUBT]
        await handle.resolve(line.no, "happened", result="ref-1", by="kim")
        assert await handle.result("10s") == ["ref-1", "ref-1"]
    assert len(bank.calls) == 1


# In other OS processes, closures and children


@durable
async def test_a_call_of_a_closure_in_a_child_waits_for_a_person(app: App) -> None:
    bank = Bank()

    @app.job
    async def child(ctx: JobContext) -> str:
        async def pay(step: StepContext) -> str:
            async with bank.limit():
                return str(await step.effect("payment", bank.charge, target="card"))

        return await ctx.call("pay", pay, retry=ONCE)

    @app.job
    async def parent(ctx: JobContext) -> str:
        try:
            return await child()
        except Exception:  # noqa: BLE001 - whatever it is
            return "paid elsewhere"

    handle = await app.submit(parent())
    async with app.running():
        while not (below := await app.find_jobs(JobQuery(parent=handle.id))):
            await perdure.process.sleep("5ms")
        inner = await app.handle(below[0].id)
        assert await decided(app, inner, "ref-1") == "ref-1"
        assert await handle.result("10s") == "ref-1"
    assert len(bank.calls) == 1


@pytest.mark.parametrize(
    ("step", "args", "paid"),
    [("pay", ("after the call", "ask"), "ref-1"), ("pays_many", (), ["ref-1", "paid 2"])],
)
def test_an_os_process_whose_last_attempt_ends_in_a_call_waits_for_a_person(
    url: str, tmp_path: Path, step: str, args: tuple[str, ...], paid: Any
) -> None:
    @durable
    async def test(app: App) -> None:
        app.include(process_effects.steps)
        found = app.find_step(step)

        @app.job
        async def job(ctx: JobContext) -> Any:
            return await found(str(tmp_path), *args).options(retry=ONCE)

        handle = await app.submit(job())
        async with app.running():
            assert await decided(app, handle, "ref-1") == paid
        assert len(process_effects.calls(tmp_path)) == (1 if step == "pay" else 2)

    test(url)
