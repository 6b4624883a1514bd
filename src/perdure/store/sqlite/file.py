"""Which file is the database: one that is deleted, moved or replaced while it is open is noticed.

SQLite itself would go on writing into a file that nobody can find any more.
So after every commit, and before anybody is told of it, the file at the path is compared with the
one that was opened. Its log (`-wal`), where the newest commits are, is looked at likewise, but not
by the loop: nobody deletes the log alone, and the thread sees it soon.
"""

import logging
import os
import shlex
import stat
from pathlib import Path

from perdure.base.errors import StoreError, StoreUnreachable

_log = logging.getLogger("perdure.store")

_Identity = tuple[int, int]  # device and inode

_GONE = (
    "{path} was deleted or moved while it was open: put that very file back, with its -wal; "
    "or stop all programs that use it, and start them again on the file that you want"
)
_OTHER = (
    "{path} was replaced by another file while it was open: "
    "stop all programs that use it, and start them again on the file that you want"
)
_LEFT = (
    "{path} is not there, but {path}-wal is: the database was deleted or moved without its log; "
    "put it back, or delete {path}-wal and {path}-shm to begin a new one"
)


class DatabaseFile:
    """The file of a store, the same for all its connections."""

    def __init__(self, path: str | Path) -> None:
        # Absolute: a program may change its folder, and a later connection must find the same file.
        self.path = Path(path).absolute()
        self.log = f"{self.path}-wal"
        self._main = str(self.path)
        self._opened: dict[str, _Identity] = {}

    @property
    def is_known(self) -> bool:
        """Whether it has been opened before: then it is never made anew."""
        return self._main in self._opened

    def make(self) -> None:
        """Make a new file that only its owner may read, as jobs carry people's data.

        Raises:
            StoreError: It cannot be made, or there was one.
        """
        if self.is_known or self.path.exists():
            return
        if Path(self.log).exists():
            raise StoreError(_LEFT.format(path=self.path))
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            pass  # never opened here: closing it would drop the locks that SQLite holds on it
        except FileNotFoundError as error:
            raise StoreUnreachable(
                f"there is no folder {self.path.parent}: make it first"
            ) from error
        except OSError as error:
            raise StoreUnreachable(f"cannot make {self.path}: {error.strerror}") from error

    def remember(self) -> None:
        """Take the file that is there for the database, if none was opened before."""
        if not self.is_known:
            self._opened[self._main] = _identity(self._main)
            self._warn_if_others_may_read()

    def _warn_if_others_may_read(self) -> None:
        """Tell that the file is open to others than its owner; to change that is not up to us."""
        found = [path for path in (self._main, self.log, f"{self._main}-shm") if _is_open(path)]
        if found:
            _log.warning(
                "%s can be read or written by others than its owner, and jobs carry people's data: "
                "chmod 600 %s",
                self._main,
                " ".join(map(shlex.quote, found)),
            )

    def remember_log(self) -> None:
        """Take the log that is there for that of the database; somebody must have it open."""
        self._opened[self.log] = _identity(self.log)

    def check(self) -> None:
        """See that database and log are still what was opened.

        Raises:
            StoreUnreachable: There is another file, or none.
        """
        for path in self._opened:
            self._check(path)

    def check_quickly(self) -> None:
        """See to the database alone: the half of the work, where a commit takes little time."""
        self._check(self._main)

    def _check(self, path: str) -> None:
        if _identity(path) != self._opened[path]:
            raise StoreUnreachable(_OTHER.format(path=path))


def _is_open(path: str) -> bool:
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return os.name == "posix" and bool(mode & (stat.S_IRWXG | stat.S_IRWXO))


def _identity(path: str) -> _Identity:
    try:
        found = os.stat(path)  # noqa: PTH116  a Path costs as much again, and this follows every commit
    except OSError as error:
        raise StoreUnreachable(_GONE.format(path=path)) from error
    return found.st_dev, found.st_ino
