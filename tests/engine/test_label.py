"""Labels: given at a submission, inherited by children, forks and the jobs of a schedule."""

from typing import Any

import pytest

from perdure.app import App
from perdure.base.errors import ArgumentError
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.model import JobQuery
from tests.support.engine import durable

DATA = {"team": "data"}


@durable
async def test_children_and_forks_have_the_labels_of_their_job(app: App) -> None:
    @app.step
    async def one(ctx: StepContext) -> int:
        return 1

    @app.job
    async def child(ctx: JobContext) -> int:
        return await one()

    @app.job
    async def parent(ctx: JobContext) -> int:
        await one()
        return await ctx.child(child())

    async with app.running():
        handle = await app.submit(parent(), labels=DATA)
        await (await app.submit(parent())).result("10s")
        assert await handle.result("10s") == 1
        fork = await handle.fork("one")
        await fork.result("10s")
    found = await app.find_jobs(JobQuery(labels=DATA))
    assert [job.name for job in found] == ["child", "parent", "child", "parent"]
    assert all(job.labels == DATA for job in found)


@durable
async def test_a_schedule_keeps_the_labels_of_its_jobs(app: App) -> None:
    @app.job
    async def nightly(ctx: JobContext) -> None: ...

    await app.schedules.put("night", "0 3 * * *", nightly(), labels=DATA)
    (kept,) = await app.schedules.list()
    assert kept.job.labels == DATA


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"n": 1}, "label 'n' must be a text, not int"),
        ({1: "n"}, "the name of label 1 must be a text"),
        ({"": "n"}, "must not be empty"),
        ({"a=b": "n"}, "without ="),
        ({"n": "x" * 201}, "at most 200"),
        ({"x" * 101: "n"}, "at most 100"),
        ({"n": "a\0b"}, "NUL"),
        ({str(n): "" for n in range(21)}, "at most 20 labels, not 21"),
        (["team"], "must map names to texts"),
    ],
)
def test_labels_that_cannot_be_stored_are_refused_with_the_reason(labels: Any, why: str) -> None:
    @durable
    async def refused(app: App) -> None:
        @app.job
        async def job(ctx: JobContext) -> None: ...

        with pytest.raises(ArgumentError, match=why):
            await app.submit(job(), labels=labels)

    refused("sqlite:////nowhere/jobs.db")
