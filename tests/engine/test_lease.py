"""Leases: who loses one stops, and writes nothing more."""

import asyncio
import logging
import threading
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import perdure
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.reaper import Reaper
from perdure.jobs.fleet import WorkerInfo
from perdure.jobs.listing import ShownState
from perdure.jobs.model import Write
from perdure.jobs.query_text import parse
from perdure.jobs.state import JobState, StepState
from tests.support.engine import QUICK, durable, job_of, nodes, until
from tests.support.store import sql


class Steps:
    """A step that hangs at its first run, and gives its number at later ones."""

    def __init__(self, app: App) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.runs = 0

        @app.step
        async def work(ctx: StepContext) -> int:
            self.runs += 1
            if self.runs > 1:
                return self.runs
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()
            return 0

        @app.job
        async def job(ctx: JobContext) -> int:
            return await work()

        self.job = job


@durable
async def test_a_step_is_ended_when_the_lease_of_its_job_is_taken_away(app: App) -> None:
    steps = Steps(app)
    async with app.running():
        handle = await app.submit(steps.job())
        await steps.begun.wait()
        store = await app.store()
        assert await store.reap(0, [nodes(app)[0].owner]) == [handle.id]
        async with asyncio.timeout(5):
            await steps.ended.wait()
        assert await handle.result("10s") == 2
    (entry,) = await handle.journal()
    assert entry.state is StepState.SUCCEEDED
    events = [event.type for event in await handle.events()]
    assert events.count("claimed") == 2


@durable
async def test_what_a_step_does_not_notice_is_refused_by_the_store(app: App) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    went_on: list[str] = []

    @app.step
    async def deaf(ctx: StepContext) -> str:
        if ctx.attempt > 1 or begun.is_set():
            return "second"
        begun.set()
        await gate.wait()
        await ctx.save_checkpoint("of a zombie")
        went_on.append("zombie")
        return "first"

    @app.job
    async def job(ctx: JobContext) -> str:
        return await deaf()

    # The worker hears of nothing: only its own writes can tell it.
    slow = replace(
        QUICK, poll="1h", lease="1h", heartbeat="20m", stop_before_expiry="25m", stuck_after="1h"
    )
    other = App(app.url, worker=QUICK)
    other.include(app)
    store = await app.store()
    async with app.running(slow):
        handle = await app.submit(job())
        await begun.wait()
        nodes(app)[0].draining = True  # it does not take the job again
        await store.reap(0, [nodes(app)[0].owner])
        async with other.running():
            assert await handle.result("10s") == "second"
        gate.set()
        while nodes(app)[0].claimed:
            await perdure.process.sleep("5ms")
    assert went_on == []
    (entry,) = await handle.journal()
    assert (entry.state, entry.checkpoint) == (StepState.SUCCEEDED, None)
    await other.close()


class Quiet:
    """A step that says nothing until it is let go, and how often it was started."""

    def __init__(self, app: App, where: str) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.starts: list[int] = []

        def start() -> int:
            self.starts.append(len(self.starts) + 1)
            self.begun.set()
            return self.starts[-1]

        @app.step(name="inline")
        async def inline(ctx: StepContext) -> int:
            number = start()
            while not self.go.is_set():
                await perdure.process.sleep("10ms")
            return number

        @app.step(name="thread")
        def thread(ctx: SyncStepContext) -> int:
            number = start()
            self.go.wait(30)
            return number

        steps: dict[str, Any] = {"inline": inline, "thread": thread}
        self.job = job_of(app, steps[where])


@pytest.mark.parametrize("where", ["inline", "thread"])
def test_a_step_without_progress_is_not_started_again_while_it_lives(url: str, where: str) -> None:
    @durable
    async def case(app: App) -> None:
        quiet = Quiet(app, where)
        async with app.running(replace(QUICK, lease="5s", stuck_after="5s")):
            handle = await app.submit(quiet.job())
            while "job.stuck" not in [event.type for event in await handle.events()]:
                await perdure.process.sleep("20ms")
            await renewed_again(app, handle)
            quiet.go.set()
            assert await handle.result("20s") == 1
        assert quiet.starts == [1]
        events = await handle.events()
        assert [event.type for event in events].count("claimed") == 1
        (stuck,) = [event for event in events if event.type == "job.stuck"]
        for word in (f"{where}#1 reported no progress", "ctx.heartbeat()", "timeout=", "process"):
            assert word in stuck.data["why"]

    case(url)


