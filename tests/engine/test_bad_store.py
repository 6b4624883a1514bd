"""Stores that cannot be used: a clear error, and nothing half done."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from perdure.app import App
from perdure.base.errors import SchemaError, StoreError, StoreReadOnly, StoreUnreachable
from perdure.store.migrations import Migration, migrations
from perdure.store.sqlite.schema import migrate as migrate_sqlite
from tests.support.engine import QUICK

ROOT = Path(__file__).parent.parent.parent


def start(url: str) -> None:
    """Start a worker, which must fail."""

    async def main() -> None:
        app = App(url, worker=QUICK)
        try:
            async with app.running():
                pass
        finally:
            await app.close()

    asyncio.run(main())


def test_a_server_that_does_not_answer_is_named_at_the_start() -> None:
    with pytest.raises(StoreUnreachable, match=r"127\.0\.0\.1"):
        start("postgresql://kim:secret@127.0.0.1:1/jobs?connect_timeout=1")


def test_a_missing_folder_is_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        start(f"sqlite:///{tmp_path}/nowhere/jobs.db")


def test_a_schema_newer_than_the_code_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    start(f"sqlite:///{path}")
    database = sqlite3.connect(path, isolation_level=None)
    later = Migration(9999, "later", "CREATE TABLE later (x integer);\n")
    migrate_sqlite(database, [*migrations("sqlite"), later])
    database.close()
    with pytest.raises(SchemaError, match="use a newer perdure"):
        start(f"sqlite:///{path}")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for the superuser")
def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    start(f"sqlite:///{path}")
    path.chmod(0o400)
    with pytest.raises(StoreReadOnly, match=r"jobs\.db"):
        start(f"sqlite:///{path}")


FILLS = """
    import resource, signal, sys
    from perdure.app import App
    from perdure.base.errors import StoreError
    from perdure.engine.run.context import JobContext
    from perdure.engine.steps.step_context import StepContext

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    app = App(sys.argv[1])

    @app.job
    async def job(ctx: JobContext, text: str) -> int:
        return len(text)

    async def main():
        done = 0
        async with app.running():
            assert await (await app.submit(job("x"))).result() == 1
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, before[1]))
            try:
                while True:
                    await app.submit(job("x" * 100_000))
                    done += 1
            except StoreError as error:
                print("full:", error)
            assert await app.find_jobs()
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert await (await app.submit(job("xyz"))).result("60s") == 3
            for each in await app.find_jobs():
                await (await app.handle(each.id)).result("60s")
            counts = await (await app.store()).counts()
            print("ended:", counts.get("COMPLETED") == done + 2, counts)

    app.run_sync(main)
"""


@pytest.mark.timeout(180)
def test_a_worker_whose_disk_is_full_loses_nothing_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FILLS), f"sqlite:///{tmp_path}/jobs.db"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "full:" in done.stdout
    assert "ended: True" in done.stdout
