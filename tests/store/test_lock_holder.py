"""A stopped process that holds the write lock: named, and killed only if the URL says so."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest

from perdure.base.encryption import Encryption, generate_key
from perdure.base.errors import StoreUnreachable
from perdure.store.open import open_store
from perdure.store.sqlite import connection, writer
from perdure.store.sqlite.watch import is_stopped, lock_holder
from perdure.store.store import Store
from tests.support.store import entry, started, write_of

_HOLD = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA journal_mode = " + sys.argv[2])
database.execute("BEGIN IMMEDIATE" if sys.argv[2] == "wal" else "BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


def _hold(path: Path, mode: str = "wal") -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", _HOLD, str(path), mode]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def test_a_stopped_process_that_holds_the_lock_is_killed_if_the_url_says_so(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        store = open_store(f"sqlite:///{path}?kill_stopped_writer=1")
        await store.open()
        holder = _hold(path)
        try:
            assert lock_holder(path) == holder.pid
            os.kill(holder.pid, signal.SIGSTOP)
            await store.heartbeat("me", b"{}")
            assert holder.wait(5) == -signal.SIGKILL
        finally:
            holder.kill()
            holder.communicate()
            await store.close()

    asyncio.run(main())


def test_a_stopped_process_that_holds_the_lock_is_only_named_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "BUSY_SECONDS", 0.01)  # so that SQLite itself does not wait long
    path = tmp_path / "jobs.db"

    async def main() -> None:
        store = open_store(f"sqlite:///{path}")
        await store.open()
        # An inline write leaves the connection without patience, so the next one sets ours.
        claim = await started(store)
        assert store.write_soon(write_of(claim, entry(0)), lambda _: None, alone=True)
        holder = _hold(path)
        try:
            os.kill(holder.pid, signal.SIGSTOP)
            with pytest.raises(StoreUnreachable, match=f"process {holder.pid}, which is stopped"):
                await store.heartbeat("me", b"{}")
            assert f"process {holder.pid}" in caplog.text
            assert "kill_stopped_writer=1" in caplog.text
            assert holder.poll() is None
            os.kill(holder.pid, signal.SIGCONT)
            holder.communicate()
            assert holder.returncode == 0
            await store.heartbeat("me", b"{}")
        finally:
            holder.kill()
            holder.wait()
            await store.close()

    asyncio.run(main())


def test_a_process_that_only_takes_long_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        store = open_store(f"sqlite:///{path}?kill_stopped_writer=1")
        await store.open()
        holder = _hold(path)
        try:
            assert not is_stopped(holder.pid)
            heartbeat = asyncio.ensure_future(store.heartbeat("me", b"{}"))
            assert holder.stdin is not None
            holder.stdin.close()
            assert holder.wait(5) == 0
            await heartbeat
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()  # type: ignore[union-attr]
            await store.close()

    asyncio.run(main())


async def _made(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    await store.open()
    await store.close()


async def _booted(path: Path) -> None:
    """The machine was restarted since the file was used."""
    await _made(path)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE fact SET value = 'before' WHERE name = 'boot'")


async def _empty(path: Path) -> None:
    """There is nothing yet: whoever opens it makes the tables."""


# Each way in which opening a store writes, with the mode of the file.
OPENINGS: list[tuple[str, Callable[[Path], Awaitable[None]], str]] = [
    ("tables", _empty, "wal"),
    ("mode", _empty, "delete"),
    ("boot", _booted, "wal"),
    ("key", _made, "wal"),
]


def _opened(path: Path, what: str, query: str = "") -> Store:
    keys = Encryption([generate_key()]) if what == "key" else None
    return open_store(f"sqlite:///{path}{query}", encryption=keys)


@pytest.mark.parametrize(("what", "prepare", "mode"), OPENINGS, ids=[each[0] for each in OPENINGS])
def test_opening_names_a_stopped_process_that_holds_the_lock(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    prepare: Callable[[Path], Awaitable[None]],
    mode: str,
) -> None:
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.01)
    path = tmp_path / "jobs.db"

    async def main() -> None:
        await prepare(path)
        with _stopped(_hold(path, mode)) as holder:
            with pytest.raises(StoreUnreachable, match=f"process {holder.pid}, which is stopped"):
                await _opened(path, what).open()
            assert holder.poll() is None

    asyncio.run(main())


@pytest.mark.parametrize(("what", "prepare", "mode"), OPENINGS, ids=[each[0] for each in OPENINGS])
def test_opening_kills_a_stopped_process_that_holds_the_lock_if_the_url_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    prepare: Callable[[Path], Awaitable[None]],
    mode: str,
) -> None:
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.01)
    path = tmp_path / "jobs.db"

    async def main() -> None:
        await prepare(path)
        with _stopped(_hold(path, mode)) as holder:
            store = _opened(path, what, "?kill_stopped_writer=1")
            await store.open()
            assert holder.wait(5) == -signal.SIGKILL
            await store.close()

    asyncio.run(main())


def test_what_only_reads_does_not_wait_for_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        await _made(path)
        with _stopped(_hold(path)) as holder:
            store = open_store(f"sqlite:///{path}")
            await store.open()
            assert await store.job("a") is None
            await store.close()
            assert holder.poll() is None

    asyncio.run(main())


@pytest.mark.parametrize("kill", [False, True])
def test_renewing_leases_names_or_kills_a_stopped_process_that_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, kill: bool
) -> None:
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.01)
    path = tmp_path / "jobs.db"

    async def main() -> None:
        store = open_store(f"sqlite:///{path}?kill_stopped_writer={int(kill)}")
        await store.open()
        claim = await started(store)
        held = [(claim.job.id, claim.epoch)]
        with _stopped(_hold(path)) as holder:
            if kill:
                assert store.renew_blocking("w1", held, 60.0) == {claim.job.id}
                assert holder.wait(5) == -signal.SIGKILL
            else:
                with pytest.raises(StoreUnreachable, match=f"process {holder.pid}, which is stop"):
                    store.renew_blocking("w1", held, 60.0)
        await store.close()

    asyncio.run(main())


@contextlib.contextmanager
def _stopped(holder: "subprocess.Popen[bytes]") -> Generator["subprocess.Popen[bytes]"]:
    """Stop a process for a block, and end it."""
    try:
        os.kill(holder.pid, signal.SIGSTOP)
        while not is_stopped(holder.pid):
            pass
        yield holder
    finally:
        holder.kill()
        holder.communicate()
