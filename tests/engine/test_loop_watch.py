"""A step that blocks the event loop is named, and keeps its job; others are left to others."""

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import perdure
from perdure.app import App
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.worker.loop_watch import find_blocker
from perdure.jobs.definition import JobDefinition
from perdure.jobs.state import StepState
from tests.engine.test_blocked_loop import HASTY, PATIENT, WITHIN
from tests.support.engine import QUICK, durable, nodes

# Its thread renews the lease in time, however busy the machine is.
STEADY = replace(HASTY, lease=4.0, stuck_after=4.0)


class Named(logging.Handler):
    """Waits for a line of the log."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self._pattern = re.compile(pattern)
        self.text = ""
        self.said = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._pattern.search(text := record.getMessage()):
            self.text = text
            self.said.set()


@pytest.fixture
def named() -> Iterator[Named]:
    handler = Named("has blocked the event loop")
    log = logging.getLogger("perdure.worker")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def test_a_step_that_blocks_the_loop_is_named_with_its_line(url: str, named: Named) -> None:
    async def main() -> str:
        app = App(url, worker=QUICK)

        @app.step
        async def crunch() -> None:
            assert named.said.wait(WITHIN)  # the whole loop stands still

        @app.job
        async def job() -> None:
            await crunch()

        async with app, app.running():
            handle = await app.submit(job())
            await handle.result(WITHIN)
            return handle.id

    job_id = perdure.run(main)
    assert f"step 'crunch' (crunch#1 of job {job_id}) has blocked the event loop for" in named.text
    assert re.search(r"for 1\.\d s, at \w+\.py:\d+ in wait: ", named.text)
    assert "make it a plain `def`" in named.text
    assert "isolation='process'" in named.text


def test_code_of_a_job_that_blocks_the_loop_is_named_too(url: str, named: Named) -> None:
    async def main() -> str:
        app = App(url, worker=QUICK)

        @app.job
        async def job() -> None:
            assert named.said.wait(WITHIN)

        async with app, app.running():
            handle = await app.submit(job())
            await handle.result(WITHIN)
            return handle.id

    job_id = perdure.run(main)
    assert f"the code of job {job_id} (" in named.text
    assert "move the work into a step" in named.text


@durable
async def test_a_step_in_a_thread_does_not_block_the_loop(app: App) -> None:
    looked = threading.Event()

    @app.step
    def work() -> None:
        assert looked.wait(WITHIN)

    @app.job
    async def job(ctx: JobContext) -> None:
        await work()

    async with app.running():
        handle = await app.submit(job())
        (node,) = nodes(app)
        while not any(run.working for run in node.runs.values()):
            await perdure.process.sleep("5ms")
        (run,) = node.runs.values()
        assert await asyncio.to_thread(find_blocker, node) is None
        while node.held_by_running_code(None) != [(run.job.id, run.epoch)]:  # it lives beside it
            await perdure.process.sleep("5ms")
        looked.set()
        await handle.result(WITHIN)


class Scene:
    """A job whose step blocks the loop of its worker, and a bystander in the same worker."""

    def __init__(self) -> None:
        self.blocks = threading.Event()
        self.released = threading.Event()
        self.over = threading.Event()
        self.starts: list[str] = []

    def define(self, app: App) -> tuple[JobDefinition[[], str], JobDefinition[[], str]]:
        @app.step
        async def block() -> str:
            self.starts.append("block")
            while "wait" not in self.starts:
                await perdure.process.sleep("5ms")
            self.blocks.set()
            assert self.released.wait(WITHIN)  # the whole loop stands still
            return "in its own time"

        @app.step
        async def wait() -> str:
            self.starts.append("wait")
            if self.starts.count("wait") == 1:
                await asyncio.Event().wait()
            return "elsewhere"

        @app.job
        async def blocking() -> str:
            return await block()

        @app.job
        async def bystander() -> str:
            return await wait()

        return blocking, bystander


def first_worker(url: str, scene: Scene) -> None:
    """Be the worker whose loop is blocked."""

    async def main() -> None:
        app = App(url, worker=STEADY)
        blocking, bystander = scene.define(app)
        await app.submit(blocking(), key="blocking")
        await app.submit(bystander(), key="bystander")
        async with app, app.running():
            await asyncio.to_thread(scene.over.wait, WITHIN)

    perdure.run(main)


def test_the_job_that_blocks_its_worker_is_not_started_a_second_time(url: str) -> None:
    scene = Scene()

    async def second_worker() -> None:
        app = App(url, worker=PATIENT)
        blocking, bystander = scene.define(app)
        assert await asyncio.to_thread(scene.blocks.wait, WITHIN)
        async with app, app.running():
            other = await app.submit(bystander(), key="bystander")
            assert await other.result(WITHIN) == "elsewhere"  # its worker counts as dead for it
            handle = await app.submit(blocking(), key="blocking")
            assert (await handle.job()).epoch == 1
            scene.released.set()
            assert await handle.result(WITHIN) == "in its own time"
            (entry,) = await handle.journal()
            assert (entry.state, entry.attempt) == (StepState.SUCCEEDED, 1)

    with ThreadPoolExecutor(1) as threads:
        blocked = threads.submit(first_worker, url, scene)
        try:
            perdure.run(second_worker)
        finally:
            scene.released.set()
            scene.over.set()
        blocked.result(WITHIN)
    assert scene.starts.count("block") == 1
    assert scene.starts.count("wait") == 2


def test_a_watch_of_the_loop_ends_with_its_worker(url: str) -> None:
    async def main() -> None:
        app = App(url, worker=WorkerSettings())
        async with app, app.running():
            pass

    perdure.run(main)
    for thread in threading.enumerate():
        if thread.name == "perdure-loop-watch":
            thread.join(WITHIN)
            assert not thread.is_alive()
