"""What a waiting job waits for, in words, on both stores; totals of a list; the calls of a plan."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

import perdure
from perdure.app import App
from perdure.base.errors import Permanent
from perdure.cli.jobs.formatting import job_as_json
from perdure.cli.jobs.show import draw_job, draw_jobs, read_view, summary, view_as_json
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.model import JobQuery
from perdure.jobs.plan import Plan, PlanCall
from perdure.jobs.state import ENDED, JobState
from tests.support.engine import QUICK


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return request.getfixturevalue("postgres_url")


def with_app(url: str, test: Callable[[App], Awaitable[None]]) -> None:
    async def main() -> None:
        app = App(url, worker=QUICK)
        async with app, app.running():
            await test(app)

    perdure.run(main)


async def drawn(app: App, handle: Handle[Any]) -> tuple[str, str, Any]:
    """Return how a job is shown, listed, and given to programs."""
    page, view = io.StringIO(), await read_view(app, handle)
    console = Console(file=page, width=200)
    console.print(draw_job(view, 40))
    shown = page.getvalue()
    console.print(draw_jobs([view.job], view.now))
    listed = page.getvalue()[len(shown) :]
    return shown, listed, view_as_json(view)["waiting_for"]


async def shown_everywhere(app: App, handle: Handle[Any], text: str) -> None:
    shown = listed = given = ""
    async with asyncio.timeout(30):
        while text not in (given or ""):
            shown, listed, given = await drawn(app, handle)
    assert f"waiting for  {given}" in shown
    assert f"waiting for {given}" in listed


def test_a_wait_for_a_message_says_its_topic_and_until_when(url: str) -> None:
    async def test(app: App) -> None:
        @app.job
        async def job(ctx: JobContext) -> str:
            return await ctx.receive("signed", timeout="1h")

        await shown_everywhere(app, await app.submit(job()), "message 'signed' until ")

    with_app(url, test)


def test_a_wait_for_a_time_says_so(url: str) -> None:
    async def test(app: App) -> None:
        @app.job
        async def job(ctx: JobContext) -> None:
            await ctx.sleep("1h")

        await shown_everywhere(app, await app.submit(job()), "a timer until ")

    with_app(url, test)


def test_a_wait_for_children_says_for_how_many_of_them(url: str) -> None:
    async def test(app: App) -> None:
        @app.job
        async def child(ctx: JobContext, number: int) -> int:
            return 0 if number < 1 else await ctx.receive("go")

        @app.job
        async def parent(ctx: JobContext) -> list[int]:
            await ctx.child(child(0))
            return list(await ctx.gather(*(ctx.child(child(number)) for number in range(4))))

        handle = await app.submit(parent())
        await shown_everywhere(app, handle, "3 of 4 children")
        children = await app.find_jobs(JobQuery(parent=handle.id))
        await app.send(next(each.id for each in children if each.state not in ENDED), "go", 1)
        await shown_everywhere(app, handle, "2 of 4 children")
        store = await app.store()
        assert await store.violations() == []  # an end that is gathered is not lost

    with_app(url, test)


def test_a_wait_for_people_says_for_which_approval(url: str) -> None:
    async def test(app: App) -> None:
        @app.job
        async def job(ctx: JobContext) -> None:
            await ctx.approve("send the contract")

        handle = await app.submit(job(), user="kim")
        await handle.until(JobState.WAITING)
        (asked,) = await app.approvals()
        await shown_everywhere(app, handle, f"approval {asked.id[:8]} of 'send the contract'")

    with_app(url, test)


def test_the_totals_of_a_list_are_those_of_what_is_listed(url: str) -> None:
    async def test(app: App) -> None:
        @app.job
        async def one(ctx: JobContext) -> None: ...

        @app.job
        async def two(ctx: JobContext) -> None: ...

        handles = [
            await app.submit(one(), labels={"team": "data"}),
            await app.submit(one()),
            await app.submit(two()),
        ]
        for handle in handles:
            await handle.wait("30s")
        store = await app.store()
        name = handles[0]
        listed = JobQuery(name=(await name.job()).name)
        assert summary(await store.counts(listed)) == "2 in total: 2 COMPLETED"
        labelled = JobQuery(labels={"team": "data"})
        assert summary(await store.counts(labelled)) == "1 in total: 1 COMPLETED"
        assert summary(await store.counts()) == "3 in total: 3 COMPLETED"

    with_app(url, test)


def test_a_plan_shows_all_its_calls(url: str) -> None:
    async def test(app: App) -> None:
        @app.step
        async def load(ctx: StepContext) -> None: ...

        @app.step
        async def check(ctx: StepContext) -> None:
            raise Permanent("not today")

        plan = Plan(
            PlanCall("load"), PlanCall("check"), PlanCall("load", id="again"), name="nightly"
        )
        handle = await app.submit(plan)
        await handle.wait("30s")
        shown, _, _ = await drawn(app, handle)
        assert "Journal: 1 of 3 calls done" in shown
        assert "load#again" in shown
        assert "not begun" in shown
        given = view_as_json(await read_view(app, handle))["calls"]
        assert [call["state"] for call in given] == ["SUCCEEDED", "FAILED", None]

    with_app(url, test)


def test_a_job_that_waits_for_a_worker_says_so(url: str) -> None:
    async def test(app: App) -> None:
        @app.job
        async def job(ctx: JobContext) -> None:
            await ctx.sleep("1h")

        handle = await app.submit(job())
        await handle.until(JobState.WAITING)
        view = await read_view(app, handle)
        drained = replace(view.job, wait=None)
        assert job_as_json(drained, view.now)["waiting_for"] == "a worker"

    with_app(url, test)
