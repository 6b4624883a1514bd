"""A stopped process that holds the write lock."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from perdure.store.sqlite.store import SqliteStore
from perdure.store.sqlite.watch import is_stopped, lock_holder

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


def test_a_stopped_process_that_holds_the_lock_is_killed_and_work_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        store = SqliteStore(path)
        await store.open()
        holder = _hold(path)
        try:
            assert lock_holder(path) == holder.pid
            os.kill(holder.pid, signal.SIGSTOP)
            await store.beat("me", b"{}")
            assert holder.wait(5) == -signal.SIGKILL
        finally:
            holder.kill()
            holder.communicate()
            await store.close()

    asyncio.run(main())


def test_a_process_that_only_takes_long_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        store = SqliteStore(path)
        await store.open()
        holder = _hold(path)
        try:
            assert not is_stopped(holder.pid)
            beat = asyncio.ensure_future(store.beat("me", b"{}"))
            assert holder.stdin is not None
            holder.stdin.close()
            assert holder.wait(5) == 0
            await beat
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()  # type: ignore[union-attr]
            await store.close()

    asyncio.run(main())
