"""Commands to many jobs by a query: in each log by itself, and first as a dry run."""

import pytest

from perdure.app import App
from perdure.base.errors import ArgumentError
from perdure.base.retry import Retry
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.model import JobQuery
from perdure.jobs.state import JobState
from tests.support.engine import durable

DATA = {"team": "data"}


async def states(app: App, **query: object) -> list[JobState]:
    found = await app.find_jobs(JobQuery(**query))  # pyright: ignore[reportArgumentType]  its own fields
    return [job.state for job in found]


@durable
async def test_a_dry_run_changes_nothing_and_says_what_would_be_refused(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None: ...

    mine = [await app.submit(job(), labels=DATA) for _ in range(3)]
    await app.submit(job())
    await mine[1].cancel()
    every = JobQuery(labels=DATA, states=tuple(JobState))
    tried = await app.command_jobs("cancel", every, by="kim", dry_run=True)
    assert [each.job_id for each in tried.affected] == [mine[0].id, mine[2].id]
    (refused,) = tried.refused
    assert (refused.job_id, refused.state) == (mine[1].id, JobState.CANCELLED)
    assert "there is nothing to cancel" in refused.refused
    assert [event.type for event in await mine[0].events()] == ["submitted"]

    done = await app.command_jobs("cancel", every, by="kim", reason="too many")
    assert done.results == tried.results
    assert await states(app, labels=DATA) == [JobState.CANCELLED] * 3
    assert await states(app, states=(JobState.PENDING,)) == [JobState.PENDING]
    (_, event) = await mine[0].events()
    assert (event.type, event.actor, event.data) == ("cancel.asked", "kim", {"reason": "too many"})


@durable
async def test_without_states_a_command_is_for_those_that_it_is_made_for(app: App) -> None:
    fails = True

    @app.step(retry=Retry(attempts=1))
    async def flaky(ctx: StepContext) -> int:
        if fails:
            raise ValueError("not now")
        return 1

    @app.job
    async def job(ctx: JobContext) -> int:
        return await flaky()

    async with app.running():
        failed = [await app.submit(job(), labels=DATA) for _ in range(3)]
        for handle in failed:
            assert await handle.wait("10s") is JobState.FAILED
        later = await app.submit(job(), labels=DATA, delay="1h")
        fails = False
        done = await app.command_jobs("retry", JobQuery(labels=DATA))
        assert [each.job_id for each in done.affected] == [handle.id for handle in failed]
        assert done.refused == []
        assert [await handle.result("10s") for handle in failed] == [1, 1, 1]
    paused = await app.command_jobs("pause", JobQuery(name="job"))
    assert [each.job_id for each in paused.affected] == [later.id]
    assert await later.status() is JobState.PAUSED
    resumed = await app.command_jobs("resume", JobQuery(name="job"))
    assert [each.state for each in resumed.affected] == [JobState.PAUSED]
    assert await later.status() is JobState.PENDING


@durable
async def test_many_pages_of_jobs_get_the_command_the_oldest_first(app: App) -> None:
    @app.job
    async def job(ctx: JobContext, number: int) -> None: ...

    handles = await app.submit_many([job(number) for number in range(1100)])
    done = await app.command_jobs("cancel", JobQuery(limit=1))
    assert [each.job_id for each in done.affected] == sorted(handle.id for handle in handles)
    assert await (await app.store()).counts() == {"CANCELLED": 1100}


@durable
async def test_what_is_dry_run_as_refused_is_refused(app: App) -> None:
    @app.step
    async def pay(ctx: StepContext) -> None: ...

    @pay.compensate
    async def refund(ctx: StepContext, output: None) -> None: ...

    assert refund

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()
        raise ValueError("no")

    async with app.running():
        handle = await app.submit(job())
        assert await handle.wait("10s") is JobState.COMPENSATED
    every = JobQuery(states=tuple(JobState))
    for action in ("cancel", "pause", "resume", "retry"):
        tried = await app.command_jobs(action, every, dry_run=True)
        done = await app.command_jobs(action, every)
        assert len(tried.refused) == 1
        assert tried.results == done.results


@durable
async def test_an_unknown_command_is_refused_before_anything_is_done(app: App) -> None:
    with pytest.raises(ArgumentError, match="cancel, pause, resume, retry"):
        await app.command_jobs("skip", JobQuery())  # pyright: ignore[reportArgumentType]
