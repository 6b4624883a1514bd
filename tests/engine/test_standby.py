"""PostgreSQL waits for a synchronous standby that is missing: commits wait, none is cancelled."""

import asyncio
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import psycopg
import pytest

from perdure.base.retry import pause
from perdure.store.open import open_store
from tests.engine.test_outage import OwnServer
from tests.engine.test_worker import SIGTERM_EXIT, Scene
from tests.support.store import new_job

pytestmark = [pytest.mark.timeout(300), pytest.mark.once]

STEPS = 30


class Fleet(OwnServer):
    """A PostgreSQL whose standby may be missing."""

    def lose_standby(self) -> None:
        self._alter(b"ALTER SYSTEM SET synchronous_standby_names = 'nobody'")

    def find_standby(self) -> None:
        self._alter(b"ALTER SYSTEM RESET synchronous_standby_names")

    def _alter(self, statement: bytes) -> None:
        with psycopg.connect(self.url, autocommit=True) as pg:
            pg.execute(b"SET synchronous_commit = local")
            pg.execute(statement)
            pg.execute(b"SELECT pg_reload_conf()")

    def waits(self) -> bool:
        """Whether a commit waits for the standby."""
        with psycopg.connect(self.url, autocommit=True) as pg:
            query = b"SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            return bool(pg.execute(query).fetchall())


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="perdure-own-") as folder:
        Path(folder).chmod(0o755)
        own = Fleet(Path(folder))
        yield own
        own.find_standby()
        own.close()


async def _until_waiting(fleet: Fleet) -> None:
    while not await asyncio.to_thread(fleet.waits):
        await pause(0.01)


@pytest.mark.parametrize("signals", [1, 3])
def test_a_worker_whose_commits_wait_says_why_and_ends_when_it_is_told_to(
    fleet: Fleet, tmp_path: Path, signals: int
) -> None:
    async def main() -> None:
        scene = Scene(fleet.url, tmp_path)
        handle = await scene.submit("counting", STEPS)
        worker = scene.worker()
        await scene.logged("count", "3")
        fleet.lose_standby()
        errors = tmp_path / "log.err"
        while "synchronous standby" not in errors.read_text():
            await pause(0.05)
        for _ in range(signals):
            assert worker.alive
            worker.signal(SIGTERM)
            await pause(0.5)  # signals of one kind that come together are one
        assert await asyncio.to_thread(worker.ended, 90.0) in SIGTERM_EXIT
        fleet.find_standby()
        other = scene.worker()
        try:
            assert await handle.result("60s") == STEPS
        finally:
            other.end()
            await scene.app.close()

    asyncio.run(main())


def test_a_store_is_closed_although_its_commit_waits_and_the_commit_is_not_cancelled(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = open_store(fleet.url)
        await store.open()
        fleet.lose_standby()
        waiting = asyncio.ensure_future(store.submit([new_job("a")]))
        await _until_waiting(fleet)

        await store.close()

        assert not waiting.done(), "nobody was told that it is durable"
        waiting.cancel()
        assert fleet.waits(), "it still waits: a cancelled commit would count as done"
        fleet.find_standby()
        again = open_store(fleet.url)
        await again.open()
        while await again.job("a") is None:
            await pause(0.01)
        await again.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "still waits" in caplog.text


def test_a_commit_that_waits_longer_than_any_time_out_is_acknowledged_when_the_standby_is_back(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = open_store(fleet.url + "&options=-c%20statement_timeout%3D500")
        await store.open()
        fleet.lose_standby()
        waiting = asyncio.ensure_future(store.submit([new_job("a")]))
        await _until_waiting(fleet)
        while "synchronous standby" not in caplog.text:
            assert not waiting.done()
            await pause(0.05)
        fleet.find_standby()
        (submitted,) = await waiting
        assert submitted.created
        await store.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
