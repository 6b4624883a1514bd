"""A fleet that is deployed: versions side by side, queues that are paused or unserved."""

import logging
from typing import Any

import pytest

import perdure
from perdure.app import App
from perdure.base import telemetry
from perdure.base.errors import UnknownName
from perdure.engine import events
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState
from tests.support.engine import QUICK, durable, nodes, until
from tests.support.telemetry import Recorder


class Code:
    """One version of the code of a job that waits for a message between two steps."""

    def __init__(self, url: str, *, change: str = "", **options: Any) -> None:
        self.app = app = App(url, worker=QUICK)
        self.ways: list[str] = []

        @app.step
        async def before(ctx: StepContext) -> str:
            return "before"

        @app.step
        async def after(ctx: StepContext, way: str) -> str:
            self.ways.append(way)
            return way

        @app.job(**options)
        async def work(ctx: JobContext) -> list[bool]:
            found = [ctx.patched("first")] if change == "patched before" else []
            if change != "no first step":
                await before()
            await ctx.receive("go")
            found += [ctx.patched("second"), ctx.patched("second")] if "patched" in change else []
            await after("new" if found and found[-1] else "old")
            return found

        self.work = work


@durable
async def test_a_job_that_no_worker_knows_waits_and_is_run_when_one_does(app: App) -> None:
    newer = Code(app.url, version="2")
    async with app.running():
        handle = await newer.app.submit(newer.work())
        await handle.send("go")
        assert handle.unserved == "no worker knows work version 2"
        nodes(app)[0].poke()
        known = await app.submit(_anything(app)())
        await known.result("10s")
        job = await handle.job()
        assert (job.state, job.claims, job.owner) == (JobState.PENDING, 0, None)
        async with newer.app.running():
            await handle.result("10s")
    await newer.app.close()


@durable
async def test_who_is_told_which_version_workers_know_is_told_which_one_is_needed(app: App) -> None:
    older, newer = Code(app.url, version="1"), Code(app.url, version="2")
    async with newer.app.running():
        handle = await older.app.submit(older.work())
        assert handle.unserved == "no worker knows work version 1, only version 2"
    for code in (older, newer):
        await code.app.close()


def _anything(app: App) -> Any:
    @app.job
    async def anything(ctx: JobContext) -> None: ...

    return anything


async def began(code: Code) -> Any:
    """Run a job of this code until it waits for the message."""
    async with code.app.running():
        handle = await code.app.submit(code.work())
        await until(code.app, handle.id, JobState.WAITING)
    await code.app.close()
    return handle.id


async def went_on(code: Code, job_id: str) -> Any:
    async with code.app.running():
        handle = await code.app.handle(job_id)
        await handle.send("go")
        return await handle.result("10s", if_parked="raise")


@durable
async def test_jobs_in_flight_keep_their_version_and_new_code_continues_what_it_accepts(
    app: App,
) -> None:
    old = await began(Code(app.url))
    refuses, accepts = Code(app.url, version="2"), Code(app.url, version="2", accepts=("1",))
    async with refuses.app.running():
        handle = await refuses.app.handle(old)
        await handle.send("go")
        await (await refuses.app.submit(_anything(refuses.app)())).result("10s")
        assert (await handle.job()).owner is None
    assert await went_on(accepts, old) == []
    assert (await (await accepts.app.handle(old)).job()).version == "1"
    await refuses.app.close()
    await accepts.app.close()


@durable
async def test_a_patch_is_not_taken_by_a_job_that_has_passed_it_and_is_by_one_that_has_not(
    app: App,
) -> None:
    old = await began(Code(app.url))
    code = Code(app.url, version="2", accepts=("1",), change="patched before")
    # The first change is before what is recorded, the second one after it.
    assert await went_on(code, old) == [False, True, True]
    new = await began(Code(app.url, version="2", change="patched before"))
    assert await went_on(code, new) == [True, True, True]
    await code.app.close()


@durable
async def test_a_patch_can_be_removed_when_no_old_job_is_left(app: App) -> None:
    new = await began(Code(app.url, change="patched before"))
    code = Code(app.url)
    assert await went_on(code, new) == []
    assert code.ways == ["old"]
    await code.app.close()


