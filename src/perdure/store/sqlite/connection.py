"""A connection to the file: which file it is, how it is opened, its errors and its statements.

**Which file is the database.** SQLite continues to write into a file that was deleted, moved or
replaced while it was open, where the data can no longer be found. So after every commit, and
before it is acknowledged, the file at the path is compared with the one that was opened (device
and inode). The write-ahead log (`-wal`), where the newest commits are, is checked likewise, but
not by inline writes: nobody deletes the log alone, and the thread notices it soon.

**How it is opened.** In WAL, so that readers do not wait for the writer; with `synchronous=FULL`,
since with less a power cut loses commits that were acknowledged; not on a network file system,
where SQLite's locks do not work.

**Another process may hold the write lock.** SQLite waits for it (`BUSY_SECONDS`), then we try
again a few times. `refusal` is the one place that decides what then happens, and `patiently` runs
whatever may need the lock; see `watch` for a holder that is stopped.

**Statements.** The journal is upserted with few, fixed numbers of rows in a statement: after each
statement the thread must wait for the interpreter again, and a fixed text stays prepared.
"""

import logging
import os
import shlex
import sqlite3
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from perdure.base.clock import BootClock, Clock, SystemClock
from perdure.base.encryption import Encryption, Keys
from perdure.base.errors import (
    IllegalTransition,
    SchemaError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)
from perdure.base.retry import Retry
from perdure.jobs.audit import AuditDraft
from perdure.jobs.effect import EffectState
from perdure.store.sealing import Sealing, all_statements, keys_for, used_keys
from perdure.store.sqlite.watch import kill_lock_holder, stopped_lock_holder
from perdure.store.statements import Row, only
from perdure.store.verbs.audit import append

T = TypeVar("T")

_log = logging.getLogger("perdure.store")

_Identity = tuple[int, int]  # device and inode

