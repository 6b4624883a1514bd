"""What an idle worker costs: it reads now and then, and writes nothing."""

import os
from collections import Counter
from collections.abc import Iterator

import pytest

import perdure
from perdure.app import App
from perdure.base import telemetry
from perdure.base.telemetry import Event, Values
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.reaper import Reaper
from perdure.engine.worker.worker_lock import WorkerLock
from perdure.store.db_thread import BATCH
from tests.support.engine import QUICK, durable, nodes
from tests.support.store import sql

# It polls often, so that the test is short; the heartbeat is the real one.
POLLS = WorkerSettings(poll="20ms", reap_every="20ms", expiry_every="20ms")


class Batches:
    """Counts the transactions of each database thread."""

    def __init__(self) -> None:
        self.by_thread = Counter[str]()

    def __call__(self, _event: Event, _numbers: Values, facts: Values, _config: object) -> None:
        self.by_thread[facts["thread"]] += 1


@pytest.fixture
def batches() -> Iterator[Batches]:
    found = Batches()
    telemetry.attach_many("idle", [BATCH], found)
    yield found
    telemetry.detach("idle")


async def _reads(batches: Batches, number: int) -> None:
    """Wait until so many more questions were asked."""
    until = batches.by_thread["perdure-reader"] + number
    while batches.by_thread["perdure-reader"] < until:
        await perdure.process.sleep("5ms")


def test_an_idle_worker_only_reads(url: str, batches: Batches) -> None:
    @durable
    async def case(app: App) -> None:
        async with app.running(POLLS):
            await _reads(batches, 20)  # it has looked for everything once
            batches.by_thread.clear()
            await _reads(batches, 40)
            assert set(batches.by_thread) == {"perdure-reader"}

    case(url)


@durable
async def test_a_poll_finds_what_no_hint_told(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> str:
        return "done"

    handle = await app.submit(job())
    later = await (await app.store()).now() + 3600
    sql(app.url, f"UPDATE lease SET ready = 0, due_at = {later}")
    async with app.running(POLLS):
        await perdure.process.sleep("50ms")
        sql(app.url, "UPDATE lease SET due_at = 1")
        assert await handle.result("10s") == "done"


@durable
async def test_the_larger_the_fleet_the_less_often_each_worker_looks_for_expired_leases(
    app: App,
) -> None:
    node = WorkerNode(await app.store(), app, QUICK, app.queues, app.limits)
    looks = {size: _looks(node, size) for size in (1, 10)}
    assert 5 <= looks[1] / looks[10] <= 20


def _looks(node: WorkerNode, size: int) -> int:
    """Count how often a worker of a fleet of this size looks within so many intervals."""
    reaper, node.fleet_size, now = Reaper(node), size, 1000.0

    class Loop:
        def time(self) -> float:
            return now

    node.loop = Loop()  # type: ignore[assignment]
    found = 0
    for _ in range(2000):
        now += QUICK.expiry_every / 5
        found += reaper._is_my_turn()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return found


def _die(lock: WorkerLock) -> None:
    """Let go of a lock as the end of its process does."""
    os.close(lock._file)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def test_a_dead_neighbour_is_known_by_its_lock() -> None:
    key = b"the key of one store"
    lives, dead, other = (WorkerLock(k, o) for k, o in ((key, "a"), (key, "b"), (b"2", "c")))
    try:
        assert lives.dead_neighbours() == []
        _die(dead)
        assert lives.dead_neighbours() == ["b"]
        assert other.dead_neighbours() == []  # it is of another store
        lives.forget("b")
        assert lives.dead_neighbours() == []
    finally:
        for lock in (lives, other):
            lock.release(jobs_left=False)


def test_each_worker_watches_only_the_next_of_its_neighbours() -> None:
    names = [f"{number:02}" for number in range(30)]
    locks = {name: WorkerLock(b"a large machine", name) for name in names}
    try:
        _die(locks["09"])
        _die(locks["25"])
        watching = [name for name, lock in locks.items() if "25" in lock.dead_neighbours()]
        assert watching == [f"{number:02}" for number in range(17, 25)]
        assert all(len(lock.dead_neighbours()) <= 1 for lock in locks.values())
    finally:
        for name, lock in locks.items():
            if name in ("09", "25"):
                lock.forget(name)
            else:
                lock.release(jobs_left=False)


@durable
async def test_a_worker_leaves_neither_a_lock_nor_a_row(app: App) -> None:
    async with app.running():
        (node,) = nodes(app)
        assert node.lock is not None
        assert node.lock.path.exists()
    assert not node.lock.path.exists()
    assert await (await app.store()).workers() == []
