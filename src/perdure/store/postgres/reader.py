"""The connection that only reads."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import psycopg

from perdure.store.postgres.connection import Pg, Target, is_lost, translate
from perdure.store.postgres.session import PgSession
from perdure.store.request import Request

_TRIES = 3


class PgReader:
    """Answers questions."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._session: PgSession | None = None

    def connect(self) -> int | None:
        self._session = PgSession(self._target.connect(), set())
        return None

    def disconnect(self) -> None:
        if self._session is not None:
            self._session.pg.close()

    def afterwards(self) -> None:
        """Nothing is left to do."""

    def idle(self) -> float | None:
        return None

    def execute(self, requests: Sequence[Request]) -> None:
        for request in requests:
            try:
                self._answer(request)
            except psycopg.Error as error:
                request.error = translate(error, self._target)
                request.error.__cause__ = error
            except Exception as error:  # noqa: BLE001  whoever asked gets it
                request.error = error

    def _answer(self, request: Request) -> None:
        if request.call is None:
            return
        for left in reversed(range(_TRIES)):
            session = self._ready()
            try:
                session.moment = None
                with self._settings_of(session.pg):
                    request.result = request.call(session)
            except psycopg.Error as error:
                # To ask again does no harm.
                if not left or not is_lost(error, session.pg):
                    raise
                session.pg.close()
            else:
                return

    @contextmanager
    def _settings_of(self, pg: Pg) -> Generator[None]:
        """Have our settings. A session has them already, so each statement may stand alone."""
        if not self._target.pooled:
            yield
            return
        with pg.transaction():
            for setting in self._target.local_settings():
                pg.execute(setting)
            yield

    def _ready(self) -> PgSession:
        if self._session is None or self._session.pg.closed:
            self.connect()
        assert self._session is not None
        return self._session
