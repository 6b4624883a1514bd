"""The connection that reads and listens: it never waits for a lock, and is nearly always idle.

**Reading.** A query is repeated when its connection was lost: that does no harm.

**Listening.** The server notifies of changes by other processes: only hints, never relied upon. The
thread sleeps on the socket, so a notification wakes it at once; what arrives during a query is told
at its end. If the connection is lost, it is opened again after a while, and the watchers are told
once when it listens again: whatever was missed meanwhile is found by then.

Behind a pooler in transaction mode nobody can listen, unless `listen_url` names the server itself:
this connection then goes there.
"""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg import errors

from perdure.base.encryption import Encryption
from perdure.base.errors import QueryTooSlow, StoreError
from perdure.base.retry import Retry
from perdure.store.db_thread import Connection, StoreRequest
from perdure.store.postgres.connection import (
    Pg,
    PgSession,
    Target,
    is_lost,
    open_patiently,
    translate,
    with_keys,
)

_READ_ATTEMPTS: Final = 3
_RECONNECT: Final = Retry(attempts=1_000_000, initial_delay="100ms", max_delay="5s", jitter=0.5)


class PgReader(Connection):
    """A connection for queries and notifications."""

    def __init__(
        self,
        target: Target,
        changed: Callable[[], None],
        output_changed: Callable[[], None],
        keys: Encryption | None = None,
        *,
        shows_locked: bool = False,
    ) -> None:
        """Describe it; nothing is opened yet.

        Args:
            target: Where to connect.
            changed: Called when another process has notified of a change.
            output_changed: Called when jobs of another process have only emitted something.
            keys: The keys that decrypt payloads.
            shows_locked: Show a text in the place of a payload for which there is no key.
        """
        self._keys, self._shows_locked = keys, shows_locked
        self._target = target
        self._changed = changed
        self._output_changed = output_changed
        self._session: PgSession | None = None
        self._is_listening = False
        self._failures = 0
        # The socket under a number that stays the same when the connection is opened again.
        self._descriptor: int | None = None
        self._nothing: tuple[int, int] | None = None  # a pipe that nobody writes to

    def connect(self) -> int | None:
        open_patiently(self._open, self._target)
        return self._descriptor if self._target.can_listen else None

    def disconnect(self) -> None:
        self._close()
        for each in (self._descriptor, *(self._nothing or ())):
            if each is not None:
                os.close(each)
        self._descriptor = self._nothing = None

    def _open(self) -> PgSession:
        pg = self._target.connect()
        pg.add_notify_handler(self._notified)
        try:
            with self._with_settings(pg):
                plain = PgSession(pg, set())
                self._session = with_keys(plain, self._keys, shows_locked=self._shows_locked)
        except BaseException:
            pg.close()
            raise
        if self._descriptor is None:
            self._descriptor = os.dup(pg.fileno())
        else:
            os.dup2(pg.fileno(), self._descriptor, inheritable=False)
        return self._session

    def _close(self) -> None:
        self._is_listening = False
        if self._session is not None:
            self._session.pg.close()
            self._session = None

    def _connected(self) -> PgSession:
        if self._session is None or self._session.pg.closed:
            self._close()
            return self._open()
        return self._session

    # Reading

    def execute(self, requests: Sequence[StoreRequest]) -> None:
        for request in requests:
            try:
                self._answer(request)
            except psycopg.Error as error:
                request.error = translate(error, self._target)
                request.error.__cause__ = error
            except Exception as error:  # noqa: BLE001  whoever asked gets it
                request.error = error

    def _answer(self, request: StoreRequest) -> None:
        if request.call is None:
            return
        for left in reversed(range(_READ_ATTEMPTS)):
            try:
                session = self._connected()
                session.moment = None
                with self._with_settings(session.pg):
                    request.result = request.call(session)
            except psycopg.Error as error:
                known = self._session  # None: it was lost as soon as it was opened
                if not left or (known is not None and not is_lost(error, known.pg)):
                    raise
                self._close()
            else:
                return

    @contextmanager
    def _with_settings(self, pg: Pg) -> Generator[None]:
        """Apply our settings; a session of its own has them already."""
        if not self._target.pooled:
            yield
            return
        with pg.transaction():
            for setting in self._target.local_settings():
                pg.execute(setting)
            yield

    # Listening

    def idle(self) -> float | None:
        """Listen, or read what was notified; return after how many seconds to try again."""
        if not self._target.can_listen:
            return None
        try:
            self._listen()
        except (StoreError, psycopg.Error):
            self._failures += 1
            self._close()
            self._silence()
            return _RECONNECT.delay(self._failures)
        return None

    def _listen(self) -> None:
        pg = self._connected().pg
        if self._is_listening:
            pg.pgconn.consume_input()
            while notice := pg.pgconn.notifies():
                self._tell(notice.extra.decode())
            return
        pg.execute(b"LISTEN perdure")
        self._is_listening, self._failures = True, 0
        self._changed()  # whatever happened while nobody listened

    def _notified(self, notice: psycopg.Notify) -> None:
        """Take what arrived during a query."""
        self._tell(notice.payload)

    def _tell(self, schema: str) -> None:
        if schema == self._target.schema:
            self._changed()
        elif schema == self._target.output_notice:
            self._output_changed()

    def _silence(self) -> None:
        """Watch nothing: the socket of a lost connection would always be readable."""
        if self._descriptor is not None:
            self._nothing = self._nothing or os.pipe()
            os.dup2(self._nothing[0], self._descriptor, inheritable=False)


class PgSearcher(PgReader):
    """A connection for searches: it is opened by the first, and the server gives up slow ones."""

    def __init__(
        self, target: Target, keys: Encryption | None = None, *, shows_locked: bool = False
    ) -> None:
        super().__init__(target, _ignore, _ignore, keys, shows_locked=shows_locked)
        self._seconds = 0.0

    def connect(self) -> int | None:
        return None  # until there is something to search

    def idle(self) -> float | None:
        return None  # others listen

    def _answer(self, request: StoreRequest) -> None:
        if request.is_given_up:
            return
        self._seconds = request.seconds or 0.0
        try:
            super()._answer(request)
        except errors.QueryCanceled as error:
            raise QueryTooSlow(self._seconds) from error

    @contextmanager
    def _with_settings(self, pg: Pg) -> Generator[None]:
        """Apply our settings, and let no statement take longer than the search may."""
        with pg.transaction():
            for setting in self._target.local_settings():
                pg.execute(setting)
            # To the server, 0 would be no limit.
            milliseconds = max(1, round(1000 * self._seconds))
            pg.execute(b"SET LOCAL statement_timeout = %d" % milliseconds)
            yield


def _ignore() -> None:
    """Do nothing: who searches does not listen."""
