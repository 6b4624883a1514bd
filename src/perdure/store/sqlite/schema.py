"""Bring the schema of a file up to date, and free its leases after a restart of the machine."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from perdure.base.errors import SchemaError
from perdure.store.migrations import Migration, migrations, missing
from perdure.store.sqlite.connection import SqliteSession

_TABLE = """
CREATE TABLE IF NOT EXISTS perdure_migration (
  number INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL
) STRICT
"""


def migrate(database: sqlite3.Connection, known: list[Migration] | None = None) -> None:
    """Apply the missing migrations, each in one transaction.

    The write lock of the file keeps processes apart: the second one finds it done.

    Raises:
        SchemaError: The file is newer than this code, was made by other migrations, or is not ours.
    """
    known = migrations("sqlite") if known is None else known
    for each in missing(known, _applied(database)):
        database.execute("BEGIN IMMEDIATE")
        try:
            _apply(database, each)
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise


def pending(path: Path) -> list[Migration]:
    """Return the migrations that a file lacks; nothing is created or changed.

    Raises:
        SchemaError: As `migrate`.
    """
    known = migrations("sqlite")
    if not path.exists():
        return known
    with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as it:
        return missing(known, _applied(it))


def _applied(database: sqlite3.Connection) -> dict[int, str]:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
    if "perdure_migration" in tables:
        return dict(database.execute("SELECT number, checksum FROM perdure_migration"))
    if tables:
        raise SchemaError(
            "the file holds tables of another program: give perdure a file of its own"
        )
    return {}


def _apply(database: sqlite3.Connection, migration: Migration) -> None:
    database.execute(_TABLE)
    done = database.execute(
        "SELECT 1 FROM perdure_migration WHERE number = ?", (migration.number,)
    ).fetchone()
    if done:  # another process was faster
        return
    for statement in _statements(migration.sql):
        database.execute(statement)
    database.execute(
        "INSERT INTO perdure_migration VALUES (?, ?, ?)",
        (migration.number, migration.name, migration.checksum),
    )


def _statements(sql: str) -> Iterator[str]:
    """Yield the statements; SQLite says where one is complete, since triggers hold semicolons."""
    lines: list[str] = []
    for line in sql.splitlines(keepends=True):
        lines.append(line)
        if sqlite3.complete_statement("".join(lines)):
            yield "".join(lines)
            lines.clear()


def is_another_boot(session: SqliteSession, boot: str) -> bool:
    """Whether the file was last used before this start of the machine, or never."""
    found = session.one("boot")
    return found is None or found[0] != boot


def free_leases_after_boot(session: SqliteSession, boot: str) -> None:
    """Free all jobs if the machine was restarted since the file was last used.

    Their owners are dead, and the clock of the leases counts from the start of the machine.
    """
    found = session.one("boot")
    if found is not None and found[0] == boot:
        return
    if found is not None:
        session.run("free_all", now=session.now())
        session.run("forget_workers")
    session.run("set_boot", boot=boot)
