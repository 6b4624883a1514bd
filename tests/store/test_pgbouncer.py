"""A real PgBouncer in transaction mode between us and the server."""

import asyncio
import signal
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

import perdure
from perdure.base.errors import StoreError, StoreUnreachable
from perdure.jobs.state import JobState
from perdure.store.open import open_store
from tests.support.engine import until
from tests.support.pooled_worker import build
from tests.support.store import new_job, sql


def pooled(pgbouncer_url: str, direct: str = "") -> str:
    """Return the URL with the option that a pooler needs, and where to listen."""
    base = direct.rpartition("&schema=")[0]
    listen = f"&listen_url={quote(base, safe='')}" if direct else ""
    return f"{pgbouncer_url}&pgbouncer=1{listen}"


async def test_without_the_option_the_error_says_what_to_add(pgbouncer_url: str) -> None:
    with pytest.raises(StoreUnreachable, match=r"unsupported startup.*add pgbouncer=1 to the URL"):
        await open_store(pgbouncer_url).open()


@pytest.mark.parametrize("pgbouncer_url", ["options"], indirect=True)
async def test_a_pooler_that_ignores_our_settings_is_recognised(pgbouncer_url: str) -> None:
    with pytest.raises(StoreError, match=r"does not apply.*add pgbouncer=1 to the URL"):
        await open_store(pgbouncer_url).open()


def test_jobs_run_through_a_pooler_and_messages_wake_them(
    pgbouncer_url: str, postgres_url: str, tmp_path: Path
) -> None:
    url = pooled(pgbouncer_url, postgres_url)

    async def main() -> None:
        app, caller = build(url, tmp_path / "none"), build(url, tmp_path / "none")
        try:
            async with app.running():
                adds = [await caller.submit(caller.find_job("add")(5)) for _ in range(30)]
                assert [await each.result("30s") for each in adds] == [10] * 30
                waits = await caller.submit(caller.find_job("wait")())
                await until(caller, waits.id, JobState.WAITING)
                await waits.send("answer", "yes")
                assert await waits.result("30s") == "yes"
        finally:
            await app.close()
            await caller.close()

    perdure.run(main)


async def test_the_server_itself_tells_of_changes_that_came_through_a_pooler(
    pgbouncer_url: str, postgres_url: str
) -> None:
    url = pooled(pgbouncer_url, postgres_url)
    store, other = open_store(url), open_store(url)
    await store.open()
    await other.open()
    told = asyncio.Event()
    unwatch = store.watch(told.set)
    async with asyncio.timeout(30):
        await told.wait()  # it listens now
        told.clear()
        await other.submit([new_job("a")])
        await told.wait()
    unwatch()
    await store.close()
    await other.close()


def test_sessions_that_are_cut_behind_the_pooler_lose_and_double_nothing(
    pgbouncer_url: str, postgres_url: str, tmp_path: Path
) -> None:
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pooled'"

    async def main() -> None:
        app = build(f"{pooled(pgbouncer_url)}&application_name=pooled", tmp_path / "none")
        try:
            async with app.running():
                handles = [await app.submit(app.find_job("add")(20)) for _ in range(20)]
                found: list[int] = []
                for each in handles:
                    found.append(len(await asyncio.to_thread(sql, postgres_url, cut)))
                    assert await each.result("30s") == 190
                    assert len(await each.journal()) == 20
                assert sum(found) > 1
        finally:
            await app.close()

    perdure.run(main)


@pytest.mark.parametrize("listens", [True, False])
def test_a_job_survives_the_death_of_its_worker_behind_a_pooler(
    pgbouncer_url: str, postgres_url: str, tmp_path: Path, *, listens: bool
) -> None:
    url, mark = pooled(pgbouncer_url, postgres_url if listens else ""), tmp_path / "mark"
    mark.touch()

    async def main() -> int:
        app = build(url, mark)
        try:
            handle = await app.submit(app.find_job("add")(3))
            await _killed(url, mark)
            assert [entry.state for entry in await handle.journal()][:1] == ["SUCCEEDED"]
            async with app.running():
                return await handle.result("30s")
        finally:
            await app.close()

    assert perdure.run(main) == 3


async def _killed(url: str, mark: Path) -> None:
    command = [sys.executable, "-m", "tests.support.pooled_worker", url, str(mark)]
    worker = await asyncio.create_subprocess_exec(*command)
    async with asyncio.timeout(60):
        assert await worker.wait() == -signal.SIGKILL