@durable
async def test_a_stuck_job_is_found_everywhere_as_long_as_it_is_stuck(app: App) -> None:
    alive, go = asyncio.Event(), asyncio.Event()

    @app.step
    async def silent(ctx: StepContext) -> None:
        while not go.is_set():
            if alive.is_set():
                ctx.heartbeat()
            await perdure.process.sleep("20ms")

    @app.job
    async def job(ctx: JobContext) -> None:
        await silent()

    async with app.running(replace(QUICK, lease="5s", stuck_after="5s", heartbeat="100ms")):
        handle = await app.submit(job(), tenant="acme")
        await until_stuck(app, handle, stuck=True)
        assert await seen_as_stuck(app) == (1, 1, 1, {"RUNNING": 1})
        assert (await app.insight.metrics("globex")).gauges.job_stuck_count == 0
        alive.set()  # it still runs, and shows it
        await until_stuck(app, handle, stuck=False)
        assert await seen_as_stuck(app) == (0, 0, 0, {})
        go.set()
        await handle.result("20s")
    told = [event.type for event in await handle.events() if event.type.startswith("job.")]
    assert told == ["job.stuck", "job.progressed", "job.completed"]


@durable
async def test_a_job_that_another_worker_takes_is_not_stuck_any_more(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None: ...

    await app.submit(job())
    store = await app.store()
    for owner in ("w1", "w2"):
        (claim,) = await store.claim(owner, app.queues, 1, lease=120.0)
        assert await seen_as_stuck(app) == (0, 0, 0, {})
        mark = Write(job_id=claim.job.id, owner=owner, epoch=claim.epoch, stalled=True)
        await store.write(mark)
        assert await seen_as_stuck(app) == (1, 1, 1, {"RUNNING": 1})
        await store.reap(0, [owner])


async def until_stuck(app: App, handle: Handle[Any], *, stuck: bool) -> None:
    """Wait until a row shows that its job is stuck, or no longer."""
    while ((await app.insight.row(handle.id)).shown_state is ShownState.STUCK) is not stuck:
        await perdure.process.sleep("20ms")


async def seen_as_stuck(app: App) -> tuple[int, int, int, dict[str, int]]:
    """Return how many jobs are stuck: by the list, the figure, the gauge and the count."""
    store, query = await app.store(), parse("state:stuck")
    figure = (await app.insight.metrics()).gauges.job_stuck_count
    listed = [job for job in await app.find_jobs(query) if job.stuck]
    return len(listed), figure, (await store.gauges()).stuck, await store.counts(query)


async def renewed_again(app: App, handle: Handle[Any]) -> None:
    """Wait until the lease of a running job was renewed twice more."""
    (node,) = nodes(app)
    for _ in range(2):
        run = node.runs[handle.id]
        trusted = run.trusted_until
        while run.trusted_until == trusted and run.verdict is None:
            await perdure.process.sleep("20ms")


@durable
async def test_a_step_is_not_started_beside_its_thread_of_a_run_that_lost_its_lease(
    app: App,
) -> None:
    quiet = Quiet(app, "thread")
    async with app.running():
        handle = await app.submit(quiet.job())
        await asyncio.to_thread(quiet.begun.wait, 20)
        store = await app.store()
        assert await store.reap(0, [nodes(app)[0].owner]) == [handle.id]
        await begun_again(app, handle)
        assert quiet.starts == [1]
        quiet.go.set()
        assert await handle.result("20s") == 2


async def begun_again(app: App, handle: Handle[Any]) -> None:
    """Wait until the journal says that a second run has begun a step."""
    (node,) = nodes(app)
    while (run := node.runs.get(handle.id)) is None or run.epoch < 2 or not run.working:
        await perdure.process.sleep("5ms")
    while not await handle.journal():
        await perdure.process.sleep("5ms")


@durable
async def test_a_step_that_reports_progress_keeps_its_job(app: App) -> None:
    settings = replace(QUICK, lease="2s", stuck_after="2s")

    @app.step
    async def slow(ctx: StepContext) -> int:
        for _ in range(15):
            await perdure.process.sleep("200ms")
            ctx.heartbeat()
        return ctx.attempt

    @app.job
    async def job(ctx: JobContext) -> int:
        return await slow()

    async with app.running(settings):
        handle = await app.submit(job())
        assert await handle.result("20s") == 1
    assert [event.type for event in await handle.events()].count("claimed") == 1


@durable
async def test_a_step_whose_time_out_is_long_is_not_stuck_before_it(app: App) -> None:
    settings = replace(QUICK, lease="2s", stuck_after="2s")

    @app.step(timeout="1m")
    async def slow(ctx: StepContext) -> int:
        await perdure.process.sleep("3s")
        return ctx.attempt

    @app.job
    async def job(ctx: JobContext) -> int:
        return await slow()

    async with app.running(settings):
        handle = await app.submit(job())
        assert await handle.result("20s") == 1
    assert [event.type for event in await handle.events()].count("claimed") == 1


@durable
async def test_a_blocked_loop_keeps_its_leases_while_its_thread_renews_them(app: App) -> None:
    settings = replace(QUICK, lease="2s", stuck_after="10s")
    blocked = threading.Event()

    @app.step
    async def block(ctx: StepContext) -> int:
        blocked.wait(4)  # twice as long as a lease, on the loop itself
        return ctx.attempt

    @app.job
    async def job(ctx: JobContext) -> int:
        return await block()

    async with app.running(settings):
        handle = await app.submit(job())
        assert await handle.result("20s") == 1
    assert [event.type for event in await handle.events()].count("claimed") == 1


@durable
async def test_the_row_of_a_worker_that_vanished_with_its_machine_goes(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None: ...

    await app.submit(job())
    store = await app.store()
    info = WorkerInfo(
        host="elsewhere", boot="1", pid=1, started_at=0.0, queues=("default",), concurrency=1
    )
    for owner in ("vanished", "its jobs are still leased", "lives"):
        await store.heartbeat(owner, msgspec.json.encode(info))
    assert await store.claim("its jobs are still leased", app.queues, 1, 60.0)
    sql(app.url, "UPDATE worker SET heartbeat_at = heartbeat_at - 3600 WHERE owner <> 'lives'")
    reaper = Reaper(WorkerNode(store, app, QUICK, app.queues, app.limits))

    reaper.failed()  # after an outage nobody could have said that it lives
    await reaper.look()
    assert len(await store.workers()) == 3
    await perdure.process.sleep(2 * QUICK.heartbeat)
    await reaper.look()
    assert [each.owner for each in await store.workers()] == ["its jobs are still leased", "lives"]


def test_the_heart_survives_what_it_did_not_expect(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @durable
    async def case(app: App) -> None:
        steps = Steps(app)
        async with app.running():
            handle = await app.submit(steps.job())
            await steps.begun.wait()
            node = nodes(app)[0]
            held, node.held = node.held, _broken
            while "renewing leases" not in caplog.text:
                await perdure.process.sleep("10ms")
            node.held = held
            trusted = node.runs[handle.id].trusted_until
            while node.runs[handle.id].trusted_until == trusted:
                await perdure.process.sleep("10ms")
            await handle.cancel()
            await until(app, handle.id, JobState.CANCELLED)

    with caplog.at_level(logging.ERROR):
        case(url)


def _broken() -> list[tuple[str, int]]:
    raise LookupError("a bug")


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"heartbeat": "50s"}, "heartbeat .* third of lease"),
        ({"stop_before_expiry": "10s"}, "stop_before_expiry .* between heartbeat"),
        ({"stop_before_expiry": "70s"}, "stop_before_expiry .* between heartbeat"),
        ({"stuck_after": "1m"}, "stuck_after .* at least lease"),
        ({"concurrency": 0}, "concurrency is at least 1"),
        ({"processes": 0}, "processes is at least 1"),
        ({"max_claims": 0}, "max_claims"),
        ({"poll": 0}, "poll must be longer"),
        ({"lease": "soon"}, "lease"),
        ({"keep": "-1s"}, "negative"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_rule(
    settings: dict[str, object], rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        WorkerSettings(**settings)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer"):
        WorkerSettings(concurrency=1.5)  # type: ignore[arg-type]
