"""Whether a worker on this machine lives: it holds a lock on a file as long as it does.

The system frees the lock when the process dies, however it dies, and not before:
a stopped process still holds it. So the neighbours know of a death at once, and are never wrong.
"""

import fcntl
import os
from pathlib import Path

from perdure.base.machine import made_private, temporary_folder


def _lock_of(owner: str) -> Path:
    # Where another user could put files, he could make a living worker look dead.
    return made_private(temporary_folder()) / f"{owner}.lock"


class Incarnation:
    """The proof that this worker lives."""

    def __init__(self, owner: str) -> None:
        self._path = _lock_of(owner)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def end(self, *, in_order: bool = True) -> None:
        """Say that it is over; not in order: jobs are left behind, for whom only a death counts."""
        if in_order:
            self._path.unlink(missing_ok=True)
            os.close(self._file)


def is_dead(owner: str) -> bool:
    """Tell whether a worker of this machine and boot has died. Unknown counts as alive."""
    path = _lock_of(owner)
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
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


def forget(owner: str) -> None:
    """Remove what a dead worker left."""
    _lock_of(owner).unlink(missing_ok=True)
