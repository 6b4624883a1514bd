"""What running steps report: how far they are, and that they are alive."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.app import App
from perdure.cli.jobs.formatting import describe_progress, job_as_json
from perdure.cli.jobs.show import read_view
from perdure.cli.jobs.watch import ViewDiff
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.model import Job, Progress
from perdure.jobs.state import JobState
from perdure.store.store import Store
from tests.support import reporting_steps
from tests.support.engine import durable, nodes

WITHIN = 60.0
SETTINGS = WorkerSettings(report_every="10ms", poll="50ms", processes=1)


async def reported(handle: Handle[Any]) -> Job:
    """Wait until the job has a report with numbers."""
    async with asyncio.timeout(WITHIN):
        while True:
            job = await handle.job()
            if any(one.done is not None for one in job.progress):
                return job
            await perdure.process.sleep("5ms")


@pytest.mark.parametrize("kind", ["inline", "thread", "plain", "process", "items"])
def test_how_far_a_step_is_can_be_seen_while_it_runs(url: str, kind: str, tmp_path: Path) -> None:
    step: Any = getattr(reporting_steps, kind)
    go = tmp_path / "go"

    async def main() -> None:
        app = App(url, worker=SETTINGS)
        app.include(reporting_steps.steps)

        @app.job
        async def job(ctx: JobContext) -> None:
            await step(str(go))
            await ctx.receive("end")

        async with app, app.running():
            handle = await app.submit(job())
            (one,) = (await reported(handle)).progress
            note = "" if kind == "items" else "page 3"
            assert (one.step, one.done, one.total, one.note) == (f"{kind}#1", 3, 10, note)
            assert one.at is not None
            assert one.heartbeat_at >= one.at
            go.touch()
            await handle.until(JobState.WAITING)
            assert (await handle.job()).progress == ()  # no step of it is running any more
            await app.send(handle.id, "end")
            await handle.result(WITHIN)

    perdure.run(main)


def test_any_number_of_calls_are_one_write_for_all_jobs(url: str) -> None:
    async def main() -> None:
        app = App(url, worker=WorkerSettings(report_every="10ms", poll="50ms"))
        ready, go = asyncio.Barrier(3), asyncio.Event()

        @app.step
        async def work(ctx: StepContext) -> None:
            await ready.wait()
            for number in range(1000):
                ctx.progress(number, 1000)
                ctx.heartbeat()
            await go.wait()

        @app.job
        async def job(ctx: JobContext) -> None:
            await work()

        async with app, app.running():
            writes = counted(await app.store())
            handles = [await app.submit(job()), await app.submit(job())]
            await ready.wait()
            for handle in handles:
                assert [one.done for one in (await reported(handle)).progress] == [999]
            assert [len(batch) for batch in writes] == [2]
            go.set()
            for handle in handles:
                await handle.result(WITHIN)

    perdure.run(main)


def counted(store: Store) -> list[list[Any]]:
    """Record the batches that are reported to a store."""
    batches, report = list[list[Any]](), store.report

    async def recorded(owner: str, reports: Any) -> None:
        batches.append(list(reports))
        await report(owner, reports)

    store.report = recorded  # type: ignore[method-assign]
    return batches


@durable
async def test_a_report_of_an_owner_that_lost_the_job_is_not_kept(app: App) -> None:
    go = asyncio.Event()

    @app.step
    async def work(ctx: StepContext) -> None:
        await go.wait()

    @app.job
    async def job(ctx: JobContext) -> None:
        await work()

    async with app.running():
        handle = await app.submit(job())
        await handle.until(JobState.RUNNING)
        store, (node,) = await app.store(), nodes(app)
        data = b'[{"step":"work#1","heartbeat_at":1}]'
        await store.report(node.owner, [(handle.id, 7, data)])
        await store.report("another", [(handle.id, (await handle.job()).epoch, data)])
        assert (await handle.job()).progress == ()
        go.set()
        await handle.result(WITHIN)


@durable
async def test_progress_is_reported_as_numbers(app: App) -> None:
    @app.step
    async def work(ctx: StepContext) -> None:
        with pytest.raises(TypeError, match="as numbers, not '3'"):
            ctx.progress("3")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="as finite numbers"):
            ctx.progress(1, math.inf)

    @app.job
    async def job(ctx: JobContext) -> None:
        await work()

    async with app.running():
        assert await (await app.submit(job())).wait(WITHIN) is JobState.COMPLETED


def test_both_ages_are_shown() -> None:
    one = Progress(step="load#1", heartbeat_at=95.0, done=3, total=10, note="page 3", at=60.0)
    assert (
        describe_progress(one, 100.0) == "load#1: 3 of 10 (30%), page 3, 40s ago; heartbeat 5s ago"
    )
    silent = Progress(step="load#1", heartbeat_at=95.0)
    assert describe_progress(silent, 100.0) == "load#1: heartbeat 5s ago"


def test_a_watched_job_tells_new_reports_once(url: str, tmp_path: Path) -> None:
    go = tmp_path / "go"

    async def main() -> None:
        app = App(url, worker=SETTINGS)
        app.include(reporting_steps.steps)

        @app.job
        async def job(ctx: JobContext) -> None:
            await reporting_steps.inline(str(go))

        async with app, app.running():
            handle = await app.submit(job())
            await reported(handle)
            view, diff = await read_view(app, handle), ViewDiff()
            told = [change["text"] for change in diff.since(view) if "text" in change]
            assert told == ["3 of 10 (30%), page 3"]
            assert [change for change in diff.since(view) if "text" in change] == []
            (given,) = job_as_json(view.job, view.now)["progress"]
            assert (given["done"], given["note"], given["age"] >= 0) == (3, "page 3", True)
            go.touch()
            await handle.result(WITHIN)

    perdure.run(main)
