"""Keys of effects: what must never be mistaken for something else, and who may use it when."""

import asyncio
from typing import Any

import pytest

from perdure import Retry
from perdure.app import App
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import DidNotHappen
from perdure.jobs.state import JobState
from tests.support.engine import durable, job_of, until

QUICK = Retry(attempts=5, initial_delay="1ms", jitter=0)


@durable
async def test_a_business_key_that_changes_does_not_hide_an_open_call(app: App) -> None:
    calls: list[str] = []

    async def act(key: str) -> None:
        calls.append(key)
        raise TimeoutError

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> None:
        key = f"attempt {ctx.attempt}"
        await ctx.effect("payment", act, target="card", key=key, in_doubt="replay")

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    assert len(calls) == 1
    assert [line.state for line in await handle.effects()] == ["IN_DOUBT"]


@durable
async def test_two_jobs_that_use_a_business_key_at_once_do_it_once(app: App) -> None:
    both, seen, calls = asyncio.Barrier(2), set[str](), list[str]()

    async def act(key: str) -> str:
        calls.append(key)
        return "done"

    @app.step(retry=Retry(attempts=1))
    async def greet(ctx: StepContext) -> str:
        if ctx.job_id not in seen:
            seen.add(ctx.job_id)
            await both.wait()
        return str(await ctx.effect("email", act, target="kim", key="welcome kim"))

    job = job_of(app, greet)
    handles = [await app.submit(job()) for _ in range(2)]
    async with app.running():
        assert [await handle.result("10s") for handle in handles] == ["done", "done"]
    assert len(calls) == 1
    lines = [line for handle in handles for line in await handle.effects()]
    assert sorted(line.state for line in lines) == ["BORROWED", "DONE"]


@durable
async def test_who_comes_second_waits_while_the_first_is_at_it(app: App) -> None:
    begun, both, calls = asyncio.Event(), asyncio.Event(), list[str]()

    async def act(key: str) -> str:
        calls.append(key)
        begun.set()
        await both.wait()
        await until(app, second.id, JobState.WAITING)
        return "done"

    @app.step(retry=Retry(attempts=1))
    async def greet(ctx: StepContext) -> str:
        return str(await ctx.effect("email", act, target="kim", key="welcome kim"))

    job = job_of(app, greet)
    async with app.running():
        first = await app.submit(job())
        await begun.wait()
        second = await app.submit(job())
        both.set()
        assert [await handle.result("10s") for handle in (first, second)] == ["done", "done"]
    assert len(calls) == 1
    (step,) = await second.journal()
    assert step.attempt == 1


@durable
async def test_what_two_jobs_record_at_once_is_recorded(app: App) -> None:
    both = asyncio.Barrier(2)

    @app.step(retry=Retry(attempts=1))
    async def note(ctx: StepContext) -> bool:
        await both.wait()
        await ctx.record_effect("email", "kim")
        return await ctx.was_effect_recorded("email", "kim")

    job = job_of(app, note)
    handles = [await app.submit(job()) for _ in range(2)]
    async with app.running():
        assert [await handle.result("10s") for handle in handles] == [True, True]


@durable
async def test_what_was_recorded_by_hand_is_no_answer_to_an_effect(app: App) -> None:
    calls: list[str] = []

    @app.step
    async def greet(ctx: StepContext) -> None:
        await ctx.record_effect("email", "kim")
        await ctx.effect("recorded email", calls.append, target="kim", key="kim")

    async with app.running():
        await (await app.submit(job_of(app, greet)())).result("5s")
    assert len(calls) == 1


class FailsIn:
    """A receiver that honours keys; its first answers are these errors."""

    def __init__(self, *errors: Exception) -> None:
        self.keys: list[str] = []
        self._errors = list(errors)

    async def __call__(self, key: str) -> str:
        self.keys.append(key)
        if self._errors:
            raise self._errors.pop(0)
        return "paid"


UNCONNECTED = ConnectionRefusedError("nobody is there")


@pytest.mark.parametrize("first", [TimeoutError("no answer"), RuntimeError("a bug")])
def test_that_a_second_call_never_left_says_nothing_about_the_first(
    url: str, first: Exception
) -> None:
    receiver = FailsIn(first, UNCONNECTED, UNCONNECTED)

    @durable
    async def case(app: App) -> None:
        @app.step(retry=QUICK)
        async def pay(ctx: StepContext) -> str:
            return str(await ctx.effect("payment", receiver, target="card", in_doubt="replay"))

        handle = await app.submit(job_of(app, pay)())
        async with app.running():
            assert await handle.result("5s") == "paid"
        (line,) = await handle.effects()
        assert (line.state, line.generation) == ("DONE", 1)

    case(url)
    assert (len(receiver.keys), len(set(receiver.keys))) == (4, 1)


@durable
async def test_after_a_no_of_the_receiver_the_key_stays_the_same(app: App) -> None:
    receiver = FailsIn(TimeoutError("no answer"), UNCONNECTED)

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> str:
        def ask(_: str) -> DidNotHappen:
            return DidNotHappen()

        options: Any = {"query": ask, "settle_after": 0}
        return str(await ctx.effect("payment", receiver, target="card", **options))

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        assert await handle.result("5s") == "paid"
    assert [line.state for line in await handle.effects()] == ["DONE"]
    assert (len(receiver.keys), len(set(receiver.keys))) == (3, 1)
