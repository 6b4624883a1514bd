"""The one connection of a process that writes: everything that has gathered, in one transaction."""

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from perdure.base.clock import Clock
from perdure.base.errors import JobError, JournalConflict, StoreError, StoreUnreachable
from perdure.base.machine import boot_id
from perdure.base.retry import Retry
from perdure.jobs.model import Write
from perdure.store.db_thread import Request, rounds, writes_of
from perdure.store.sqlite.connection import (
    BUSY_SECONDS,
    DatabaseFile,
    SqliteSession,
    connect,
    is_broken,
    is_busy,
    meaning,
    translate,
)
from perdure.store.sqlite.schema import after_boot, migrate
from perdure.store.sqlite.watch import drain, free_from_stopped, touches
from perdure.store.verbs.claim import renew
from perdure.store.verbs.write import progresses, write_all

# Another process may hold the write lock: SQLite itself waits for a while each time.
_BUSY: Final = Retry(attempts=6, initial_delay="5ms", max_delay="200ms", jitter=0.5)
_POLL: Final = 0.005  # how often to look where the kernel does not tell
_AGAIN: Final = 0.001
_UNWELL: Final = 1.0
_LOOKS: Final = 10
_FEW: Final = 4  # rows that the loop writes by itself


class _Refused(Exception):
    """A fence did not hold; the writes must be done one by one to see whose."""


class SqliteWriter:
    """Does requests in transactions of their own, as many as there are at once."""

    _session: SqliteSession

    def __init__(
        self, file: DatabaseFile, clock: Clock | None, changed: Callable[[], None], *, force: bool
    ) -> None:
        self._file = file
        self._path = file.path
        self._clock = clock
        self._changed = changed
        self._force = force
        self._version = -1
        self._broken = False
        self._gone = False  # the file was deleted, moved or replaced
        self._patience = BUSY_SECONDS
        self._touched: int | None = None
        self._looks = 0

    def connect(self) -> int | None:
        is_new_to_us = not self._file.is_known
        database = connect(self._file, force_network=self._force)
        self._patience = BUSY_SECONDS
        self._session = SqliteSession(database, self._clock, set())
        try:
            if is_new_to_us:  # never again: a file that lost its tables was replaced
                migrate(database)
            self._in_transaction(lambda: after_boot(self._session, boot_id()))
        except BaseException as error:
            database.close()
            if isinstance(error, sqlite3.Error):
                raise translate(error, self._path) from error
            raise
        self._file.remember_log()
        self._broken = False
        if self._touched is None:
            self._touched = touches(Path(f"{self._path}-wal"))
        return self._touched

    def disconnect(self) -> None:
        self._session.database.close()
        if self._touched is not None:
            os.close(self._touched)
            self._touched = None

    def afterwards(self) -> None:
        """Nothing is left to do."""

    def idle(self) -> float | None:
        """See whether another connection has written in the meantime."""
        try:
            return self._look()
        except sqlite3.Error:  # whoever asks for something next is told
            return _UNWELL

    def _look(self) -> float | None:
        # A file is touched before the commit can be seen, and a slow disk is in between: look
        # again, ever more seldom. Also if something was seen: the next commit may be under way.
        if self._touched is not None and drain(self._touched):
            self._looks = _LOOKS
        self._looks = max(self._looks - 1, 0)
        (version,) = self._session.database.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self._changed()
        if self._touched is None:
            return _POLL
        return _AGAIN * 2 ** (_LOOKS - 1 - self._looks) if self._looks else None

    def at_once(self, request: Request) -> bool:
        """Do a small write, if no other process is in the way; called on the loop."""
        few = len(request.rows) + len(request.lines) <= _FEW
        if self._broken or self._gone or not request.is_plain or not few:
            return False
        try:
            self._wait_for_others(0)
            if not self._alone(request):
                self._in_transaction(lambda: self._plain([request]))
            self._file.check_quickly()
            done = request.error is None
        except (sqlite3.Error, StoreUnreachable, _Refused):
            done = False
        if not done:
            request.error = None  # it is done again by the thread, which finds out by itself
        return done

    def _wait_for_others(self, seconds: float) -> None:
        if self._patience != seconds:
            self._session.database.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")
            self._patience = seconds

    def execute(self, requests: Sequence[Request]) -> None:
        failures = 0
        while True:
            try:
                if self._gone:  # write nothing more into it
                    self._check_file()
                if self._broken:
                    self._reopen()
                self._wait_for_others(BUSY_SECONDS)
                self._together(requests)
                self._check_file()
            except StoreError as error:
                self._refuse(requests, error)
            except sqlite3.Error as error:
                self._roll_back()
                failures += 1
                if is_busy(error) and free_from_stopped(self._path):
                    continue  # whoever held the lock will not any more
                if is_busy(error) and failures < _BUSY.attempts:
                    threading.Event().wait(_BUSY.delay(failures))
                    continue
                self._fail(requests, error)
            return

    def _check_file(self) -> None:
        """See that the database is where everybody looks for it; called after each commit."""
        self._gone = True
        self._file.check()
        self._gone = False

    def _reopen(self) -> None:
        self._session.database.close()
        self.connect()

    def _together(self, requests: Sequence[Request]) -> None:
        if len(requests) == 1 and self._alone(requests[0]):
            return
        try:
            self._in_transaction(lambda: self._batch(requests))
        except (_Refused, JobError, sqlite3.IntegrityError):
            # One of them is refused: see whose.
            self._in_transaction(lambda: [self._apart(request) for request in requests])

    def _in_transaction(self, work: Callable[[], Any]) -> None:
        database = self._session.database
        database.execute("BEGIN IMMEDIATE")
        try:
            work()
            database.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        # A full disk makes SQLite roll back by itself.
        if self._session.database.in_transaction:
            self._session.database.execute("ROLLBACK")

    def _alone(self, request: Request) -> bool:
        """Do a single journal entry as a single statement: the least that can be done."""
        write = request.write
        if (
            write is None
            or not request.is_plain
            or request.lines
            or len(request.rows) != 1
            or self._session.suspects
        ):
            return False
        try:
            done = self._session.upsert_one(request.rows[0])
        except sqlite3.IntegrityError as error:
            request.error = self._refusal(error, request)
            return True
        return bool(done)  # if not: fenced, or late: `write_all` tells which

    def _refusal(self, error: sqlite3.IntegrityError, request: Request) -> Exception:
        """Say why the database refuses a request; it cannot name the entries itself."""
        for job_id, seq, id, *_ in request.rows:
            found = self._session.one("entry_id", id=job_id, seq=seq)
            if found is not None and found[0] != id:
                return JournalConflict(
                    f"entry {seq} of job {job_id} is {found[0]}: {id} cannot take its place"
                )
        return translate(error, self._path)

    def _batch(self, requests: Sequence[Request]) -> None:
        """Do all, statement by statement; if one is refused, all are undone."""
        for plain, full, calls in rounds(requests):
            self._plain(plain)
            if full:
                write_all(self._session, writes_of(full))
            for request in calls:
                self._apart(request)

    def _plain(self, requests: Sequence[Request]) -> None:
        entries = [row for request in requests for row in request.rows]
        if entries and self._session.upsert(entries) != len(entries):
            raise _Refused
        lines = [line for request in requests for line in request.lines]
        if lines and self._session.keep(lines) != len(lines):
            raise _Refused
        for request in requests:
            self._note_progress(request.write)

    def _note_progress(self, write: Write | None) -> None:
        suspects = self._session.suspects
        if (
            suspects
            and write
            and (write.job_id, write.epoch) in suspects
            and progresses(write.entries)
        ):
            suspects.discard((write.job_id, write.epoch))
            self._session.run("progressed", id=write.job_id)

    def _apart(self, request: Request) -> None:
        """Do one request so that its failure undoes only itself."""
        database = self._session.database
        request.error = None
        database.execute("SAVEPOINT apart")
        try:
            request.result = self._perform(request)
        except sqlite3.IntegrityError as error:
            request.error = self._refusal(error, request)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001  whoever asked gets it
            request.error = error
        if request.error is not None:
            database.execute("ROLLBACK TO apart")
        database.execute("RELEASE apart")

    def _perform(self, request: Request) -> Any:
        if request.write is not None:
            return write_all(self._session, [(request.write, request.rows)])
        return request.call(self._session) if request.call is not None else None

    def _fail(self, requests: Sequence[Request], error: sqlite3.Error) -> None:
        told = meaning(error, self._file)
        told.__cause__ = error
        self._refuse(requests, told)
        self._broken = is_broken(error)

    def _refuse(self, requests: Sequence[Request], error: Exception) -> None:
        for request in requests:
            request.result, request.error = None, error


