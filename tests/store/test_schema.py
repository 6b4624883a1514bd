"""Migrations: applied once, as a whole, and only if they fit; what the SQL says of states."""

import asyncio
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure.base.errors import SchemaError
from perdure.jobs.anti_pattern import SIGNS
from perdure.jobs.invariant import INVARIANTS
from perdure.jobs.state import ENDED, JOB_TRANSITIONS, STEP_TRANSITIONS
from perdure.store.migrations import Migration, migrations, missing
from perdure.store.open import open_store
from perdure.store.postgres.connection import Pg, Target
from perdure.store.postgres.schema import migrate as migrate_postgres
from perdure.store.sealing import all_statements
from perdure.store.sqlite.schema import migrate as migrate_sqlite
from perdure.store.statements import Dialect, only
from tests.support.store import new_job, sql

ROOT = Path(__file__).parent.parent.parent
SECOND = Migration(9, "more", "CREATE TABLE more (x integer);\nINSERT INTO more VALUES (1);\n")
BROKEN = Migration(9, "more", "CREATE TABLE more (x integer);\nINSERT INTO nowhere VALUES (1);\n")


def migrate(url: str, *more: Migration) -> None:
    if url.startswith("sqlite"):
        database = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            migrate_sqlite(database, [*migrations("sqlite"), *more])
        finally:
            database.close()
    else:
        target = Target(url)
        with target.connect() as pg:
            migrate_postgres(pg, target.schema, [*migrations("postgres"), *more])


