"""How the workers of one machine notice at once that one of them has died.

A worker holds a lock on a file for as long as it is alive. The operating system frees the lock when
the process dies, however it dies, and not before: a process that is stopped still holds it. So its
neighbours on the same machine need not wait for its leases to run out, and they are never wrong.
The lock says nothing about workers elsewhere: their leases do.

The files of all workers of one store are in one folder, so neighbours find each other without
asking the store. Each looks only at those that come next by name, in a ring: the work of a look
does not grow with the number of workers, and whoever dies is seen by the ones before it.
"""

import fcntl
import os
from typing import Final

from perdure.base.codec import digest
from perdure.base.machine import made_private, temporary_folder

# How many neighbours each worker watches: some of them may be stopped, and watch nobody.
_WATCHED: Final = 8


class WorkerLock:
    """The proof that this worker is alive."""

    def __init__(self, store_key: bytes, owner: str) -> None:
        """Take the lock.

        Args:
            store_key: The secret key of the store: workers of other stores are no neighbours.
            owner: The worker.
        """
        # A private folder: a user who could put files here could make a living worker look dead.
        name = f"workers-{digest('workers', store_key)[:16]}"
        self._folder = made_private(made_private(temporary_folder()) / name)
        self._owner = owner
        self.path = self._folder / f"{owner}.lock"
        # Locked before it has its name: a neighbour that tried it in between would hold the lock.
        new = self._folder / f"{owner}.new"
        self._file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(self.path)

    def release(self, *, jobs_left: bool) -> None:
        """Release the lock, unless jobs are left: they are freed when this process is dead."""
        if not jobs_left:
            self.path.unlink(missing_ok=True)
            os.close(self._file)

    def dead_neighbours(self) -> list[str]:
        """Return the watched workers of this store and machine that have died."""
        names = sorted(each.stem for each in self._folder.glob("*.lock"))
        later = [name for name in names if name > self._owner]
        earlier = [name for name in names if name < self._owner]
        dead: list[str] = []
        living = 0
        for name in (*later, *earlier):
            if self._is_dead(name):
                dead.append(name)
            else:
                living += 1
            if living >= _WATCHED:
                break
        return dead

    def _is_dead(self, owner: str) -> bool:
        try:
            file = os.open(self._folder / f"{owner}.lock", os.O_RDWR | os.O_CLOEXEC)
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

    def forget(self, owner: str) -> None:
        """Delete the file that a dead worker left."""
        (self._folder / f"{owner}.lock").unlink(missing_ok=True)