# The connection that only reads: a snapshot a verb, beside whatever is being written.


class SqliteReader:
    """Answers questions."""

    _session: SqliteSession

    def __init__(self, file: DatabaseFile, clock: Clock | None, *, force: bool) -> None:
        self._file = file
        self._clock = clock
        self._force = force
        self._broken = False

    def connect(self) -> int | None:
        database = connect(self._file, reads_only=True, force_network=self._force)
        self._session = SqliteSession(database, self._clock, set())
        self._broken = False
        return None

    def disconnect(self) -> None:
        self._session.database.close()

    def afterwards(self) -> None:
        """Nothing is left to do."""

    def idle(self) -> float | None:
        return None

    def execute(self, requests: Sequence[Request]) -> None:
        for request in requests:
            try:
                self._file.check()
                if self._broken:
                    self.disconnect()
                    self.connect()
                self._answer(request)
            except sqlite3.Error as error:
                request.error = meaning(error, self._file)
                request.error.__cause__ = error
                self._broken = is_broken(error)
            except Exception as error:  # noqa: BLE001  whoever asked gets it
                request.error = error

    def _answer(self, request: Request) -> None:
        database = self._session.database
        database.execute("BEGIN")
        try:
            if request.call is not None:
                request.result = request.call(self._session)
        finally:
            # Ended at once, so that no snapshot keeps the log of changes from being reused.
            if database.in_transaction:
                database.execute("ROLLBACK")


# Renews leases from any thread, over a connection of its own: no queue can hold it up.


class SqliteRenewer:
    """Connects when it is first needed."""

    def __init__(self, file: DatabaseFile, clock: Clock | None, *, force: bool) -> None:
        self._file = file
        self._clock = clock
        self._force = force
        self._lock = threading.Lock()
        self._session: SqliteSession | None = None

    def renew(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        """Prolong leases; waits for the disk."""
        with self._lock:
            if self._session is None:
                database = connect(self._file, force_network=self._force)
                self._session = SqliteSession(database, self._clock, set())
            try:
                # A single statement that writes: a transaction of its own.
                kept = renew(self._session, owner, held, lease)
            except sqlite3.Error as error:
                if is_broken(error):
                    self._disconnect()
                raise meaning(error, self._file) from error
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
