"""A database file that goes away while it is open: nothing is acknowledged into nowhere."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from perdure.base.errors import StoreError, StoreUnreachable
from perdure.jobs.model import Claim
from perdure.store.sqlite.store import SqliteStore
from perdure.store.store import Store
from tests.store.test_inline import written
from tests.support.store import claims, entry, new_job, started, write_of

Fault = Callable[[Path], None]


def parts(path: Path) -> list[Path]:
    return [Path(f"{path}{end}") for end in ("", "-wal", "-shm")]


def parts_there(path: Path) -> list[Path]:
    return [part for part in parts(path) if part.exists()]


def delete(path: Path) -> None:
    for part in parts(path):
        part.unlink()


def delete_the_file_alone(path: Path) -> None:
    path.unlink()


def delete_the_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def move(path: Path) -> None:
    for part in parts(path):
        part.rename(f"{part}.moved")


def move_back(path: Path) -> None:
    for part in parts(path):
        Path(f"{part}.moved").rename(part)


def replace(path: Path) -> None:
    delete(path)
    sqlite3.connect(path).execute("CREATE TABLE other (x)").connection.close()


def restore_a_copy(path: Path) -> None:
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.replace(path)


FAULTS = [delete, delete_the_file_alone, delete_the_log, move, replace, restore_a_copy]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    opened = SqliteStore(path)
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_submission_to_a_file_that_went_away_is_refused(
    store: Store, path: Path, fault: Fault
) -> None:
    await store.submit([new_job("a")])
    fault(path)
    before = sorted(path.parent.iterdir())
    for id in ("b", "c"):
        with pytest.raises(StoreUnreachable, match=r"jobs\.db.* while it was open"):
            await store.submit([new_job(id)])
    assert sorted(path.parent.iterdir()) == before, "no file is made in its place"


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault is not delete_the_log])
async def test_a_result_that_the_loop_writes_by_itself_is_refused_likewise(
    store: Store, path: Path, fault: Fault
) -> None:
    claim = await started(store)
    await written(store, write_of(claim, entry(0)))
    fault(path)
    done, error = await written(store, write_of(claim, entry(1)))
    assert not done
    assert isinstance(error, StoreUnreachable)


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_lease_of_a_file_that_went_away_is_renewed(
    store: Store, path: Path, fault: Fault
) -> None:
    claim = await started(store)
    held = [("a", claim.epoch)]
    assert await asyncio.to_thread(store.renew_blocking, "w1", held, 60.0) == {"a"}
    fault(path)
    with pytest.raises(StoreUnreachable):
        await asyncio.to_thread(store.renew_blocking, "w1", held, 60.0)


@pytest.mark.parametrize("fault", [delete, move, replace, restore_a_copy])
async def test_nobody_reads_from_a_file_that_went_away(
    store: Store, path: Path, fault: Fault
) -> None:
    await store.submit([new_job("a")])
    fault(path)
    with pytest.raises(StoreUnreachable):
        await store.job("a")


async def test_a_file_that_is_put_back_is_used_again(store: Store, path: Path) -> None:
    await store.submit([new_job("a")])
    move(path)
    with pytest.raises(StoreUnreachable):
        await store.submit([new_job("b")])
    with pytest.raises(StoreUnreachable):
        await store.submit([new_job("c")])
    move_back(path)

    await store.submit([new_job("d")])

    found = {claim.job.id for claim in await claims(store)}
    assert found >= {"a", "d"}
    assert "c" not in found, "once it is known, nothing more is written into the lost file"


async def test_a_store_that_has_to_connect_anew_makes_no_new_file(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    claim: Claim = await started(store)
    delete(path)
    # It has not connected yet: it must find the file that the store has opened, or none.
    with pytest.raises(StoreUnreachable):
        await asyncio.to_thread(store.renew_blocking, "w1", [("a", claim.epoch)], 60.0)
    assert list(path.parent.iterdir()) == []
    await store.close()


async def test_where_only_the_log_is_left_no_new_file_is_made(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.submit([new_job("a")])
    delete_the_file_alone(path)
    again = SqliteStore(path)
    with pytest.raises(StoreError, match=r"jobs\.db-wal .*put it back"):
        await again.open()
    assert path not in parts_there(path)
    await store.close()


async def test_a_program_that_changes_its_folder_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("jobs.db")
    await store.open()
    claim = await started(store)
    os.chdir("elsewhere")
    held = [("a", claim.epoch)]
    assert await asyncio.to_thread(store.renew_blocking, "w1", held, 60.0) == {"a"}
    await store.submit([new_job("b")])
    assert list((tmp_path / "elsewhere").iterdir()) == []
    await store.close()
