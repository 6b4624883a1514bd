"""How the workers of one machine notice at once that one of them has died.

A worker holds a lock on a file for as long as it is alive. The operating system frees the lock when
the process dies, however it dies, and not before: a process that is stopped still holds it. So its
neighbours on the same machine need not wait for its leases to run out, and they are never wrong.
The lock says nothing about workers elsewhere: their leases do.
"""

import fcntl
import os
from pathlib import Path

from perdure.base.machine import made_private, temporary_folder


class WorkerLock:
    """The proof that this worker is alive."""

    def __init__(self, owner: str) -> None:
        self._path = _path_of(owner)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self, *, jobs_left: bool) -> None:
        """Release the lock, unless jobs are left: they are freed when this process is dead."""
        if not jobs_left:
            self._path.unlink(missing_ok=True)
            os.close(self._file)


def is_dead(owner: str) -> bool:
    """Whether a worker of this machine and boot has died; False if that is unknown."""
    try:
        file = os.open(_path_of(owner), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(file)


def remove_lock(owner: str) -> None:
    """Delete the file that a dead worker left."""
    _path_of(owner).unlink(missing_ok=True)


def _path_of(owner: str) -> Path:
    # A private folder: a user who could put files here could make a living worker look dead.
    return made_private(temporary_folder()) / f"{owner}.lock"
