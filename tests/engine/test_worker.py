"""Workers as real processes: how they are stopped, and what takes them down."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from perdure.app import App
from perdure.base.retry import pause
from perdure.engine.handle import Handle
from perdure.jobs.approval import Person
from perdure.jobs.failure import Failure
from perdure.jobs.state import JobState
from tests.programmes.faulty import build
from tests.programmes.worker_process import Log, WorkerProcess

pytestmark = [pytest.mark.timeout(300), pytest.mark.once]

SIGTERM_EXIT = (0, 143, -signal.SIGTERM)
ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))


class Scene:
    """An app, what its workers wrote down, and the workers."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.log = Log(folder / "log")
        self.app: App = build(url, self.log.path)

    def worker(self, *more: str) -> WorkerProcess:
        return WorkerProcess(self.url, self.log.path, "faulty", *more)

    async def submit(self, name: str, *args: Any) -> Handle[Any]:
        return await self.app.submit(self.app.find_job(name)(*args), user="lee")

    async def logged(self, *words: str) -> None:
        """Wait for a line with these words."""
        while not any(set(words) <= set(line) for line in self.log.lines()):
            await pause(0.01)

    async def until(self, handle: Handle[Any], *states: JobState) -> None:
        while await handle.status() not in states:
            await pause(0.01)


Case = Callable[[Scene], Coroutine[Any, Any, None]]


def with_workers(case: Case) -> Callable[..., None]:
    def test(url: str, tmp_path: Path) -> None:
        async def main() -> None:
            scene = Scene(url, tmp_path)
            try:
                await case(scene)
            finally:
                await scene.app.close()

        asyncio.run(main())

    test.__name__, test.__doc__ = case.__name__, case.__doc__
    return test


@with_workers
async def test_sigterm_lets_a_step_reach_its_checkpoint_and_another_worker_goes_on(
    scene: Scene,
) -> None:
    handle = await scene.submit("counting", 60)
    first = scene.worker()
    await scene.logged("count", "3")
    assert first.end() in SIGTERM_EXIT
    job = await handle.job()
    assert (job.state, job.owner, job.claims) == (JobState.WAITING, None, 0)
    second = scene.worker()
    try:
        assert await handle.result("60s") == 60
    finally:
        second.end()
    numbers = [int(words[2]) for words in scene.log.lines()]
    assert numbers == list(range(60)), "a step that reached its checkpoint repeats nothing"
    assert await (await scene.app.store()).workers() == []


@with_workers
async def test_a_second_sigterm_cancels_the_steps_and_lets_their_jobs_go(scene: Scene) -> None:
    handle = await scene.submit("stays")
    worker = scene.worker("5m")  # the grace would not end before the test does
    await scene.logged("stay", "begun")
    worker.signal(signal.SIGTERM)
    await pause(0.2)
    assert worker.alive
    worker.signal(signal.SIGTERM)
    assert worker.ended() in SIGTERM_EXIT
    assert ["stay", handle.id, "ended", str(worker.pid)] in scene.log.lines()
    job = await handle.job()
    assert (job.state, job.owner) == (JobState.WAITING, None)


@with_workers
async def test_a_step_that_reaches_no_checkpoint_is_ended_after_the_grace(scene: Scene) -> None:
    handle = await scene.submit("stays")
    worker = scene.worker()
    await scene.logged("stay", "begun")
    assert worker.end() in SIGTERM_EXIT
    await scene.logged("stay", "ended")
    job = await handle.job()
    assert (job.state, job.owner) == (JobState.WAITING, None)


@with_workers
async def test_a_thread_that_never_returns_does_not_keep_a_worker_alive(scene: Scene) -> None:
    handle = await scene.submit("sits")
    worker = scene.worker()
    await scene.logged("sit", "begun")
    assert worker.end() in SIGTERM_EXIT
    assert (await handle.job()).owner is None


@with_workers
async def test_a_job_that_kills_its_workers_is_parked_and_the_others_go_on(scene: Scene) -> None:
    poison = await scene.submit("crashs")
    other = await scene.submit("counting", 3)
    deaths = 0
    worker = scene.worker()
    try:
        while await poison.status() is not JobState.NEEDS_ATTENTION:
            await pause(0.02)
            if not worker.alive:
                deaths += 1
                assert worker.ended() == 7
                worker = scene.worker()
        assert await other.result("60s") == 3
    finally:
        worker.kill()
    assert deaths == 3
    error = (await poison.job()).error
    assert error is not None
    assert "3 workers in a row" in Failure.unpack(error).message
    await poison.cancel()


@with_workers
async def test_a_neighbour_takes_over_at_once_when_a_worker_is_killed(scene: Scene) -> None:
    handle = await scene.submit("counting", 40)
    first = scene.worker()
    await scene.logged("count", "2")
    second = scene.worker()
    first.kill()
    try:
        assert await handle.result("60s") == 40
    finally:
        second.kill()
    numbers = [int(words[2]) for words in scene.log.lines()]
    assert sorted(set(numbers)) == list(range(40))
    assert len(numbers) <= 41, "only what was in flight is done again"


@with_workers
async def test_a_decision_outlives_all_workers_that_could_have_heard_of_it(scene: Scene) -> None:
    app = scene.app
    handles = [await scene.submit("asks") for _ in range(6)]
    workers = [scene.worker(), scene.worker()]
    try:
        for handle in handles:
            await scene.until(handle, JobState.WAITING)
        for number, approval in enumerate(await app.approvals()):
            await app.decide(approval, "approve", by=ANN)
            if number == 2:  # what was decided last is not yet known to any of them
                for worker in workers:
                    worker.kill()
        left = [handle.id for handle in handles if await handle.status() is not JobState.COMPLETED]
        assert len(left) >= 3
        assert await app.approvals() == []
        workers.append(scene.worker())
        for handle in handles:
            assert await handle.result("60s") == ["ann"]
    finally:
        for worker in workers:
            worker.kill()
    assert len(await app.approvals(None)) == 6, "nobody was asked twice"
    assert set(scene.log.runs("ship")) == {(handle.id, "ship#1") for handle in handles}
    events = [event.type for handle in handles for event in await handle.events()]
    assert events.count("approval.approve") == 6
