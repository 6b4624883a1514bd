"""What can be wrong with a file: each with a clear error, and nothing is lost."""

import asyncio
import gc
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from perdure.base.errors import (
    LeaseLost,
    SchemaError,
    StoreError,
    StoreReadOnly,
    StoreUnreachable,
)
from perdure.jobs.model import QueueLimit
from perdure.store.open import open_store
from perdure.store.sqlite.connection import kind_of
from perdure.store.sqlite.store import SqliteStore
from perdure.store.sqlite.writer import SqliteWriter
from perdure.store.store import Store
from tests.support.set_clock import SetClock
from tests.support.store import LEASE, claim_one, claims, entry, new_job, sql, started, write_of

ROOT = Path(__file__).parent.parent.parent
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def file_store(path: Path) -> AsyncIterator[Store]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


async def opened(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )


async def test_only_the_owner_may_read_a_new_file(file_store: Store, path: Path) -> None:
    await file_store.submit([new_job("a")])
    for name in ("jobs.db", "jobs.db-wal", "jobs.db-shm"):
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600, name


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "perdure.store"]


@pytest.mark.parametrize("name", ["jobs.db", "jobs.db-wal"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o606])
async def test_a_store_that_others_may_read_is_told(
    path: Path, name: str, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = SqliteStore(path)  # so that the log stays
    await keeper.open()
    await keeper.submit([new_job("a")])
    assert warnings_of(caplog) == []
    other = path.with_name(name)
    os.chmod(other, mode)  # noqa: PTH101  the test is async, the folder is local
    await opened(path)
    (told,) = warnings_of(caplog)
    assert told.endswith(f"chmod 600 {other}")
    os.chmod(other, 0o600)  # noqa: PTH101  likewise
    await opened(path)
    assert warnings_of(caplog) == [told]
    await keeper.close()


async def test_every_commit_waits_for_the_disk(path: Path) -> None:
    await opened(path)
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()
    writer = SqliteStore(path)
    await writer.open()
    assert (await writer.durability())["synchronous"] == "2"  # of the very connection
    await writer.close()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable, match=r"no folder .*nowhere"):
        await opened(tmp_path / "nowhere" / "jobs.db")


@pytest.fixture
def garbage(path: Path) -> Path:
    path.write_text("this is no database, however long it is: " * 50)
    return path


async def test_a_file_of_another_kind_is_refused(garbage: Path) -> None:
    with pytest.raises(SchemaError, match="damaged, or not a SQLite database"):
        await opened(garbage)


async def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    sql(f"sqlite:///{path}", "CREATE TABLE other (x)")
    with pytest.raises(SchemaError, match="another program"):
        await opened(path)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that others may enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def plain_user() -> Iterator[None]:
    """Be nobody for a while: permissions do not count for root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    yield
    if is_root:
        os.seteuid(0)


async def test_a_file_that_cannot_be_written_is_refused(
    shared_folder: Path, request: pytest.FixtureRequest
) -> None:
    path = shared_folder / "jobs.db"
    await opened(path)
    for each, mode in ((path, 0o444), (shared_folder, 0o555)):
        os.chmod(each, mode)  # noqa: PTH101  the test is async, the folder is local
    request.getfixturevalue("plain_user")
    with pytest.raises(StoreReadOnly, match="cannot be written"):
        await opened(path)


FULL = """
import asyncio, sys
from perdure.base.errors import StoreFull
from perdure.store.open import open_store
from tests.support.store import claim_one, entry, new_job, write_of

async def main(url):
    store = open_store(url)
    await store.open()
    await store.submit([new_job("a")])
    claim = await claim_one(store)
    written = 0
    try:
        while True:
            await store.write(write_of(claim, entry(written, output=b'"' + b"x" * 50_000 + b'"')))
            written += 1
    except StoreFull as error:
        assert "no disk space" in str(error), error
    assert written > 0
    assert len(await store.journal("a")) == written      # reads go on, nothing is lost
    assert (await store.job("a")).owner == "w1"
    await store.close()
    store = open_store(url)
    await store.open()
    assert len(await store.journal("a")) == written
    await store.close()
    print("full after", written)

asyncio.run(main(sys.argv[1]))
"""


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = f"mount -t tmpfs -o size=3m tmpfs {folder}"
    python = f'exec {sys.executable} -c "$0" sqlite:///{folder}/jobs.db'
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        f"{mount} && {python}",
    ]
    done = run(*command, FULL)
    if "Operation not permitted" in done.stderr or "unshare" in done.stderr:
        pytest.skip("no small file system can be made here")
    assert done.stdout.startswith("full after"), done.stderr


FORK = """
import asyncio, os, sys
from perdure.base.errors import StoreError
from perdure.store.open import open_store

