"""Stores that somebody makes read-only, and writable again."""

import contextlib
import resource
import uuid
from collections.abc import Generator
from pathlib import Path

import psycopg


class WritableAgain:
    """A store that somebody makes read-only, and writable again."""

    url: str

    def close(self) -> None: ...

    @contextlib.contextmanager
    def unwritable(self) -> Generator[None]:
        yield


class SqliteFile(WritableAgain):
    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"

    @contextlib.contextmanager
    def unwritable(self) -> Generator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Database(WritableAgain):
    """A schema of its own, used by a role of its own."""

    def __init__(self, url: str) -> None:
        self._base, _, schema = url.rpartition("&schema=")
        self._role = f"role_{uuid.uuid4().hex}"
        self._execute(f"CREATE ROLE {self._role} LOGIN")
        self._execute(f"CREATE SCHEMA {schema} AUTHORIZATION {self._role}")
        self.url = url.replace("//postgres", f"//{self._role}", 1)

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._base, autocommit=True) as pg:
            pg.execute(statement.encode())

    def _begin_sessions_anew(self) -> None:
        sessions = f"FROM pg_stat_activity WHERE usename = '{self._role}'"
        self._execute(f"SELECT pg_terminate_backend(pid) {sessions}")

    @contextlib.contextmanager
    def unwritable(self) -> Generator[None]:
        self._execute(f"ALTER ROLE {self._role} SET default_transaction_read_only = on")
        self._begin_sessions_anew()
        yield
        self._execute(f"ALTER ROLE {self._role} RESET default_transaction_read_only")
        self._begin_sessions_anew()

    def close(self) -> None:
        self._execute(f"DROP OWNED BY {self._role} CASCADE")
        self._execute(f"DROP ROLE {self._role}")
