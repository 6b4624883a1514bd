"""The database of the user: how a transaction of a step opens it, and runs in it.

What users have is a URL, a function that connects, a pool, or an engine; of sqlite3, psycopg or
SQLAlchemy; sync or async. `opened` makes a connection of any of them, and `UserTransaction` runs
statements in one transaction of it. No driver is imported unless the user has it.

The code is the same for sync and async connections: `done` awaits only what must be awaited. Over a
sync connection nothing ever suspends, so a coroutine runs to its end at once, in any thread.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, cast

from perdure.base.errors import DefinitionError

# How long a connection that we make waits for others to finish their write to an SQLite file.
_SQLITE_PATIENCE: Final = 30.0

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgres://")

# SQLSTATE: a serialization failure, or a deadlock. The transaction was rolled back, to be repeated.
_REPEATED: Final = frozenset({"40001", "40P01"})


class Statement:
    """One SQL statement, in the spelling of each driver; its parameters are written `:name`."""

    def __init__(self, sql: str, *names: str) -> None:
        self.sql = sql
        self.postgres = sql
        for name in names:
            self.postgres = self.postgres.replace(f":{name}", f"%({name})s")


class UserTransaction(Protocol):
    """A transaction of the user's database; it ends with the block of `in_transaction`."""

    async def change(self, statement: Statement, values: Mapping[str, Any]) -> int:
        """Run a statement; return how many rows it has changed."""
        ...

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a query; return its rows."""
        ...

    def is_open(self) -> bool:
        """Whether it is still the transaction that was begun: the user may have ended it."""
        ...


@asynccontextmanager
async def in_transaction(connection: Any) -> AsyncGenerator[UserTransaction, None]:
    """Begin a transaction, commit it at the end of the block, or roll it back after an error."""
    async with _DRIVERS[_kind(connection)](connection) as transaction:
        yield transaction


# Opening


def check_database(database: Any, what: str, *, is_async: bool) -> None:
    """Raise DefinitionError if a function cannot use this database, as far as can be seen."""
    if _kind(database) is not None:
        raise DefinitionError(
            f"{what} needs a database, not one connection: steps that run at once would share its "
            "transaction. Pass a URL, a pool, an engine, or a function that connects"
        )
    text = str(database) if isinstance(database, str | Path) else ""
    is_sqlite = isinstance(database, Path) or text.startswith(_SQLITE)
    if text and not is_sqlite and not text.startswith(_POSTGRES):
        raise DefinitionError(
            f"{what}: {text.partition(':')[0]!r} is not a database that is known here: write "
            "sqlite:///file.db or postgresql://…, or pass a SQLAlchemy engine"
        )
    if is_sqlite and is_async:
        raise DefinitionError(
            f"{what} is `async def`, but sqlite3 blocks: write `def`, which runs in a thread, or "
            "pass an async engine of SQLAlchemy"
        )
    if not text and not any((callable(database), _is_pool(database), _is_engine(database))):
        raise DefinitionError(f"{what}: {database!r} is not a database")


def is_async_database(database: Any) -> bool:
    """Whether a database gives async connections, as far as can be seen without opening one."""
    return type(database).__name__.lower().startswith("async") or iscoroutinefunction(database)


def _is_pool(database: Any) -> bool:
    return hasattr(database, "connection")  # of psycopg


def _is_engine(database: Any) -> bool:
    return hasattr(database, "connect")  # of SQLAlchemy


@asynccontextmanager
async def opened(database: Any, what: str, *, is_async: bool) -> AsyncGenerator[Any, None]:
    """Open a connection for the block.

    Raises:
        DefinitionError: It is async and the function is not, or the other way round.
    """
    made = _connect(database, is_async=is_async)
    if isawaitable(made):
        if not is_async:
            _refuse(made, what, is_async=is_async)
        made = await made
    if _kind(made) is not None:
        try:
            _check_kind(made, what, is_async=is_async)
            yield made
        finally:
            await done(made.close())
    else:  # what gives a connection for a while, such as `pool.connection()`
        async with entered(made) as connection:
            _check_kind(connection, what, is_async=is_async)
            yield connection


def _connect(database: Any, *, is_async: bool) -> Any:
    if isinstance(database, Path):
        return _sqlite(database)
    if isinstance(database, str) and database.startswith(_SQLITE):
        return _sqlite(database.removeprefix(_SQLITE))
    if isinstance(database, str):
        psycopg = _psycopg()
        return (psycopg.AsyncConnection if is_async else psycopg.Connection).connect(database)
    if _is_pool(database):
        return database.connection()
    return database.connect() if _is_engine(database) else database()


def _sqlite(file: Path | str) -> Any:
    return import_module("sqlite3").connect(file, timeout=_SQLITE_PATIENCE)


def _psycopg() -> Any:
    try:
        return import_module("psycopg")
    except ModuleNotFoundError as missing:
        raise DefinitionError("postgresql:// needs psycopg: pip install perdure[postgres]") from (
            missing
        )


def _check_kind(connection: Any, what: str, *, is_async: bool) -> None:
    if _kind(connection) is None:
        raise DefinitionError(
            f"{what}: {type(connection).__qualname__} is not a connection of sqlite3, psycopg or "
            "SQLAlchemy"
        )
    if type(connection).__name__.startswith("Async") is not is_async:
        _refuse(connection, what, is_async=is_async)


def _refuse(connection: Any, what: str, *, is_async: bool) -> NoReturn:
    if iscoroutine(connection):
        connection.close()
    raise DefinitionError(
        f"{what} is `async def`, but the connections of its database block: write `def`"
        if is_async
        else f"{what} is `def`, but the connections of its database are async: write `async def`"
    )


# Sync and async alike


async def done(value: Any) -> Any:
    """Return a value, awaited if it must be."""
    return await value if isawaitable(value) else value


@asynccontextmanager
async def entered(manager: Any) -> AsyncGenerator[Any, None]:
    """Enter a context manager, sync or async."""
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value


# The drivers


def _kind(connection: Any) -> str | None:
    """Return the driver of a connection; None if it is none."""
    for each in type(connection).__mro__:
        package, name = each.__module__.partition(".")[0], each.__name__
        if name in _CONNECTIONS.get(package, ()):
            return package
    return None


# By name: no driver is imported only to see that a connection is not one of it.
_CONNECTIONS: Final = {
    "sqlite3": ("Connection",),
    "psycopg": ("Connection", "AsyncConnection"),
    "sqlalchemy": ("Connection", "AsyncConnection", "Session", "AsyncSession"),
}


class _Sqlite:
    """A transaction of sqlite3, whatever the mode of the connection says about transactions."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def change(self, statement: Statement, values: Mapping[str, Any]) -> int:
        return self._cursor(statement.sql, values).rowcount

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return self._cursor(statement.sql, values).fetchall()

    def _cursor(self, sql: str, values: Mapping[str, Any]) -> Any:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor.execute(sql, dict(values))

    def is_open(self) -> bool:
        return self._connection.in_transaction