loop = asyncio.new_event_loop()
store = open_store(sys.argv[1])
loop.run_until_complete(store.open())
child = os.fork()
if child == 0:
    try:
        asyncio.run(store.counts())
    except StoreError as error:
        os._exit(7 if "fork" in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert loop.run_until_complete(store.counts()) == {}
loop.run_until_complete(store.close())
loop.close()
"""


def test_a_store_does_not_cross_a_fork(path: Path) -> None:
    done = run(sys.executable, "-W", "ignore", "-c", FORK, f"sqlite:///{path}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_set_wall_clock_does_no_harm_to_leases(path: Path, jump: float) -> None:
    clock = SetClock()
    store = SqliteStore(path, clock=clock)
    await store.open()
    claim = await started(store)
    clock.ahead = jump
    assert await store.reap(10) == []
    assert store.renew_blocking("w1", [("a", claim.epoch)], LEASE) == {"a"}
    await store.write(write_of(claim, entry()))
    await store.close()


@pytest.mark.parametrize("jump", [36000.0, -36000.0])
async def test_a_set_wall_clock_does_no_harm_to_rates(path: Path, jump: float) -> None:
    clock = SetClock()
    store = SqliteStore(path, clock=clock)
    await store.open()
    await store.submit([new_job(f"j{number}") for number in range(9)])
    queues = {"default": QueueLimit(rate=4, per=3600.0)}
    assert len(await claims(store, queues=queues)) == 4
    clock.ahead = jump
    clock.passed = 3590.0
    assert await claims(store, queues=queues) == []
    clock.passed = 3601.0
    assert len(await claims(store, queues=queues)) == 4
    await store.close()


async def test_after_a_start_of_the_machine_all_owners_are_dead(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    claim = await started(store)
    await store.heartbeat("w1", b"{}")
    await store.close()
    sql(f"sqlite:///{path}", "UPDATE fact SET value = 'the day before' WHERE name = 'boot'")
    store = SqliteStore(path)
    await store.open()
    assert await store.workers() == []
    with pytest.raises(LeaseLost):
        await store.write(write_of(claim, entry()))
    again = await claim_one(store, "w2")
    assert (again.epoch, again.job.worked) == (2, LEASE)  # w1 had it for so long at most
    await store.close()


async def test_leases_outlive_a_mere_restart_of_the_program(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    claim = await started(store)
    await store.close()
    store = SqliteStore(path)
    await store.open()
    assert await claims(store) == []
    await store.write(write_of(claim, entry()))
    await store.close()


async def test_another_process_may_hold_the_file_for_a_while(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    waiting = store.submit([new_job("a")])
    task = asyncio.ensure_future(waiting)
    assert await store.job("a") is None  # reads go on
    holder.execute("COMMIT")
    holder.close()
    assert (await task)[0].created
    await store.close()


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export /mnt/share nfs4 rw 0 0
tmpfs /mnt/share/local\\040disk tmpfs rw 0 0
//host/c /mnt/c cifs rw 0 0
"""


@pytest.mark.parametrize(
    ("path_", "kind"),
    [
        ("/var/jobs.db", "ext4"),
        ("/mnt/share/jobs.db", "nfs4"),
        ("/mnt/share/local disk/jobs.db", "tmpfs"),
        ("/mnt/shared/jobs.db", "ext4"),
        ("/mnt/c/jobs.db", "cifs"),
    ],
)
def test_the_innermost_mount_says_what_kind_it_is(path_: str, kind: str) -> None:
    assert kind_of(Path(path_), MOUNTS) == kind


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("sqlite://jobs.db", "does not name a file"),
        ("sqlite:///", "does not name a file"),
        ("sqlite:jobs.db", "does not name a file"),
        ("sqlite:///jobs.db?speed=fast", "speed"),
        ("mysql://localhost/jobs", "unsupported store 'mysql'"),
        ("jobs.db", "not a store URL"),
        ("postgresql://localhost/jobs?schema=Robert'); --", "not a valid schema name"),
    ],
)
def test_a_url_that_means_nothing_is_refused(url: str, what: str) -> None:
    with pytest.raises(StoreError, match=what):
        open_store(url)


async def test_what_others_commit_costs_nothing_where_nobody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    look = SqliteWriter.idle

    def noted(writer: SqliteWriter) -> float | None:
        looks.append(id(writer))
        return look(writer)

    monkeypatch.setattr(SqliteWriter, "idle", noted)
    busy, idle = (open_store(f"sqlite:///{tmp_path / 'jobs.db'}") for _ in range(2))
    await busy.open()
    await idle.open()

    for number in range(20):
        await busy.submit([new_job(f"job{number}")])
    await idle.submit([new_job("its own")])
    assert looks == []

    told = asyncio.Event()
    forget = idle.watch(told.set)
    await busy.submit([new_job("the last")])
    async with asyncio.timeout(30):
        await told.wait()
    assert looks
    forget()
    await busy.close()
    await idle.close()


def test_a_store_that_was_never_opened_leaves_no_file_descriptor(tmp_path: Path) -> None:
    def opened() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    for _ in range(5):
        open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    assert opened() == before
