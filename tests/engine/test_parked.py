"""Waiting for a job that waits for a person: nobody is left in the dark, and nobody gives up."""

import asyncio
import logging

import pytest

import perdure
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.errors import JobParked
from perdure.jobs.definition import JobDefinition
from perdure.jobs.state import JobState
from tests.support.engine import QUICK, durable, until


class Down:
    """An outage that lasts until it is over."""

    def __init__(self) -> None:
        self.over = False

    def job(self, app: App) -> "JobDefinition[..., str]":
        @app.step(retry=perdure.Retry(attempts=1))
        async def call(_: StepContext) -> str:
            if not self.over:
                raise ConnectionError("the bank is away")
            return "paid"

        @app.job
        async def pays(ctx: JobContext) -> str:
            return await call()

        return pays


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "perdure.jobs"]


async def told(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(20):
        while not warnings_of(caplog):
            await perdure.process.sleep("2ms")


def test_who_waits_is_told_once_and_gets_the_result_in_the_end(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @durable
    async def case(app: App) -> None:
        down = Down()
        job = down.job(app)
        async with app.running():
            handle = await app.submit(job())
            waiting = [asyncio.ensure_future(handle.result("20s")) for _ in range(2)]
            await told(caplog)
            assert not any(each.done() for each in waiting)
            down.over = True
            await handle.retry()
            assert [await each for each in waiting] == ["paid", "paid"]
        (warning,) = warnings_of(caplog)
        assert handle.id in warning
        assert "the bank is away" in warning

    with caplog.at_level(logging.WARNING, "perdure.jobs"):
        case(url)


@durable
async def test_who_does_not_want_to_wait_for_a_person_is_told_why(app: App) -> None:
    handle = await app.submit(Down().job(app)())
    async with app.running():
        with pytest.raises(JobParked, match=r"the bank is away.*resume") as caught:
            await handle.result("20s", if_parked="raise")
    assert caught.value.job_id == handle.id
    assert await handle.status() is JobState.NEEDS_ATTENTION


@durable
async def test_a_time_out_says_that_the_job_is_parked(app: App) -> None:
    handle = await app.submit(Down().job(app)())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        with pytest.raises(
            TimeoutError, match=r"parked, and waits for a person: .*the bank is away"
        ):
            await handle.result("300ms")


def test_a_script_does_not_wait_for_a_person(url: str) -> None:
    app = App(url, worker=QUICK)
    with pytest.raises(JobParked, match="the bank is away"):
        app.run_sync(Down().job(app)())


@durable
async def test_a_parked_job_that_is_cancelled_ends_the_wait(app: App) -> None:
    handle: Handle[str] = await app.submit(Down().job(app)())
    async with app.running():
        waiting = asyncio.ensure_future(handle.result("20s"))
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.cancel()
        with pytest.raises(perdure.errors.JobFailed, match="CANCELLED"):
            await waiting
