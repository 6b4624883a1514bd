"""One business key, several steps of one job at the same time: one of them calls."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import Refused
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import EffectState
from perdure.jobs.state import JobState
from tests.support import process_effects
from tests.support.engine import durable, nodes, until

ONCE = Retry(attempts=1)
TWICE = Retry(attempts=2, initial_delay="1ms", jitter=0)
LIMIT = "20s"


class Receiver:
    """Logs every call; a call ends when it is told to, as it is told to."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.called = asyncio.Event()
        self.go = asyncio.Event()
        self.errors: list[Exception] = []

    async def got(self, calls: int) -> None:
        """Wait for so many calls."""
        while len(self.keys) < calls:
            self.called.clear()
            await self.called.wait()

    async def __call__(self, key: str) -> str:
        self.keys.append(key)
        number = len(self.keys)
        self.called.set()
        await self.go.wait()
        if self.errors:
            raise self.errors.pop(0)
        return f"paid by call {number}"


def paying(app: App, receiver: Callable[[str], Any], steps: int = 3, **options: Any) -> Any:
    """Make a job of steps that pay for the same order at the same time."""

    of_step: Any = {"retry": ONCE, **options.pop("step", {})}

    @app.step(**of_step)
    async def pay(ctx: StepContext) -> str:
        return str(await ctx.effect("payment", receiver, target="card", key="order 7", **options))

    @app.job
    async def order(ctx: JobContext) -> list[str]:
        found = await ctx.gather(*(pay() for _ in range(steps)), return_exceptions=True)
        return [each if isinstance(each, str) else type(each).__name__ for each in found]

    return order


async def wait_for(app: App, job_id: str, waiters: int) -> None:
    """Wait until so many steps of a job wait for a key that another of them has locked."""
    (node,) = nodes(app)
    while True:
        run = node.runs.get(job_id)
        waiting = [] if run is None or run.ledger is None else run.ledger.key_locks.waiting()
        if len(waiting) >= waiters:
            return
        await perdure.process.sleep("2ms")


@durable
async def test_of_several_steps_at_once_one_calls_and_all_get_its_result(app: App) -> None:
    receiver = Receiver()
    async with app.running():
        handle = await app.submit(paying(app, receiver)())
        await receiver.called.wait()
        await wait_for(app, handle.id, 2)
        receiver.go.set()
        assert await handle.result(LIMIT) == ["paid by call 1"] * 3
    assert len(receiver.keys) == 1
    assert [line.state for line in await handle.effects()] == ["DONE", "BORROWED", "BORROWED"]


@durable
async def test_if_the_first_is_refused_one_of_the_others_calls(app: App) -> None:
    receiver = Receiver()
    receiver.errors = [Refused("card declined")]
    async with app.running():
        handle = await app.submit(paying(app, receiver)())
        await receiver.called.wait()
        await wait_for(app, handle.id, 2)
        receiver.go.set()
        result = await handle.result(LIMIT)
    assert sorted(result) == ["StepFailed", "paid by call 2", "paid by call 2"]
    assert len(set(receiver.keys)) == len(receiver.keys) == 2
    assert [line.state for line in await handle.effects()] == ["FAILED", "DONE", "BORROWED"]


@durable
async def test_if_the_first_is_in_doubt_nobody_else_calls_and_one_answer_serves_all(
    app: App,
) -> None:
    receiver = Receiver()
    receiver.errors = [TimeoutError("no answer")]
    async with app.running():
        handle = await app.submit(paying(app, receiver)())
        await receiver.called.wait()
        await wait_for(app, handle.id, 2)
        receiver.go.set()
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        (line,) = await handle.effects()
        assert line.state is EffectState.IN_DOUBT
        await handle.resolve(line.no, "happened", result="seen at the bank", by="kim")
        assert await handle.result(LIMIT) == ["seen at the bank"] * 3
    assert len(receiver.keys) == 1


@durable
async def test_a_cancel_while_one_calls_and_others_wait_calls_nobody_else(app: App) -> None:
    receiver = Receiver()
    async with app.running():
        handle = await app.submit(paying(app, receiver)())
        await receiver.called.wait()
        await wait_for(app, handle.id, 2)
        await handle.cancel()
        await until(app, handle.id, JobState.CANCELLED)
    assert len(receiver.keys) == 1
    assert [line.state for line in await handle.effects()] == [EffectState.IN_DOUBT]


@durable
async def test_if_the_time_of_the_first_is_up_another_goes_on_with_its_key(app: App) -> None:
    receiver = Receiver()
    often = Retry(attempts=50, initial_delay="1ms", jitter=0)
    step = {"timeout": "300ms", "retry": often}
    async with app.running():
        handle = await app.submit(paying(app, receiver, 2, step=step, in_doubt="replay")())
        await receiver.got(2)
        receiver.go.set()
        one, other = await handle.result(LIMIT)
    assert one == other != "StepFailed"
    assert len(set(receiver.keys)) == 1
    assert [line.state for line in await handle.effects()] == ["DONE", "BORROWED"]


