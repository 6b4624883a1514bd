"""A connection to the file: how it is opened, and what its errors mean."""

import sqlite3
import threading
from pathlib import Path
from typing import Final
from urllib.parse import quote

from perdure.base.backoff import Retry
from perdure.base.errors import (
    IllegalTransition,
    SchemaError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)
from perdure.store.sqlite.file import DatabaseFile
from perdure.store.sqlite.network import network_file_system

_OLDEST: Final = (3, 37, 0)  # STRICT tables; RETURNING is older
BUSY_SECONDS: Final = 5.0
_OPENING: Final = Retry(attempts=40, first="5ms", most="250ms", jitter=0.5)
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