@durable
async def test_drift_parks_the_job_with_what_differs_and_which_version_to_run(app: App) -> None:
    old = await began(Code(app.url))
    code = Code(app.url, version="2", accepts=("1",), change="no first step")
    with pytest.raises(perdure.errors.JobParked, match=r"expects before#1 next") as parked:
        await went_on(code, old)
    assert "belongs to version 1 of work, and version 2 accepts that" in str(parked.value)
    assert "Run a worker with version 1" in str(parked.value)
    await code.app.close()


@durable
async def test_a_change_without_a_new_version_says_that_one_is_missing(app: App) -> None:
    old = await began(Code(app.url))
    code = Code(app.url, change="no first step")
    with pytest.raises(perdure.errors.JobParked, match="give the changed code another version="):
        await went_on(code, old)
    await code.app.close()


@durable
async def test_an_app_tells_its_workers_with_what_they_serve_and_know(app: App) -> None:
    assert await app.workers() == []
    code = Code(app.url, version="2", accepts=("1",))
    async with code.app.running():
        (worker,) = await app.workers()
        assert (worker.id, worker.queues) == (nodes(code.app)[0].owner, ("default",))
        assert (worker.concurrency, worker.running) == (QUICK.concurrency, 0)
        assert worker.definitions is not None
        assert worker.definitions.knows("work", "1")
        assert not worker.definitions.knows("work", "3")
        assert worker.definitions.steps == ("after", "before")
        assert "$defs" in worker.definitions.jobs["work"].schema
    assert await app.workers() == []
    await code.app.close()


@durable
async def test_a_job_that_is_defined_while_the_worker_runs_is_claimed(app: App) -> None:
    async with app.running():
        await (await app.submit(_anything(app)())).result("10s")


@durable
async def test_nothing_is_claimed_from_a_paused_queue_until_it_is_resumed(app: App) -> None:
    job = _anything(app)
    assert await app.pause_queue("default", by="kim", reason="release")
    assert not await app.pause_queue("default", by="kim")
    async with app.running():
        handle = await app.submit(job())
        await nodes(app)[0].store.outlook(["default"])
        (queue,) = await app.all_queues()
        assert (queue.paused, queue.ready, queue.running) == (True, 1, 0)
        assert await app.resume_queue("default", by="lee")
        await handle.result("10s")
    log = await (await app.store()).events("queue default")
    assert [(each.type, each.actor, each.data) for each in log] == [
        ("queue.paused", "kim", {"reason": "release"}),
        ("queue.resumed", "lee", {}),
    ]


@durable
async def test_a_submission_that_no_worker_serves_is_told_and_is_no_error(app: App) -> None:
    job = _anything(app)
    told = Recorder()
    telemetry.attach_many("test", [events.JOB_UNSERVED], told)
    try:
        assert (await app.submit(job())).unserved == "no worker is running"
        other = App(app.url, worker=QUICK)
        _anything(other)
        async with other.running():
            await app.close()  # so it reads again who is there, instead of up to a second later
            mail = await app.submit(job(), queue="mail")
            assert mail.unserved == "no worker serves queue mail"
            assert (await app.submit(job())).unserved is None
        await other.close()
    finally:
        telemetry.detach("test")
    assert [facts["reason"] for _, _, facts, _ in told.seen] == [
        "no worker is running",
        "no worker serves queue mail",
    ]


@durable
async def test_a_worker_beside_the_caller_is_known_without_asking(app: App) -> None:
    job = _anything(app)
    async with app.running():
        assert (await app.submit(job())).unserved is None


@durable
async def test_schedules_are_found_by_name_and_tenant(app: App) -> None:
    job = _anything(app)
    for tenant in ("acme", "bolt"):
        await app.schedules.put("nightly", "0 3 * * *", job(), tenant=tenant)
    await app.schedules.pause("nightly", tenant="bolt")
    assert not (await app.schedules.get("nightly", tenant="acme")).paused
    assert (await app.schedules.get("nightly", tenant="bolt")).paused
    await app.schedules.delete("nightly", tenant="acme")
    with pytest.raises(UnknownName, match="no schedule 'nightly' of tenant 'acme'"):
        await app.schedules.get("nightly", tenant="acme")
    await app.schedules.resume("nightly", tenant="bolt")
    assert [each.tenant for each in await app.schedules.list()] == ["bolt"]


def test_the_warning_of_an_unserved_queue_is_logged_once(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @durable
    async def case(app: App) -> None:
        job = _anything(app)
        with caplog.at_level(logging.WARNING, "perdure.jobs"):
            for _ in range(3):
                await app.submit(job())

    case(url)
    assert caplog.text.count("no worker is running") == 1
