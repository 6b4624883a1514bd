"""A connection to the file: how it is opened, and what its errors mean."""

import logging
import os
import shlex
import sqlite3
import stat
import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from perdure.base.clock import BootClock, Clock, SystemClock
from perdure.base.errors import (
    IllegalTransition,
    SchemaError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)
from perdure.base.retry import Retry
from perdure.jobs.effect import EffectState
from perdure.store.statements import Row, load, only

# Is a path on a file system of another machine? SQLite's locks do not work there.

_MOUNTS = Path("/proc/mounts")
_NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "fuse", "ncp")


def network_file_system(path: Path) -> str | None:
    """Name the kind of network file system that holds the path; None if it is local or unknown."""
    try:
        mounts = _MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:  # not Linux: nobody can tell
        return None
    kind = kind_of(path.absolute(), mounts)
    return kind if kind.startswith(_NETWORK) else None


def kind_of(path: Path, mounts: str) -> str:
    """Find the innermost mount that holds the path."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        _, point, found, *_ = line.split(" ")
        folder = Path(point.replace("\\040", " "))
        if path.is_relative_to(folder) and len(folder.parts) >= best:
            best, kind = len(folder.parts), found
    return kind


# Which file is the database: one that is deleted, moved or replaced while it is open is noticed.
#
# SQLite itself would go on writing into a file that nobody can find any more.
# So after every commit, and before anybody is told of it, the file at the path is compared with the
# one that was opened. Its log (`-wal`), where the newest commits are, is looked at likewise, but
# not
# by the loop: nobody deletes the log alone, and the thread sees it soon.

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


_OLDEST: Final = (3, 37, 0)  # STRICT tables; RETURNING is older
BUSY_SECONDS: Final = 5.0
_OPENING: Final = Retry(attempts=40, initial_delay="5ms", max_delay="250ms", jitter=0.5)
_PRIMARY: Final = 0xFF  # the low byte of an error code tells its kind
_FULL = "no room is left to write {path}: free some; what was acknowledged is safe"
_READ_ONLY = "{path} cannot be written: check its permissions and its disk"
_CLOSED = "cannot open {path}: {error}; check that it may be read and written"
_LOCKED = "{path} is locked by another process: is one stopped, or busy?"
_UNSOUND = "{path} is not a sound SQLite database: {error}"
_MEANINGS: Final[dict[int, tuple[type[Exception], str]]] = {
    sqlite3.SQLITE_FULL: (StoreFull, _FULL),
    sqlite3.SQLITE_READONLY: (StoreReadOnly, _READ_ONLY),
    sqlite3.SQLITE_CANTOPEN: (StoreUnreachable, _CLOSED),
    sqlite3.SQLITE_PERM: (StoreUnreachable, _CLOSED),
    sqlite3.SQLITE_AUTH: (StoreUnreachable, _CLOSED),
    sqlite3.SQLITE_BUSY: (StoreUnreachable, _LOCKED),
    sqlite3.SQLITE_LOCKED: (StoreUnreachable, _LOCKED),
    sqlite3.SQLITE_NOTADB: (SchemaError, _UNSOUND),
    sqlite3.SQLITE_CORRUPT: (SchemaError, _UNSOUND),
    sqlite3.SQLITE_CONSTRAINT: (IllegalTransition, "{error}"),
}


def connect(
    file: DatabaseFile, *, reads_only: bool = False, force_network: bool = False
) -> sqlite3.Connection:
    """Open the file, make it if it is new, and check that it can keep our promises.

    Raises:
        StoreError: One of its kinds, with what to do.
    """
    _check_library()
    file.make()
    file.remember()
    path = file.path
    kind = network_file_system(path)
    if kind and not force_network:
        raise StoreError(
            f"{path} is on a network file system ({kind}), where SQLite cannot lock: "
            "put it on a local disk, or add ?force_network=1 if only one machine ever opens it"
        )
    try:
        database = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw",  # if it went away in between, it stays away
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
    except sqlite3.Error as error:
        raise translate(error, path) from error
    try:
        file.check()
        _prepare_patiently(database, reads_only=reads_only)
    except BaseException as error:
        database.close()
        if isinstance(error, sqlite3.Error):
            raise translate(error, path) from error
        raise
    return database


def _prepare_patiently(database: sqlite3.Connection, *, reads_only: bool) -> None:
    """Wait for others who open the same new file: SQLite itself does not, for a change to WAL."""
    for failures in range(1, _OPENING.attempts + 1):
        try:
            return _prepare(database, reads_only=reads_only)
        except sqlite3.Error as error:
            if not is_busy(error) or failures == _OPENING.attempts:
                raise
            threading.Event().wait(_OPENING.delay(failures))
    return None


def _check_library() -> None:
    if sqlite3.sqlite_version_info < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise StoreError(
            f"this Python has SQLite {sqlite3.sqlite_version}; perdure needs {oldest} or newer: "
            "use a newer Python"
        )


def _prepare(database: sqlite3.Connection, *, reads_only: bool) -> None:
    if reads_only:
        database.execute("PRAGMA query_only = ON")
        return
    (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(f"this file can only be kept in journal mode {mode!r}, not in WAL")
    # Not NORMAL: that would lose acknowledged commits when the power fails.
    database.execute("PRAGMA synchronous = FULL")


def meaning(error: sqlite3.Error, file: DatabaseFile) -> Exception:
    """Say what an error of SQLite means; a file that went away explains any."""
    try:
        file.check()
    except StoreUnreachable as gone:
        return gone
    return translate(error, file.path)


def translate(error: sqlite3.Error, path: Path) -> Exception:
    """Say what an error of SQLite means, and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    kind, text = _MEANINGS.get(code, (StoreError, "SQLite cannot use {path}: {error}"))
    return kind(text.format(path=path, error=error))