_GONE = (
    "{path} was deleted or moved while it was open: restore the same file, with its -wal; "
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

    def __init__(
        self, path: str | Path, *, force_network: bool = False, kill_stopped: bool = False
    ) -> None:
        # Absolute: a program may change its folder, and a later connection must find the same file.
        self.path = Path(path).absolute()
        self.force_network = force_network
        self.kill_stopped = kill_stopped  # whoever holds the write lock while it is stopped
        self.log = f"{self.path}-wal"
        self._main = str(self.path)
        self._opened: dict[str, _Identity] = {}

    @property
    def is_known(self) -> bool:
        """Whether it has been opened before; if so, it is never created again."""
        return self._main in self._opened

    def create(self) -> None:
        """Create the file if it does not exist, readable by its owner alone.

        Raises:
            StoreError: It cannot be created, or its log shows that there was one.
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
                f"there is no folder {self.path.parent}: create it first"
            ) from error
        except OSError as error:
            raise StoreUnreachable(f"cannot create {self.path}: {error.strerror}") from error

    def remember(self) -> None:
        """Record the existing file as the database, if none was opened before."""
        if not self.is_known:
            self._opened[self._main] = _identity(self._main)
            self._warn_if_others_may_read()

    def _warn_if_others_may_read(self) -> None:
        """Warn if users other than the owner may read the file; changing that is not up to us."""
        found = [
            path for path in (self._main, self.log, f"{self._main}-shm") if _is_open_to_others(path)
        ]
        if found:
            _log.warning(
                "%s can be read or written by others than its owner, and jobs carry people's data: "
                "chmod 600 %s",
                self._main,
                " ".join(map(shlex.quote, found)),
            )

    def remember_log(self) -> None:
        """Record the existing log as that of the database; a connection must have it open."""
        self._opened[self.log] = _identity(self.log)

    def check(self, *, log: bool = True) -> None:
        """Check that database and log are still what was opened.

        Args:
            log: Check the log, too; inline writes leave it out, which halves the work.

        Raises:
            StoreUnreachable: There is another file, or none.
        """
        for path in self._opened if log else (self._main,):
            try:
                # A Path would cost as much again, and this follows every commit.
                found = os.stat(path)  # noqa: PTH116
            except OSError as error:
                raise StoreUnreachable(_GONE.format(path=path)) from error
            if (found.st_dev, found.st_ino) != self._opened[path]:
                raise StoreUnreachable(_OTHER.format(path=path))


def _is_open_to_others(path: str) -> bool:
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return os.name == "posix" and bool(mode & (stat.S_IRWXG | stat.S_IRWXO))


def _identity(path: str) -> _Identity:
    try:
        found = Path(path).stat()
    except OSError as error:
        raise StoreUnreachable(_GONE.format(path=path)) from error
    return found.st_dev, found.st_ino


# Opening

_OLDEST: Final = (3, 37, 0)  # STRICT tables; RETURNING is older
BUSY_SECONDS: Final = 5.0
_BUSY: Final = Retry(attempts=6, initial_delay="5ms", max_delay="200ms", jitter=0.5)
# Many may open the same new file: only if it takes long, somebody looks for who has locked it.
_OPENING: Final = Retry(attempts=12, initial_delay="5ms", max_delay="250ms", jitter=0.5)


def connect(file: DatabaseFile, *, reads_only: bool = False) -> sqlite3.Connection:
    """Open the file, creating it if it is new, and check that SQLite can keep our guarantees there.

    Raises:
        StoreError: One of its subclasses; the message says what to do.
    """
    _check_library()
    file.create()
    file.remember()
    path = file.path
    kind = network_file_system(path)
    if kind and not file.force_network:
        raise StoreError(
            f"{path} is on a network file system ({kind}), where SQLite cannot lock: "
            "put it on a local disk, or add ?force_network=1 if only one machine ever opens it"
        )
    try:
        database = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw",  # if it went away in between, it stays away
            timeout=0.0,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
    except sqlite3.Error as error:
        raise translate(error, path) from error
    try:
        file.check()
        patiently(file, partial(_prepare_with_retries, database, reads_only=reads_only))
    except BaseException:
        database.close()
        raise
    return database


def _prepare_with_retries(database: sqlite3.Connection, *, reads_only: bool) -> None:
    """Retry while others open the same new file: for the change to WAL, SQLite does not wait."""
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
        set_busy_timeout(database, BUSY_SECONDS)
        return
    (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(f"SQLite can open this file only in journal mode {mode!r}, not in WAL")
    # Not NORMAL: that would lose acknowledged commits when the power fails.
    database.execute("PRAGMA synchronous = FULL")
    set_busy_timeout(database, BUSY_SECONDS)


def set_busy_timeout(database: sqlite3.Connection, seconds: float) -> None:
    """Set how long SQLite waits for others by itself."""
    database.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")


# Errors

_PRIMARY: Final = 0xFF  # the low byte of an error code is its kind
_FULL = "no disk space is left to write {path}: free some; what was acknowledged is safe"
_READ_ONLY = "{path} cannot be written: check its permissions and its disk"
_CLOSED = "cannot open {path}: {error}; check that it may be read and written"
_LOCKED = "{path} is locked by another process: look for one that is stopped or busy"
_STOPPED = (
    "{path} is locked by process {pid}, which is stopped (by a signal or a debugger): continue it "
    "or end it. With kill_stopped_writer=1 in the URL, perdure kills such a process"
)
_UNSOUND = "{path} is damaged, or not a SQLite database: {error}"
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


def explain(error: sqlite3.Error, file: DatabaseFile) -> Exception:
    """Return what an error of SQLite means; a missing file explains any of them."""
    try:
        file.check()
    except StoreUnreachable as gone:
        return gone
    return translate(error, file.path)


def translate(error: sqlite3.Error, path: Path) -> Exception:
    """Return a `StoreError` that says what happened and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    kind, text = _MEANINGS.get(code, (StoreError, "SQLite cannot use {path}: {error}"))
    return kind(text.format(path=path, error=error))


def patiently(file: DatabaseFile, work: Callable[[], T], attempts: int = _BUSY.attempts) -> T:
    """Return what some work returns that may need the write lock, and changes nothing without it.

    Raises:
        StoreError: It cannot be done; see `refusal`.
    """
    failures = 0
    while True:
        try:
            return work()
        except sqlite3.Error as error:
            failures += 1
            refused = refusal(error, file, failures, attempts)
            if refused is not None:
                raise refused from error


def refusal(
    error: sqlite3.Error, file: DatabaseFile, failures: int, attempts: int = _BUSY.attempts
) -> Exception | None:
    """Return why SQLite did not do something; None: try it again, the lock may be free now.

    A stopped process that holds the lock is named; it is killed if the URL of the store says so.
    """
    stopped = stopped_lock_holder(file.path) if is_busy(error) else None
    if stopped is not None and file.kill_stopped:
        if kill_lock_holder(stopped, file.path):
            return None
    elif stopped is not None and failures == 1:
        _log.error("%s", _STOPPED.format(path=file.path, pid=stopped))
    if is_busy(error) and failures < attempts:
        threading.Event().wait(_BUSY.delay(failures))
        return None
    if stopped is not None:
        return StoreUnreachable(_STOPPED.format(path=file.path, pid=stopped))
    return explain(error, file)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process held the lock: nothing was done, so it can be retried."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_broken(error: BaseException | None) -> bool:
    """Whether the connection must be reopened."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    return code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL)


# Network file systems

_MOUNTS = Path("/proc/mounts")
_NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "fuse", "ncp")


def network_file_system(path: Path) -> str | None:
    """Return the kind of network file system that holds the path; None if local or unknown."""
    try:
        mounts = _MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:  # not Linux: it is not known
        return None
    kind = kind_of(path.absolute(), mounts)
    return kind if kind.startswith(_NETWORK) else None


def kind_of(path: Path, mounts: str) -> str:
    """Return the kind of the innermost mount that holds the path."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        _, point, found, *_ = line.split(" ")
        folder = Path(point.replace("\\040", " "))
        if path.is_relative_to(folder) and len(folder.parts) >= best:
            best, kind = len(folder.parts), found
    return kind


# Statements

Statements = Mapping[int, str]  # by the number of rows

_STATEMENTS = all_statements("sqlite")
# An entry with all its columns, and a lean one without error, checkpoint, wake-up and key: most
# have none, and None is the most expensive of all parameters.
_FULL_ROW = f"({', '.join('?' * 18)})"
_LEAN = f"({', '.join('?' * 9)}, NULL, NULL, ?, NULL, ?, ?, ?, ?, NULL)"


def _upserts(entry: str) -> Statements:
    """Return the upserts by their numbers of rows, the largest first."""
    return {
        size: _STATEMENTS["upsert_entries"].replace("{entries}", ", ".join([entry] * size))
        for size in (64, 8, 1)
    }


_UPSERT_FULL, _UPSERT_LEAN = _upserts(_FULL_ROW), _upserts(_LEAN)
_UPSERT_EFFECT, _CHANGE_EFFECT = _STATEMENTS["upsert_effect"], _STATEMENTS["change_effect"]
_WALL = SystemClock()
_to_json = msgspec.json.Encoder().encode


class SqliteSession:
    """A connection inside a transaction."""

    __slots__ = ("database", "given_clock", "unproven_claims")

    def __init__(
        self,
        database: sqlite3.Connection,
        clock: Clock | None,
        unproven_claims: set[tuple[str, int]],
    ) -> None:
        self.database = database
        self.unproven_claims = unproven_claims
        self.given_clock = clock

    @property
    def keys(self) -> Keys | None:
        return None

    @property
    def readable(self) -> str | None:
        return None

    def now(self) -> float:
        return (self.given_clock or _WALL).time()

    def clock(self) -> float:
        clock = self.given_clock
        return BootClock.seconds() if clock is None else clock.monotonic()

    def one(self, name: str, /, **values: Any) -> Row | None:
        return self.database.execute(_STATEMENTS[name], values).fetchone()

    def all(self, name: str, /, **values: Any) -> Sequence[Row]:
        return self.database.execute(_STATEMENTS[name], values).fetchall()

    def run(self, name: str, /, **values: Any) -> int:
        return self.database.execute(_STATEMENTS[name], values).rowcount

    def best_effort(self, name: str, /, **values: Any) -> None:
        self.run(name, **values)

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        return self.database.executemany(_STATEMENTS[name], rows).rowcount

    def find(self, name: str, present: set[str], /, **values: Any) -> Sequence[Row]:
        return self.database.execute(only(_STATEMENTS[name], present), values).fetchall()

    def change(self, *asked: tuple[str, Sequence[Mapping[str, Any]]]) -> None:
        for name, rows in asked:
            self.many(name, rows)

    def together(self, *asked: tuple[str, Mapping[str, Any]]) -> list[Sequence[Row]]:
        return [self.all(name, **values) for name, values in asked]

    def array(self, values: Sequence[str] | Sequence[int]) -> Any:
        return _to_json(values).decode()

    def lock(self, name: str) -> None:
        """Do nothing: SQLite has only one writing transaction at a time."""

    def note(self, draft: AuditDraft) -> None:
        append(self, [draft])  # nobody waits for its lock

    def write_entries(self, entries: Sequence[tuple[Any, ...]]) -> int:
        if len(entries) == 1:
            return self.write_entry(entries[0])
        lean: list[tuple[Any, ...]] = []
        full: list[tuple[Any, ...]] = []
        for entry in entries:
            if entry[9] is entry[10] is entry[12] is entry[17] is None:
                lean.append((*entry[:9], entry[11], *entry[13:17]))
            else:
                full.append(entry)
        done = 0
        for statements, rows in ((_UPSERT_FULL, full), (_UPSERT_LEAN, lean)):
            first = 0
            for size, statement in statements.items():
                while len(rows) - first >= size:
                    values = tuple(chain.from_iterable(rows[first : first + size]))
                    done += self.database.execute(statement, values).rowcount
                    first += size
        return done

    def write_entry(self, entry: tuple[Any, ...]) -> int:
        """Write one entry; outside of a transaction, that is a transaction of its own."""
        if entry[9] is entry[10] is entry[12] is entry[17] is None:
            lean = (*entry[:9], entry[11], *entry[13:17])
            return self.database.execute(_UPSERT_LEAN[1], lean).rowcount
        return self.database.execute(_UPSERT_FULL[1], entry).rowcount

    def write_effects(self, effects: Sequence[Mapping[str, Any]]) -> int:
        done = 0
        for line in effects:
            # An effect that is not an intent mostly was one before; updating it is far less work.
            changed = 0
            if line["state"] != EffectState.INTENT:
                changed = self.database.execute(_CHANGE_EFFECT, line).rowcount
            done += changed or self.database.execute(_UPSERT_EFFECT, line).rowcount
        return done


class SealedSqliteSession(Sealing, SqliteSession):
    """A session on a store whose payloads are encrypted."""

    def __init__(self, plain: SqliteSession, keys: Keys, *, shows_locked: bool) -> None:
        super().__init__(plain.database, plain.given_clock, plain.unproven_claims)
        self.seal_with(keys, shows_locked=shows_locked)

    def many_sealed(self, name: str, rows: Sequence[Mapping[str, Any]]) -> int:
        return SqliteSession.many(self, name, rows)

    def numbers(self, table: str, count: int) -> Sequence[int]:
        ((first,),) = self.all(f"next_{table}_no")  # nobody else writes meanwhile
        return range(first, first + count)

    def cursor(self, text: str, values: Mapping[str, Any]) -> sqlite3.Cursor:
        return self.database.execute(text, values)

    def text(self, name: str, present: set[str] | None = None) -> str:
        return _STATEMENTS[name] if present is None else only(_STATEMENTS[name], present)


def with_keys(
    plain: SqliteSession, keys: Encryption | None, *, shows_locked: bool = False
) -> SqliteSession:
    """Return a session that encrypts, if the program has keys or the store has."""
    found = keys_for(keys, used_keys(plain.all("key_facts")))
    return plain if found is None else SealedSqliteSession(plain, found, shows_locked=shows_locked)
