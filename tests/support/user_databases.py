"""Databases of users, of each kind that a transaction takes, with one table: `ledger(line)`."""

import asyncio
import sqlite3
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
import psycopg_pool
import sqlalchemy
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

SYNC: Final = (
    *("sqlite url", "sqlite path", "sqlite function", "sqlite engine", "sqlite sessions"),
    *("postgres url", "postgres function", "postgres pool", "postgres engine"),
    "postgres sessions",
)
ASYNC: Final = (
    *("async url", "async function", "async pool", "async engine", "async sessions"),
    "async sqlite engine",
)
KINDS: Final = (*SYNC, *ASYNC)

_LEDGER: Final = "CREATE TABLE ledger (line text)"


class UserDatabase:
    """A database, and what is in its ledger."""

    def __init__(self, kind: str, address: str, *, new: bool = True) -> None:
        self.kind = kind
        self.address = address  # a path, or a URL
        self.is_async = kind in ASYNC
        self._made: list[Any] = []
        if new:
            with self._connected() as connection:
                connection.execute(_LEDGER)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file."""
        return "sqlite" in self.kind

    def database(self) -> Any:
        """Make what a transaction is given."""
        made = _MAKERS[self.kind](self.address)
        self._made.append(made)
        return made

    def lines(self) -> list[str]:
        """Return what is committed."""
        with self._connected() as connection:
            return [line for (line,) in connection.execute("SELECT line FROM ledger ORDER BY line")]

    def recorded(self) -> list[str]:
        """Return the steps whose results are recorded."""
        with self._connected() as connection:
            found = connection.execute("SELECT step FROM perdure_transaction ORDER BY step")
            return [step for (step,) in found]

    async def close(self) -> None:
        """Close pools and engines."""
        for each in self._made:
            if hasattr(each, "dispose"):
                await _done(each.dispose())
            elif self.kind.endswith("pool"):
                await _done(each.close())
            elif self.kind.endswith("sessions"):
                await _done(each.kw["bind"].dispose())

    @contextmanager
    def _connected(self) -> Generator[Any]:
        if self.is_sqlite:
            connection: Any = sqlite3.connect(self.address, timeout=30, isolation_level=None)
        else:
            connection = psycopg.connect(self.address, autocommit=True)
        try:
            yield connection
        finally:
            connection.close()


async def _done(value: Any) -> Any:
    return await value if asyncio.iscoroutine(value) else value


def write(connection: Any, line: str) -> Any:
    """Write a line with a connection of any kind; await what an async one returns."""
    if isinstance(connection, sqlite3.Connection):
        return connection.execute("INSERT INTO ledger VALUES (?)", (line,))
    if type(connection).__module__.startswith("psycopg"):
        return connection.execute("INSERT INTO ledger VALUES (%s)", (line,))
    statement = sqlalchemy.text("INSERT INTO ledger VALUES (:line)")
    return connection.execute(statement, {"line": line})


def address_of(kind: str, folder: Path, server: Callable[[], str]) -> str:
    """Return where a database of a kind is: a new file, or a new schema of the server."""
    if "sqlite" in kind:
        return str(folder / "user.db")
    schema = f"user_{uuid.uuid4().hex}"
    with psycopg.connect(server(), autocommit=True) as pg:
        pg.execute(f"CREATE SCHEMA {schema}".encode())
    mark = "&" if "?" in server() else "?"
    return f"{server()}{mark}options={quote(f'-csearch_path={schema}')}"


def _engine_url(address: str, driver: str) -> Any:
    if "://" not in address:
        return f"{driver}:///{address}"
    return sqlalchemy.make_url(address.replace("postgresql://", "postgresql+psycopg://", 1))


_MAKERS: Final[dict[str, Callable[[str], Any]]] = {
    "sqlite url": "sqlite:///{}".format,
    "sqlite path": Path,
    "sqlite function": lambda address: lambda: sqlite3.connect(address, timeout=30),
    "sqlite engine": lambda address: sqlalchemy.create_engine(_engine_url(address, "sqlite")),
    "sqlite sessions": lambda address: sessionmaker(
        sqlalchemy.create_engine(_engine_url(address, "sqlite"))
    ),
    "postgres url": str,
    "postgres function": lambda address: lambda: psycopg.connect(address),
    "postgres pool": lambda address: psycopg_pool.ConnectionPool(
        address, min_size=1, max_size=2, open=True
    ),
    "postgres engine": lambda address: sqlalchemy.create_engine(_engine_url(address, "")),
    "postgres sessions": lambda address: sessionmaker(
        sqlalchemy.create_engine(_engine_url(address, ""))
    ),
    "async url": str,
    "async function": lambda address: lambda: psycopg.AsyncConnection.connect(address),
    "async pool": lambda address: psycopg_pool.AsyncConnectionPool(
        address, min_size=1, max_size=1, open=False
    ),
    "async engine": lambda address: create_async_engine(_engine_url(address, "")),
    "async sessions": lambda address: async_sessionmaker(
        create_async_engine(_engine_url(address, ""))
    ),
    "async sqlite engine": lambda address: create_async_engine(
        _engine_url(address, "sqlite+aiosqlite")
    ),
}