def is_busy(error: sqlite3.Error) -> bool:
    """Tell whether another process was at work; nothing was done, so try again."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_broken(error: sqlite3.Error) -> bool:
    """Tell whether the connection is not to be trusted any more."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    return code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL)


# The named statements on a SQLite connection.

Statements = Mapping[int, str]  # by the number of rows

_STATEMENTS = load("sqlite")
# An entry with all its columns, and one without error, checkpoint, wake-up and key: most have none,
# and None is the dearest of all parameters.
_FULL_ROW = f"({', '.join('?' * 18)})"
_LEAN = f"({', '.join('?' * 9)}, NULL, NULL, ?, NULL, ?, ?, ?, ?, NULL)"


def _upserts(entry: str) -> Statements:
    """Spell the upsert of many rows: each statement lets other threads run, and waits for its turn.

    Few sizes, so that they stay prepared.
    """
    return {
        size: _STATEMENTS["upsert_entries"].format(entries=", ".join([entry] * size))
        for size in (64, 8, 1)
    }


_UPSERT_FULL, _UPSERT_LEAN = _upserts(_FULL_ROW), _upserts(_LEAN)
_KEEP_EFFECT, _CHANGE_EFFECT = _STATEMENTS["keep_effect"], _STATEMENTS["change_effect"]
_WALL = SystemClock()
_to_json = msgspec.json.Encoder().encode


class SqliteSession:
    """A connection inside a transaction."""

    __slots__ = ("_clock", "database", "suspects")

    def __init__(
        self, database: sqlite3.Connection, clock: Clock | None, suspects: set[tuple[str, int]]
    ) -> None:
        self.database = database
        self.suspects = suspects
        self._clock = clock

    def now(self) -> float:
        return (self._clock or _WALL).time()

    def clock(self) -> float:
        return BootClock.seconds() if self._clock is None else self._clock.monotonic()

    def one(self, name: str, /, **values: Any) -> Row | None:
        return self.database.execute(_STATEMENTS[name], values).fetchone()

    def all(self, name: str, /, **values: Any) -> Sequence[Row]:
        return self.database.execute(_STATEMENTS[name], values).fetchall()

    def run(self, name: str, /, **values: Any) -> int:
        return self.database.execute(_STATEMENTS[name], values).rowcount

    def aside(self, name: str, /, **values: Any) -> None:
        self.run(name, **values)

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        return self.database.executemany(_STATEMENTS[name], rows).rowcount

    def find(self, name: str, present: set[str], /, **values: Any) -> Sequence[Row]:
        return self.database.execute(only(_STATEMENTS[name], present), values).fetchall()

    def array(self, values: Sequence[str] | Sequence[int]) -> Any:
        return _to_json(values).decode()

    def lock(self, name: str) -> None:
        """Nothing to do: a transaction that writes is alone."""

    def upsert(self, entries: Sequence[tuple[Any, ...]]) -> int:
        if len(entries) == 1:
            return self.upsert_one(entries[0])
        lean = [_lean(entry) for entry in entries if _is_lean(entry)]
        full = [entry for entry in entries if not _is_lean(entry)]
        return self._upsert_many(_UPSERT_FULL, full) + self._upsert_many(_UPSERT_LEAN, lean)

    def _upsert_many(self, statements: Statements, entries: Sequence[tuple[Any, ...]]) -> int:
        done, first = 0, 0
        for size, statement in statements.items():
            while len(entries) - first >= size:
                values = tuple(chain.from_iterable(entries[first : first + size]))
                done += self.database.execute(statement, values).rowcount
                first += size
        return done

    def keep(self, lines: Sequence[Mapping[str, Any]]) -> int:
        return sum(self._keep_one(line) for line in lines)

    def _keep_one(self, line: Mapping[str, Any]) -> int:
        # Most lines that are no intents were such before: to change one is a third of the work.
        if line["state"] != EffectState.INTENT:
            done = self.database.execute(_CHANGE_EFFECT, line).rowcount
            if done:
                return done
        return self.database.execute(_KEEP_EFFECT, line).rowcount

    def upsert_one(self, entry: tuple[Any, ...]) -> int:
        """Write one entry; alone, that is a transaction of its own."""
        if _is_lean(entry):
            return self.database.execute(_UPSERT_LEAN[1], _lean(entry)).rowcount
        return self.database.execute(_UPSERT_FULL[1], entry).rowcount


def _is_lean(entry: tuple[Any, ...]) -> bool:
    return entry[9] is entry[10] is entry[12] is entry[17] is None


def _lean(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*entry[:9], entry[11], *entry[13:17])
