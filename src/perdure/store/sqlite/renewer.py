"""Renews leases from any thread, over a connection of its own: no queue can hold it up."""

import sqlite3
import threading
from collections.abc import Sequence

from perdure.base.clock import Clock
from perdure.store.sqlite.connection import connect, is_broken, meaning
from perdure.store.sqlite.file import DatabaseFile
from perdure.store.sqlite.session import SqliteSession
from perdure.store.verb.claim import renew


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
