"""Renews leases from any thread, over a connection of its own: no queue can hold it up."""

import threading
from collections.abc import Sequence
from typing import Final

import psycopg

from perdure.base.clock import SystemClock
from perdure.store.postgres.commit_watch import Wait
from perdure.store.postgres.connection import Target, translate
from perdure.store.postgres.session import PgSession
from perdure.store.verb.claim import renew

_CLOCK: Final = SystemClock()
_CLOSE_PATIENCE: Final = 2.0


class PgRenewer:
    """Connects when it is first needed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._session: PgSession | None = None
        self._since: float | None = None

    def waiting(self) -> Wait | None:
        """Tell whether a renewal is under way."""
        since = self._since
        return None if since is None else Wait(since, None)

    def renew(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        """Prolong leases; waits for the server. To do it twice does no harm."""
        with self._lock:
            self._since = _CLOCK.monotonic()
            try:
                return self._renew_twice(owner, held, lease)
            finally:
                self._since = None

    def _renew_twice(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        try:
            return self._renew(owner, held, lease)
        except psycopg.OperationalError:  # perhaps only the connection was too old
            self._disconnect()
        try:
            return self._renew(owner, held, lease)
        except psycopg.Error as error:
            self._disconnect()
            raise translate(error, self._target) from error

    def _renew(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        if self._session is None:
            self._session = PgSession(self._target.connect(), set())
        session = self._session
        with session.pg.transaction():
            for setting in self._target.local_settings():
                session.pg.execute(setting)
            session.moment = None
            return renew(session, owner, held, lease)

    def close(self) -> None:
        """Disconnect, unless a renewal is under way that does not end."""
        if self._lock.acquire(timeout=_CLOSE_PATIENCE):
            try:
                self._disconnect()
            finally:
                self._lock.release()

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.pg.close()
            self._session = None
