"""The connections of a process to the file: those that write, read, search and renew.

**The writer** runs whatever its thread has gathered as one transaction (`execute`): plain writes go
in a few multi-row statements whose fence is part of the statement. If the number of written rows is
not the expected one, some fence did not hold, and SQLite cannot say whose. The transaction is then
rolled back and its requests run one by one, each in a savepoint, so that each gets its own answer
and none fails for another's mistake. This is rare, so it may cost twice as much.

**A single journal entry** needs no transaction at all: one statement is one (`_single_entry`). This
is how nearly every result of a step is written, on the loop (`write_inline`) or in the thread.
An inline write never waits for another process: the busy timeout is zero, and whatever goes wrong
is left to the thread, which runs the request again and reports what it finds. Running it twice is
safe, since an entry is written over itself.

**Another process may hold the write lock**: see `connection`. Opening takes it only if there is
something to write, so that a program that only reads can always be started.

**After each commit the file is checked** before it is acknowledged: see `connection`.

**The reader** has a snapshot for each verb, beside whatever is being written. **A searcher** is a
reader that gives up what takes too long. **The renewer** works from any thread over a connection of
its own, so that no queue can make a worker lose its leases.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec

from perdure.base.clock import Clock, SystemClock
from perdure.base.encryption import Encryption
from perdure.base.errors import (
    JobError,
    JournalConflict,
    QueryTooSlow,
    StoreError,
    StoreUnreachable,
)
from perdure.base.machine import boot_id
from perdure.store.db_thread import Connection, Inline, StoreRequest, rounds, writes_of
from perdure.store.sealing import register, unregistered
from perdure.store.sqlite.connection import (
    BUSY_SECONDS,
    DatabaseFile,
    SqliteSession,
    connect,
    is_broken,
    patiently,
    refusal,
    set_busy_timeout,
    translate,
    with_keys,
)
from perdure.store.sqlite.schema import free_leases_after_boot, is_another_boot, migrate
from perdure.store.sqlite.watch import inotify_drain, inotify_watch
from perdure.store.verbs.claim import renew
from perdure.store.verbs.write import progresses, write_all

P = ParamSpec("P")

_POLL: Final = 0.005  # seconds between looks for others' commits, where there is no inotify
_FIRST_LOOK: Final = 0.001
_LOOKS: Final = 10
_UNWELL: Final = 1.0
_MAX_INLINE_ROWS: Final = 4
_CLOCK: Final = SystemClock()
_LOOK_EVERY: Final = 5000  # steps of SQLite's machine, well under a millisecond


class _Refused(Exception):
    """A fence did not hold; the writes must be done one by one to see whose."""


class SqliteWriter(Connection):
    """The one connection of a process that writes."""

    _session: SqliteSession

    def __init__(
        self,
        file: DatabaseFile,
        clock: Clock | None,
        changed: Callable[[], None],
        *,
        keys: Encryption | None = None,
    ) -> None:
        self._file = file
        self._path = file.path
        self._clock = clock
        self._keys = keys
        self._changed = changed  # called when another connection has written
        self._data_version = -1
        self._is_broken = False
        self._is_gone = False  # the file was deleted, moved or replaced
        self._busy_timeout = BUSY_SECONDS
        self._inotify: int | None = None
        self._looks_left = 0

    def connect(self) -> int | None:
        is_new_to_us = not self._file.is_known
        database = connect(self._file)
        self._busy_timeout = BUSY_SECONDS
        self._session = SqliteSession(database, self._clock, set())
        try:
            if is_new_to_us:  # never again: a file that lost its tables was replaced
                patiently(self._file, partial(migrate, database))
            patiently(self._file, self._free_leases_after_boot)
            self._session = patiently(self._file, partial(with_keys, self._session, self._keys))
            patiently(self._file, self._register)
        except BaseException:
            database.close()
            raise
        self._file.remember_log()
        self._is_broken = False
        if self._inotify is None:
            self._inotify = inotify_watch(Path(f"{self._path}-wal"))
        return self._inotify

    def _free_leases_after_boot(self) -> None:
        boot = boot_id()
        if is_another_boot(self._session, boot):  # asked again once nobody else can answer it
            self._in_transaction(free_leases_after_boot, self._session, boot)

    def _register(self) -> None:
        if unregistered(self._session):  # asked again once nobody else can answer it
            self._in_transaction(register, self._session)

    def disconnect(self) -> None:
        self._session.database.close()
        if self._inotify is not None:
            os.close(self._inotify)
            self._inotify = None

    # On the loop

    def write_inline(self, request: StoreRequest, finished: Callable[[bool], None]) -> Inline:
        del finished  # it is durable at once, or refused
        rows = len(request.entry_rows) + len(request.effect_rows)
        if self._is_broken or self._is_gone or not request.is_plain or rows > _MAX_INLINE_ROWS:
            return "refused"
        try:
            if self._busy_timeout:
                self._set_busy_timeout(0.0)
            if not self._single_entry(request):
                self._in_transaction(self._plain, [request])
            self._file.check(log=False)
        except (sqlite3.Error, StoreUnreachable, _Refused):
            return "refused"
        if request.error is not None:
            request.error = None  # the thread finds out by itself
            return "refused"
        return "durable"

    # In the thread

    def execute(self, requests: Sequence[StoreRequest]) -> None:
        failures = 0
        while True:
            try:
                if self._is_gone:  # write nothing more into it before it is back
                    self._file.check()
                if self._is_broken:
                    self._session.database.close()
                    self.connect()
                if not self._busy_timeout:
                    self._set_busy_timeout(BUSY_SECONDS)
                self._together(requests)
                self._is_gone = True  # until the check has found the file at its path
                self._file.check()
                self._is_gone = False
            except StoreError as error:
                _fail(requests, error)
            except sqlite3.Error as error:
                self._roll_back()
                failures += 1
                refused = refusal(error, self._file, failures)
                if refused is None:
                    continue
                refused.__cause__ = error
                _fail(requests, refused)
                self._is_broken = is_broken(error)
            return

    def _set_busy_timeout(self, seconds: float) -> None:
        set_busy_timeout(self._session.database, seconds)
        self._busy_timeout = seconds

    def _together(self, requests: Sequence[StoreRequest]) -> None:
        if len(requests) == 1 and self._single_entry(requests[0]):
            return
        is_plain = all(request.is_plain for request in requests)
        try:
            self._in_transaction(self._plain if is_plain else self._batch, requests)
        except (_Refused, JobError, sqlite3.IntegrityError):
            self._in_transaction(self._one_by_one, requests)

    def _in_transaction(self, work: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        database = self._session.database
        database.execute("BEGIN IMMEDIATE")
        try:
            work(*args, **kwargs)
            database.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        # A full disk makes SQLite roll back by itself.
        if self._session.database.in_transaction:
            self._session.database.execute("ROLLBACK")

    def _single_entry(self, request: StoreRequest) -> bool:
        """Write a single journal entry as a single statement; False if that is not enough."""
        rows = request.entry_rows
        if not request.is_plain or request.effect_rows or len(rows) != 1:
            return False
        if self._session.unproven_claims:
            return False
        try:
            # No row: the fence did not hold, or the entry came late. `write_all` finds out which.
            return bool(self._session.write_entry(rows[0]))
        except sqlite3.IntegrityError as error:
            request.error = self._refusal(error, request)
            return True

    def _batch(self, requests: Sequence[StoreRequest]) -> None:
        """Run all requests, statement by statement; if one is refused, all are rolled back."""
        for plain, full, calls in rounds(requests):
            self._plain(plain)
            if full:
                write_all(self._session, writes_of(full))
            for request in calls:
                self._in_savepoint(request)

    def _plain(self, requests: Sequence[StoreRequest]) -> None:
        session = self._session
        entries = [row for request in requests for row in request.entry_rows]
        if entries and session.write_entries(entries) != len(entries):
            raise _Refused
        effects = [row for request in requests for row in request.effect_rows]
        if effects and session.write_effects(effects) != len(effects):
            raise _Refused
        if not session.unproven_claims:
            return
        for write, _, _ in writes_of(requests):
            claim = write.job_id, write.epoch
            if claim in session.unproven_claims and progresses(write.entries):
                session.unproven_claims.discard(claim)
                session.run("progressed", id=write.job_id)

    def _one_by_one(self, requests: Sequence[StoreRequest]) -> None:
        for request in requests:
            self._in_savepoint(request)

    def _in_savepoint(self, request: StoreRequest) -> None:
        """Run one request so that its failure rolls back only itself."""
        database = self._session.database
        request.error = None
        database.execute("SAVEPOINT apart")
        try:
            if request.write is not None:
                write_all(self._session, writes_of([request]))
            elif request.call is not None:
                request.result = request.call(self._session)
        except sqlite3.IntegrityError as error:
            request.error = self._refusal(error, request)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001  whoever asked gets it
            request.error = error
        if request.error is not None:
            database.execute("ROLLBACK TO apart")
        database.execute("RELEASE apart")

    def _refusal(self, error: sqlite3.IntegrityError, request: StoreRequest) -> Exception:
        """Return why the database refuses a request; it cannot name the entries itself."""
        for job_id, seq, id, *_ in request.entry_rows:
            found = self._session.one("entry_id", id=job_id, seq=seq)
            if found is not None and found[0] != id:
                return JournalConflict(
                    f"entry {seq} of job {job_id} is {found[0]}: {id} cannot take its place"
                )
        return translate(error, self._path)

    # Others' commits

    def idle(self) -> float | None:
        """Notice whether another connection has written in the meantime."""
        try:
            # The file is touched before the commit is visible, and a slow disk is in between: look
            # again, less and less often. Also if something was seen: the next commit may follow.
            if self._inotify is not None and inotify_drain(self._inotify):
                self._looks_left = _LOOKS
            self._looks_left = max(self._looks_left - 1, 0)
            (version,) = self._session.database.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:  # the next request gets the error
            return _UNWELL
        if version != self._data_version:
            self._data_version = version
            self._changed()
        if self._inotify is None:
            return _POLL
        return _FIRST_LOOK * 2 ** (_LOOKS - 1 - self._looks_left) if self._looks_left else None


def _fail(requests: Sequence[StoreRequest], error: Exception) -> None:
    for request in requests:
        request.result, request.error = None, error


class SqliteReader(Connection):
    """The connection that only reads."""

    _session: SqliteSession | None = None

    def __init__(
        self,
        file: DatabaseFile,
        clock: Clock | None,
        keys: Encryption | None = None,
        *,
        shows_locked: bool = False,
    ) -> None:
        self._file = file
        self._clock = clock
        self._keys, self._shows_locked = keys, shows_locked
        self._is_broken = False

    def connect(self) -> int | None:
        self._connected()
        return None

    def _connected(self) -> SqliteSession:
        if self._is_broken:
            self.disconnect()
        if self._session is None:
            database = connect(self._file, reads_only=True)
            plain = SqliteSession(database, self._clock, set())
            sealed = partial(with_keys, plain, self._keys, shows_locked=self._shows_locked)
            self._session = patiently(self._file, sealed)
            self._is_broken = False
        return self._session

    def disconnect(self) -> None:
        if self._session is not None:
            self._session.database.close()
            self._session = None

    def execute(self, requests: Sequence[StoreRequest]) -> None:
        for request in requests:
            try:
                self._file.check()
                work = partial(self._answer, request, self._connected())
                patiently(self._file, work, attempts=1)
            except StoreError as error:
                request.error = error
                self._is_broken = is_broken(error.__cause__)
            except Exception as error:  # noqa: BLE001  whoever asked gets it
                request.error = error

    def _answer(self, request: StoreRequest, session: SqliteSession) -> None:
        database = session.database
        database.execute("BEGIN")
        try:
            if request.call is not None:
                request.result = request.call(session)
        finally:
            # Ended at once, so that no snapshot keeps the write-ahead log from being reused.
            if database.in_transaction:
                database.execute("ROLLBACK")


class SqliteSearcher(SqliteReader):
    """A connection for searches: it is opened by the first, and gives up slow ones."""

    def connect(self) -> int | None:
        return None  # until there is something to search

    def _answer(self, request: StoreRequest, session: SqliteSession) -> None:
        if request.is_given_up:
            return
        seconds = request.seconds or 0.0
        until = _CLOCK.monotonic() + seconds

        def is_over() -> bool:
            return request.is_given_up or _CLOCK.monotonic() > until

        session.database.set_progress_handler(is_over, _LOOK_EVERY)
        try:
            super()._answer(request, session)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise QueryTooSlow(seconds) from error
            raise
        finally:
            session.database.set_progress_handler(None, 0)


class SqliteRenewer:
    """Renews leases from any thread; connects on first use."""

    def __init__(self, file: DatabaseFile, clock: Clock | None) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._session: SqliteSession | None = None

    def renew(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        """Renew leases, waiting for the disk; return the jobs whose leases were renewed."""
        with self._lock:
            if self._session is None:
                self._session = SqliteSession(connect(self._file), self._clock, set())
            try:
                # A single statement that writes: a transaction of its own. It is not repeated for
                # long: the leases may be others' by now.
                work = partial(renew, self._session, owner, held, lease)
                kept = patiently(self._file, work, attempts=1)
            except StoreError as error:
                if is_broken(error.__cause__):
                    self._disconnect()
                raise
            self._file.check()
            return kept

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.database.close()
            self._session = None
