"""Bring the schema up to date, by one process at a time."""

import psycopg
from psycopg import sql

from perdure.base.errors import SchemaError
from perdure.store.migrations import Migration, migrations, missing
from perdure.store.postgres.connection import Pg

_TABLE = b"""
CREATE TABLE IF NOT EXISTS perdure_migration (
  number bigint NOT NULL PRIMARY KEY, name text NOT NULL, checksum text NOT NULL
)
"""
_THERE = b"SELECT 1 FROM pg_namespace WHERE nspname = %s"
_LOCK = b"SELECT pg_advisory_xact_lock(hashtextextended('perdure schema ' || %s, 0))"


def migrate(pg: Pg, schema: str, known: list[Migration] | None = None) -> None:
    """Apply the missing migrations, each in one transaction, under an advisory lock.

    Raises:
        SchemaError: The database is newer than this code, made by other migrations, or not ours.
    """
    known = migrations("postgres") if known is None else known
    if not missing(known, _applied(pg, schema)):
        return
    with pg.transaction():
        pg.execute(_LOCK, (schema,))
        _make_schema(pg, schema)
        pg.execute(_TABLE)
    for each in known:
        with pg.transaction():
            pg.execute(_LOCK, (schema,))
            pg.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(schema)))
            if each in missing(known, _applied(pg, schema)):
                pg.execute(each.sql.encode(), prepare=False)
                pg.execute(
                    b"INSERT INTO perdure_migration VALUES (%s, %s, %s)",
                    (each.number, each.name, each.checksum),
                )


def pending(pg: Pg, schema: str) -> list[Migration]:
    """Return the migrations that a database lacks; nothing is created or changed.

    Raises:
        SchemaError: As `migrate`.
    """
    return missing(migrations("postgres"), _applied(pg, schema))


def drop(pg: Pg, schema: str) -> None:
    """Delete a schema with everything in it."""
    pg.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def _make_schema(pg: Pg, schema: str) -> None:
    name = sql.Identifier(schema)
    try:
        # Not "if not exists": that needs the privilege to create one even where it exists.
        if not pg.execute(_THERE, (schema,)).fetchone():
            pg.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    except psycopg.errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"the schema {schema!r} does not exist and this user may not create it: have an "
            f"administrator run CREATE SCHEMA {schema} AUTHORIZATION {pg.info.user}"
        ) from error
    pg.execute(sql.SQL("SET LOCAL search_path = {}").format(name))


def _applied(pg: Pg, schema: str) -> dict[int, str]:
    tables = pg.execute(
        b"SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,)
    ).fetchall()
    if ("perdure_migration",) in tables:
        rows = sql.SQL("SELECT number, checksum FROM {}.perdure_migration")
        return dict(pg.execute(rows.format(sql.Identifier(schema))).fetchall())
    if tables:
        raise SchemaError(
            f"the schema {schema!r} holds tables of another program: "
            "give perdure one of its own with ?schema=name"
        )
    return {}