@asynccontextmanager
async def _of_sqlite(connection: Any) -> AsyncGenerator[UserTransaction, None]:
    if connection.in_transaction:  # of a connection that always has one
        connection.execute("COMMIT")
    # From the first statement on nobody else writes: what is read here stays true.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield _Sqlite(connection)
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    if connection.in_transaction:
        connection.execute("COMMIT")


class _Psycopg:
    """A transaction of psycopg."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def change(self, statement: Statement, values: Mapping[str, Any]) -> int:
        return (await self._cursor(statement, values)).rowcount

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return await done((await self._cursor(statement, values)).fetchall())

    async def _cursor(self, statement: Statement, values: Mapping[str, Any]) -> Any:
        # Of our own: that of the user may have other rows, or another spelling of parameters.
        psycopg = import_module("psycopg")
        is_async = isinstance(self._connection, psycopg.AsyncConnection)
        cursors = psycopg.AsyncCursor if is_async else psycopg.Cursor
        cursor = cursors(self._connection, row_factory=import_module("psycopg.rows").tuple_row)
        await done(cursor.execute(statement.postgres.encode(), values))
        return cursor

    def is_open(self) -> bool:
        return not self.is_idle()

    def is_idle(self) -> bool:
        """Whether the connection is in no transaction."""
        return self._connection.info.transaction_status.name == "IDLE"


@asynccontextmanager
async def _of_psycopg(connection: Any) -> AsyncGenerator[UserTransaction, None]:
    transaction = _Psycopg(connection)
    if not transaction.is_idle():  # else ours would be a savepoint of one that nobody commits
        await done(connection.commit())
    async with entered(connection.transaction()):
        yield transaction


class _SqlAlchemy:
    """A transaction of a connection or session of SQLAlchemy."""

    def __init__(self, connection: Any, transaction: Any) -> None:
        self._connection = connection
        self._transaction = transaction
        self._text = cast("Callable[[str], Any]", import_module("sqlalchemy").text)

    async def change(self, statement: Statement, values: Mapping[str, Any]) -> int:
        return (await self._execute(statement, values)).rowcount

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in (await self._execute(statement, values)).all()]

    def _execute(self, statement: Statement, values: Mapping[str, Any]) -> Awaitable[Any]:
        return done(self._connection.execute(self._text(statement.sql), dict(values)))

    def is_open(self) -> bool:
        return self._transaction.is_active


@asynccontextmanager
async def _of_sqlalchemy(connection: Any) -> AsyncGenerator[UserTransaction, None]:
    begun = connection.begin()
    async with entered(begun):
        yield _SqlAlchemy(connection, begun)


_DRIVERS: Final[dict[str | None, Callable[[Any], Any]]] = {
    "sqlite3": _of_sqlite,
    "psycopg": _of_psycopg,
    "sqlalchemy": _of_sqlalchemy,
}


# What errors say


def is_repeatable(error: BaseException) -> bool:
    """Whether the database rolled the transaction back because of others: it may be repeated."""
    return _sqlstate(error) in _REPEATED


def lacks_table(error: BaseException, table: str) -> bool:
    """Whether the database has no such table."""
    return table in str(error) and (
        _sqlstate(error) == "42P01" or f"no such table: {table}" in str(error)
    )


def exists_already(error: BaseException) -> bool:
    """Whether somebody else has just created the same table."""
    # Which of the three PostgreSQL reports depends on how far the other one is: the table, its row
    # type, or the catalog row that both insert.
    return _sqlstate(error) in ("42P07", "42710", "23505")


def _sqlstate(error: BaseException) -> str | None:
    driver_error = getattr(error, "orig", None) or error  # SQLAlchemy wraps it
    return getattr(driver_error, "sqlstate", None)
