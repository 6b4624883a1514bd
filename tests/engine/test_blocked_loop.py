"""A worker whose loop is held up past its lease: another one takes over, and it stops."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import perdure
from perdure.app import App
from perdure.base import telemetry
from perdure.engine import events
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.definition import JobDefinition
from perdure.jobs.state import StepState
from tests.support.engine import nodes
from tests.support.telemetry import Recorder

WITHIN = 20.0

# A loop that stands still for half a second has lost its leases within another.
HASTY = WorkerSettings(
    lease="450ms",
    heartbeat="150ms",
    stop_before_expiry="200ms",
    stuck_after="450ms",
    poll="50ms",
    reap_every="50ms",
    expiry_every="50ms",
    cancel_grace="100ms",
    start_record_after="20ms",
)

# The other one keeps its own lease, however busy the machine is.
PATIENT = WorkerSettings(poll="50ms", reap_every="50ms", expiry_every="50ms", cancel_grace="100ms")


class Scene:
    """A step that blocks the loop of its first worker, and what becomes of it afterwards."""

    def __init__(self) -> None:
        self.blocks = threading.Event()
        self.taken_over = threading.Event()
        self.unwound = threading.Event()
        self.went_on: list[str] = []

    def stand_still(self) -> None:
        self.blocks.set()
        assert self.taken_over.wait(WITHIN)

    def job(self, app: App) -> JobDefinition[..., str]:
        @app.step
        async def work(ctx: StepContext) -> str:
            if self.blocks.is_set():
                return "second"
            try:
                # In a callback of nobody: a step that blocks the loop itself would keep its job.
                asyncio.get_running_loop().call_soon(self.stand_still)
                await asyncio.sleep(0)
                await ctx.save_checkpoint("of a zombie")
                self.went_on.append("after the checkpoint")
            finally:
                self.unwound.set()
            return "first"

        @app.job
        async def blocked(ctx: JobContext) -> str:
            result = await work()
            self.went_on.append(result)
            return result

        return blocked


def first_worker(url: str, scene: Scene, over: threading.Event) -> None:
    """Be the worker whose loop is blocked, with a loop and a store of its own."""

    async def main() -> None:
        app = App(url, worker=HASTY)
        await app.submit(scene.job(app)(), key="the job")
        try:
            async with app.running():
                await asyncio.to_thread(over.wait, WITHIN)
                assert nodes(app)[0].runs == {}  # it has let go
        finally:
            await app.close()

    perdure.run(main)


def test_it_is_taken_over_and_not_one_of_its_writes_is_accepted(url: str) -> None:
    scene, over, heard = Scene(), threading.Event(), Recorder()
    telemetry.attach("blocked", events.LEASE_LOSE, heard)

    async def second_worker() -> None:
        app = App(url, worker=PATIENT)
        blocked = scene.job(app)
        try:
            assert await asyncio.to_thread(scene.blocks.wait, WITHIN)
            async with app.running():
                handle = await app.submit(blocked(), key="the job")
                assert await handle.result(WITHIN) == "second"
                scene.taken_over.set()
                assert await asyncio.to_thread(scene.unwound.wait, WITHIN)
                over.set()
            (entry,) = await handle.journal()
            assert (entry.state, entry.output) == (StepState.SUCCEEDED, b'"second"')
            assert entry.checkpoint is None
            assert [event.type for event in await handle.events()].count("claimed") == 2
        finally:
            over.set()
            scene.taken_over.set()
            await app.close()

    with ThreadPoolExecutor(1) as threads:
        blocked = threads.submit(first_worker, url, scene, over)
        try:
            perdure.run(second_worker)
        finally:
            telemetry.detach("blocked")
        blocked.result(WITHIN)

    assert scene.went_on == ["second"]
    assert [told["epoch"] for _, _, told, _ in heard.seen] == [1]