async def opened(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.close()


async def test_a_schema_newer_than_the_code_is_refused(url: str) -> None:
    migrate(url, SECOND)
    with pytest.raises(SchemaError, match="use a newer perdure"):
        await opened(url)


async def test_a_migration_that_was_changed_is_refused(url: str) -> None:
    await opened(url)
    sql(url, "UPDATE perdure_migration SET checksum = 'other'")
    with pytest.raises(SchemaError, match="0001_baseline is not the one"):
        await opened(url)


def test_a_migration_that_fails_leaves_nothing_of_itself(url: str) -> None:
    with pytest.raises((sqlite3.Error, psycopg.Error), match="nowhere"):
        migrate(url, BROKEN)
    known = [(each.number,) for each in migrations("sqlite")]
    assert sql(url, "SELECT number FROM perdure_migration ORDER BY number") == known
    migrate(url, SECOND)
    migrate(url, SECOND)
    assert sql(url, "SELECT x FROM more") == [(1,)]


HALF_WAY = """
import os, signal, sqlite3, sys
from perdure.store.migrations import migrations
from perdure.store.sqlite import schema

class Killed(sqlite3.Connection):
    left = int(sys.argv[2])
    def execute(self, statement, *rest):
        Killed.left -= 1
        if not Killed.left:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(statement, *rest)

schema.migrate(sqlite3.connect(sys.argv[1], factory=Killed, isolation_level=None))
"""


@pytest.mark.parametrize("statements", [2, 5, 12, 30])
async def test_a_migration_killed_half_way_is_done_again(tmp_path: Path, statements: int) -> None:
    path = tmp_path / "jobs.db"
    command = [sys.executable, "-c", HALF_WAY, str(path), str(statements)]
    assert (await asyncio.to_thread(subprocess.run, command, cwd=ROOT, timeout=50)).returncode == -9
    store = open_store(f"sqlite:///{path}")
    await store.open()
    await store.submit([new_job("a")])
    assert await store.job("a") is not None
    await store.close()


async def test_many_may_open_a_new_database_at_once(url: str) -> None:
    stores = [open_store(url) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    await stores[0].submit([new_job("a")])
    assert all([await store.job("a") is not None for store in stores])
    for store in stores:
        await store.close()


async def test_tables_of_another_program_are_left_alone(postgres_url: str) -> None:
    base, _, schema = postgres_url.rpartition("&schema=")
    with psycopg.connect(base, autocommit=True) as pg:
        pg.execute(f"CREATE SCHEMA {schema}".encode())
    sql(postgres_url, "CREATE TABLE other (x integer)")
    with pytest.raises(SchemaError, match="another program"):
        await opened(postgres_url)


# A database remembers the checksum of each migration that made it, and is refused if the file is
# another one. Add a line for a new migration, and never change one.
CHECKSUMS = {
    "postgres/0001_baseline": "1206f8c8b337dfcf147ad7167eb0799d545493607fb8c9c2def1edba24b41905",
    "sqlite/0001_baseline": "06f54bb143cbb0f4663a719a05a6ab6be809c2c7e3c89df7bdc37d589596a736",
}


def test_a_landed_migration_is_never_edited() -> None:
    dialects: tuple[Dialect, ...] = ("postgres", "sqlite")
    found = {
        f"{dialect}/{each.number:04}_{each.name}": each.checksum
        for dialect in dialects
        for each in migrations(dialect)
    }
    assert found == CHECKSUMS, (
        "a migration that has landed must never be edited, since databases that it made would be "
        "refused: undo the edit, and add a new migration (and its line in CHECKSUMS) instead"
    )


def test_nothing_is_missing_twice() -> None:
    known = [Migration(1, "a", "x"), Migration(2, "b", "y")]
    assert missing(known, {}) == known
    assert missing(known, {1: known[0].checksum}) == known[1:]
    assert missing(known, {each.number: each.checksum for each in known}) == []


def pairs(dialect: Dialect, trigger: str) -> set[str]:
    """Read the transitions that a trigger lets pass."""
    made = f"CREATE TRIGGER {trigger} "
    *_, text = (each.sql for each in migrations(dialect) if made in each.sql)
    body = text[text.index(made) :]
    return set(re.findall(r"\b[A-Z_]+>[A-Z_]+", body[: body.index(";")]))


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_database_knows_the_transitions_of_jobs(dialect: Dialect) -> None:
    legal = {f"{old}>{new}" for old, after in JOB_TRANSITIONS.items() for new in after}
    same = {f"{state}>{state}" for state in JOB_TRANSITIONS if state not in ENDED}
    assert pairs(dialect, "job_transition") == legal | same


@pytest.mark.parametrize(
    ("dialect", "stale", "trigger"),
    [
        ("sqlite", "journal_stale", "journal_transition"),
        ("postgres", "journal_1_stale", "journal_2_transition"),
    ],
)
def test_the_database_knows_the_transitions_of_steps(
    dialect: Dialect, stale: str, trigger: str
) -> None:
    legal = {f"{old}>{new}" for old, after in STEP_TRANSITIONS.items() for new in after}
    late = pairs(dialect, stale)
    assert not late & legal
    assert pairs(dialect, trigger) - late - {"SUCCEEDED>SUCCEEDED"} == legal


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_no_mark_of_a_statement_is_left_over(dialect: Dialect) -> None:
    for name, text in all_statements(dialect).items():
        assert not re.search(r"-- (sqlite|postgres)", text), name
        assert "-- if" not in only(text, set()), name
        if dialect == "postgres":
            assert not re.search(r"(?<![:\w]):[a-z]", text), name
        else:
            assert "FOR UPDATE" not in text, name


async def test_a_claim_looks_only_at_what_is_ready(url: str) -> None:
    await opened(url)
    which = "ready = 1 AND queue = 'q' AND kind = 'k'"
    query = f"SELECT job_id FROM lease WHERE {which} ORDER BY priority DESC, tag"
    if url.startswith("sqlite"):
        plan = str(sql(url, f"EXPLAIN QUERY PLAN {query} LIMIT 5"))
        assert "lease_ready" in plan
        assert "TEMP B-TREE" not in plan
    else:
        with Target(url).connect() as pg:
            plan = str(
                pg.execute(f"EXPLAIN {query} LIMIT 5 FOR UPDATE SKIP LOCKED".encode()).fetchall()
            )
        assert "lease_ready" in plan
        assert "Sort" not in plan


def test_no_two_statements_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(_path: Path, _encoding: str) -> str:
        return "-- name: one\nSELECT 1\n"

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(RuntimeError, match="called the same: name: one"):
        all_statements("sqlite")


def scans(dialect_statement: str) -> list[str]:
    """Tell which tables SQLite would read as a whole for a statement."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    migrate_sqlite(database)
    text = dialect_statement.replace("{entries}", f"({', '.join('?' * 18)})")
    names = re.findall(r"(?<![:\w]):([a-z_]+)", text)
    values = dict.fromkeys(names) if names else [None] * text.count("?")
    plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}", values)]
    database.close()
    return [
        line
        for line in plan
        if re.match(r"SCAN (job|lease|journal|event|message|label|output|output_topic)\b", line)
    ]


# A doctor looks at everything, a person at all queues, and no job waits for it. The first key of a
# store asks whether it has payloads, and whether a job is encrypted.
_LOOKS_AT_ALL = {
    "sealed_any",
    "sealed_jobs",
    "some_approvals",
    "queues",
    "unclaimed",
    "ids_like",
    *(each.name for each in (*INVARIANTS, *SIGNS)),
    "effects_without_undo",  # of the doctor, as they are
}


@pytest.mark.parametrize(
    "name", sorted(set(all_statements("sqlite")) - {"counts", "find_jobs"} - _LOOKS_AT_ALL)
)
def test_no_statement_reads_a_whole_table(name: str) -> None:
    assert scans(all_statements("sqlite")[name]) == []


@pytest.mark.parametrize(
    "present", [{"tenant"}, {"state"}, {"name"}, {"tenant", "key"}, {"parent"}]
)
def test_jobs_are_found_by_an_index(present: set[str]) -> None:
    assert scans(only(all_statements("sqlite")["find_jobs"], present)) == []
    assert scans(only(all_statements("sqlite")["find_labelled_jobs"], present | {"labels"})) == []


# Those that count, or whose tables hold little that is open.
_MAY_SCAN = {
    "audit_tenants",
    "counts",
    "counts_of",
    "open_effects",
    "change_notice",
    "forget_commands",
    "api_tokens",
    "delete_old_sign_in_links",
    "delete_sessions_of_person",
    "delete_sessions_of_token",
    "doubtful_effects",
    "ended_per_minute",
    "pending_approvals",
    "gauge_approvals",
    "gauge_effects",
    "gauge_notices",
    "gauge_queues",
    "gauge_states",
    "schema_number",
} | _LOOKS_AT_ALL


def test_no_statement_reads_a_whole_table_that_was_empty_when_it_was_counted(
    postgres_url: str,
) -> None:
    """A queue is empty most of the time, so that is what the planner believes of its tables."""
    target = Target(postgres_url)
    with target.connect() as pg:
        migrate_postgres(pg, target.schema)
        pg.execute(
            b"ANALYZE job, lease, journal, event, message, effect, approval, link, notice, label, "
            b"output, output_topic"
        )
        found = {
            name: whole
            for name, text in all_statements("postgres").items()
            if name not in _MAY_SCAN
            and not re.search(r"\{\w+\}", text)  # parts of which are put in
            and (whole := _whole_scans(pg, text))
        }
    assert found == {}


def _whole_scans(pg: Pg, text: str) -> list[str]:
    """Tell what PostgreSQL would read as a whole for a statement."""
    text = only(text, set())
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    for place, name in enumerate(names, 1):
        text = text.replace(f"%({name})s", f"${place}")
    given = f"({', '.join(['NULL'] * len(names))})" if names else ""
    pg.execute(f"PREPARE it AS {text.replace('%%', '%')}".encode())
    ((plan,),) = pg.execute(f"EXPLAIN (FORMAT JSON) EXECUTE it{given}".encode()).fetchall()
    pg.execute(b"DEALLOCATE it")
    return [
        f"{node['Node Type']} {node['Relation Name']}"
        for node in _nodes(plan[0]["Plan"])
        if "Relation Name" in node
        and node["Relation Name"]
        not in ("schedule", "worker", "last_commit", "definitions", "queue")
        and node["Node Type"] in ("Seq Scan", "Index Scan", "Index Only Scan")
        and "Index Cond" not in node
    ]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)