@durable
async def test_a_worker_that_takes_the_job_over_calls_with_the_same_key(app: App) -> None:
    receiver = Receiver()
    async with app.running():
        handle = await app.submit(paying(app, receiver, in_doubt="replay")())
        await receiver.called.wait()
        await wait_for(app, handle.id, 2)
        store = await app.store()
        assert await store.reap(0, [nodes(app)[0].owner]) == [handle.id]
        await receiver.got(2)
        receiver.go.set()
        assert await handle.result(LIMIT) == ["paid by call 2"] * 3
    assert len(receiver.keys) == 2
    assert len(set(receiver.keys)) == 1


@durable
async def test_effects_of_one_step_at_once_with_one_key_are_one_call(app: App) -> None:
    receiver = Receiver()
    receiver.go.set()

    @app.step(retry=ONCE)
    async def pay(ctx: StepContext) -> list[str]:
        calls = [ctx.effect("payment", receiver, target="card", key="order 7") for _ in range(3)]
        return list(await asyncio.gather(*calls))

    @app.job
    async def order(ctx: JobContext) -> list[str]:
        return await pay()

    async with app.running():
        handle = await app.submit(order())
        assert await handle.result(LIMIT) == ["paid by call 1"] * 3
    assert len(receiver.keys) == 1


@durable
async def test_sync_steps_at_once_with_one_key_are_one_call(app: App) -> None:
    called, go, keys = threading.Event(), threading.Event(), list[str]()

    def act(key: str) -> str:
        keys.append(key)
        called.set()
        go.wait(20)
        return f"paid by call {len(keys)}"

    @app.step(retry=ONCE)
    def pay(ctx: Any) -> str:
        return str(ctx.effect("payment", act, target="card", key="order 7"))

    @app.job
    async def order(ctx: JobContext) -> list[str]:
        return list(await ctx.gather(*(pay() for _ in range(3))))

    async with app.running():
        handle = await app.submit(order())
        await asyncio.to_thread(called.wait, 20)
        await wait_for(app, handle.id, 2)
        go.set()
        assert await handle.result(LIMIT) == ["paid by call 1"] * 3
    assert len(keys) == 1


@durable
async def test_what_a_thread_says_when_its_attempt_is_over_does_not_count(app: App) -> None:
    called, go, ended, keys = threading.Event(), threading.Event(), threading.Event(), list[str]()

    def act(key: str) -> str:
        keys.append(key)
        if len(keys) > 1:
            return "second"
        called.set()
        go.wait(20)
        return "first"

    @app.step(retry=TWICE, timeout="200ms")
    def pay(ctx: Any) -> str:
        try:
            return str(ctx.effect("payment", act, target="card", in_doubt="replay"))
        finally:
            if called.is_set() and go.is_set():
                ended.set()

    @app.step
    async def after(ctx: StepContext) -> str:
        go.set()
        await asyncio.to_thread(ended.wait, 20)
        return "after"

    @app.job
    async def order(ctx: JobContext) -> list[str]:
        return [await pay(), await after()]

    async with app.running():
        handle = await app.submit(order())
        assert await handle.result(LIMIT) == ["second", "after"]
    (line,) = await handle.effects()
    assert line.result == b'"second"'


@pytest.mark.parametrize("name", ["pays_for_one", "pays_for_one_at_once"])
def test_steps_in_os_processes_at_once_with_one_key_are_one_call(
    url: str, tmp_path: Path, name: str
) -> None:
    @durable
    async def case(app: App) -> None:
        app.include(process_effects.steps)
        step = app.find_step(name)

        @app.job
        async def order(ctx: JobContext) -> list[Any]:
            return list(await ctx.gather(*(step(str(tmp_path)) for _ in range(2))))

        async with app.running():
            handle = await app.submit(order())
            results = await handle.result("40s")
        assert set(results) == {"paid 1"}
        assert len(process_effects.calls(tmp_path)) == 1

    case(url)


@durable
async def test_steps_at_once_with_one_idempotency_key_do_the_work_once(app: App) -> None:
    ran: list[str] = []

    def by_name(file: str) -> str:
        return file

    @app.step(idempotency_key=by_name, retry=TWICE)
    async def convert(ctx: StepContext, file: str) -> str:
        ran.append(file)
        await asyncio.sleep(0)
        if file == "b.txt" and ran.count(file) == 1:
            raise ValueError("not yet")
        return f"{file} by call {len(ran)}"

    @app.job
    async def both(ctx: JobContext, file: str) -> list[str]:
        return list(await ctx.gather(*(convert(file) for _ in range(3))))

    async with app.running():
        assert len(set(await (await app.submit(both("a.txt"))).result(LIMIT))) == 1
        assert ran == ["a.txt"]
        await (await app.submit(both("b.txt"))).result(LIMIT)
    assert (
        ran.count("b.txt") <= 3
    )  # the first, which failed, and one of the others; the first again
