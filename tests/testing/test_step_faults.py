"""Steps that fail, hang, take long or are replaced in a test, wherever they run."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import UnknownName
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.registry import AttemptedCall
from perdure.jobs.state import JobState
from perdure.testing import Environment, environment
from tests.support.job_environment import NEVER_OPENED, in_environment
from tests.support.process_steps import steps as in_processes
from tests.support.process_steps import who


@in_environment
async def test_a_step_fails_as_often_as_a_test_says(app: App, env: Environment) -> None:
    @app.step(retry=Retry(attempts=5, initial_delay="1h"))
    async def charge(ctx: StepContext, cents: int) -> int:
        return cents

    @app.job
    async def job(ctx: JobContext) -> int:
        return await charge(5) + await charge(7)

    env.fail(charge, ConnectionError("reset"), times=2)
    env.fail("charge#2", times=1)
    assert await (await app.submit(job())).result() == 12
    assert [(each.id, each.attempt) for each in env.attempts(charge)] == [
        ("charge#1", 1),
        ("charge#1", 2),
        ("charge#1", 3),
        ("charge#2", 1),
        ("charge#2", 2),
    ]
    assert [each.args for each in env.attempts("charge#2")] == [(7,), (7,)]


@in_environment
async def test_a_step_that_always_fails_lets_the_job_undo(app: App, env: Environment) -> None:
    undone: list[str] = []

    @app.step
    async def reserve(ctx: StepContext) -> str:
        return "room 7"

    @reserve.compensate
    async def free(ctx: StepContext, output: str | None) -> None:
        undone.append(output or "")

    @app.step(retry=Retry(attempts=2))
    async def pay(ctx: StepContext) -> None: ...

    @app.job
    async def book(ctx: JobContext) -> None:
        await reserve()
        await pay()

    env.fail(pay, ValueError("no money"), times=None)
    env.fail("undo:reserve#1", ConnectionError("the hotel does not answer"))
    handle = await app.submit(book())
    assert await handle.wait() is JobState.COMPENSATED
    assert undone == ["room 7"]


@in_environment
async def test_a_step_that_hangs_is_ended_by_its_timeout(app: App, env: Environment) -> None:
    @app.step(timeout="10m", retry=Retry(attempts=2))
    def sync_step(ctx: SyncStepContext) -> str:
        return "at the second attempt"

    @app.job
    async def job(ctx: JobContext) -> str:
        return await sync_step()

    env.hang(sync_step)
    assert await (await app.submit(job())).result() == "at the second attempt"
    assert env.skipped > timedelta(minutes=9)


@in_environment
async def test_a_slow_step_takes_skipped_time(app: App, env: Environment) -> None:
    @app.step
    async def train(ctx: StepContext) -> str:
        return "a model"

    @app.job
    async def job(ctx: JobContext) -> str:
        return await train()

    env.delay(train, "12h")
    assert await (await app.submit(job())).result() == "a model"
    assert env.skipped > timedelta(hours=11)


@in_environment
async def test_a_step_is_replaced_by_a_value_or_a_function(app: App, env: Environment) -> None:
    @app.step
    async def ask_model(ctx: StepContext, question: str) -> str:
        raise AssertionError("the real model must not be asked")

    @app.step
    def double(ctx: SyncStepContext, number: int) -> int:
        return 2 * number

    async def twice_doubled(attempt: AttemptedCall) -> Any:
        return 2 * await attempt.proceed()

    @app.job
    async def job(ctx: JobContext) -> list[Any]:
        return [await ask_model("how much?"), await double(10)]

    env.returns(ask_model, "42")
    env.replace(double, twice_doubled)
    assert await (await app.submit(job())).result() == ["42", 40]


def test_a_step_in_an_os_process_can_fail_and_gets_real_time(url: str) -> None:
    app = App(NEVER_OPENED)
    app.include(in_processes)

    @app.job
    async def job(ctx: JobContext) -> dict[str, object]:
        return await who("me")

    async def main() -> None:
        async with environment(app, url=url) as env:
            env.fail(who)
            assert (await (await app.submit(job())).result())["word"] == "me"
            assert len(env.attempts(who)) == 2
            assert env.skipped < timedelta(minutes=1)

    asyncio.run(main())


@in_environment
async def test_a_fault_of_an_unknown_step_is_refused(app: App, env: Environment) -> None:
    @app.step
    async def charge(ctx: StepContext) -> None: ...

    with pytest.raises(UnknownName, match="no step 'chrage'; the app has: charge"):
        env.fail("chrage")


def test_nothing_of_a_test_stays_with_the_app() -> None:
    app = App(NEVER_OPENED)

    async def main() -> None:
        async with environment(app):
            assert app.intercept is not None
            raise LookupError("the test itself fails")

    with pytest.raises(LookupError):
        asyncio.run(main())
    assert (app.url, app.clock, app.intercept) == (NEVER_OPENED, None, None)
