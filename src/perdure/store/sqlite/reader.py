"""The connection that only reads: a snapshot a verb, beside whatever is being written."""

import sqlite3
from collections.abc import Sequence

from perdure.base.clock import Clock
from perdure.store.request import Request
from perdure.store.sqlite.connection import connect, is_broken, meaning
from perdure.store.sqlite.file import DatabaseFile
from perdure.store.sqlite.session import SqliteSession


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
