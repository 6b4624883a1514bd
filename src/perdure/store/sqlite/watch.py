"""Learns from the kernel that another process has touched a file (inotify, Linux)."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

_MODIFIED = 0x2


def touches(path: Path) -> int | None:
    """Give a descriptor that can be read once the file was modified, if the system can."""
    library = ctypes.CDLL(None, use_errno=True)
    try:
        begin = cast("Callable[[int], int]", library.inotify_init1)
        add = cast("Callable[[int, bytes, int], int]", library.inotify_add_watch)
    except AttributeError:
        return None
    descriptor = begin(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if add(descriptor, os.fsencode(path), _MODIFIED) < 0:
        os.close(descriptor)
        return None
    return descriptor


def drain(descriptor: int) -> bool:
    """Forget what was told up to now; tells whether there was something."""
    try:
        return bool(os.read(descriptor, 65536))
    except BlockingIOError:
        return False


# Who holds the write lock of the database, when nobody else gets it.
#
# A process that is stopped (SIGSTOP, a debugger, a frozen container) inside a transaction holds the
# lock for ever, and no time-out of SQLite ends that. Such a process is killed: its transaction is
# rolled back, its leases run out or are taken, and nothing that was acknowledged is lost.

_log = logging.getLogger("perdure.store")

# In another process: to close a file of the database drops all locks that this one has on it.
# 120 is where SQLite keeps the lock of the writer in the WAL's index.
_ASK = """
import fcntl, struct, sys
with open(sys.argv[1], "rb+") as file:
    asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 120, 1, 0)
    kind, _, _, _, pid = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    print(pid if kind != fcntl.F_UNLCK else 0)
"""
_PATIENCE = 10.0


def lock_holder(database: Path) -> int | None:
    """Find the process that holds the write lock; None if there is none, or it cannot be told."""
    index = Path(f"{database}-shm")
    if sys.platform != "linux" or not index.exists():
        return None
    command = [sys.executable, "-I", "-S", "-c", _ASK, str(index)]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=True)  # noqa: S603
        return int(answer.stdout) or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def is_stopped(pid: int) -> bool:
    """Tell whether a process stands still, and not only for a while."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")


def free_from_stopped(database: Path) -> bool:
    """Kill the holder of the write lock if it is stopped; tell whether it was."""
    pid = lock_holder(database)
    if pid is None or pid == os.getpid() or not is_stopped(pid):
        return False
    _log.error("process %d is stopped and holds the write lock of %s: killing it", pid, database)
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        _log.error("process %d cannot be killed: %s", pid, error)
        return False
    return True
