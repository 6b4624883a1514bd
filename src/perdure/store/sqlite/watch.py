"""Watch other processes: their writes to the file, and which one holds the write lock.

**inotify** (Linux) says that somebody touched the write-ahead log. It is a hint: the writer then
looks at `PRAGMA data_version`. Elsewhere it polls.

**A stopped process that holds the write lock** (SIGSTOP, a debugger, a frozen container) holds it
for as long as it is stopped, and no timeout of SQLite ends that: all others are blocked. Killing it
does no harm to the data: its transaction is rolled back, its leases run out or are taken, and
nothing that was acknowledged is lost. But it may be a process that somebody is debugging. So
by default we only say which process it is, in the log and in the error; it is killed only where
the URL of the store says `kill_stopped_writer=1`.
"""

import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

_log = logging.getLogger("perdure.store")

_IN_MODIFY: Final = 0x2
_LOOKUP_TIMEOUT: Final = 10.0
# Run in another process: closing a file of the database drops all locks that this one has on it.
# SQLite keeps the writer's lock in the index of the write-ahead log, at 120; while a file is not in
# WAL yet, those of its writer are in the file itself, from 0x40000000 on.
_FIND_LOCK: Final = """
import fcntl, os, struct, sys
for path, start, length in ((sys.argv[1] + "-shm", 120, 1), (sys.argv[1], 0x40000000, 2)):
    if os.path.exists(path):
        with open(path, "rb+") as file:
            asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, start, length, 0)
            kind, _, _, _, pid = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, asked))
        if kind != fcntl.F_UNLCK:
            sys.exit(print(pid))
print(0)
"""


def inotify_watch(path: Path) -> int | None:
    """Return a descriptor that becomes readable when the file is modified; None without inotify."""
    library = ctypes.CDLL(None, use_errno=True)
    try:
        begin = cast("Callable[[int], int]", library.inotify_init1)
        add = cast("Callable[[int, bytes, int], int]", library.inotify_add_watch)
    except AttributeError:
        return None
    descriptor = begin(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if add(descriptor, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor


def inotify_drain(descriptor: int) -> bool:
    """Read all pending notifications; return whether there were any."""
    try:
        return bool(os.read(descriptor, 65536))
    except BlockingIOError:
        return False


def lock_holder(database: Path) -> int | None:
    """Return the process that holds the write lock; None if there is none, or it is not known."""
    if sys.platform != "linux":
        return None
    command = [sys.executable, "-I", "-S", "-c", _FIND_LOCK, str(database)]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=_LOOKUP_TIMEOUT, check=True)  # noqa: S603
        return int(answer.stdout) or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def stopped_lock_holder(database: Path) -> int | None:
    """Return the process that holds the write lock if it is another one, and stopped."""
    pid = lock_holder(database)
    return pid if pid is not None and pid != os.getpid() and is_stopped(pid) else None


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or by a debugger."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")


def kill_lock_holder(pid: int, database: Path) -> bool:
    """Kill a stopped process that holds the write lock; return whether that was possible."""
    _log.error("process %d is stopped and holds the write lock of %s: killing it", pid, database)
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        _log.error("process %d cannot be killed: %s", pid, error)
        return False
    return True
