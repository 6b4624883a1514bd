"""A stopped process that holds the write lock: named, and killed only if the URL says so."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.base.errors import StoreUnreachable
from perdure.store.open import open_store
from perdure.store.sqlite import writer
from perdure.store.sqlite.watch import is_stopped, lock_holder
from tests.support.store import entry, started, write_of

_HOLD = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def _hold(path: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", _HOLD, str(path)]
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
