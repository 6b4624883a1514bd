"""What is append-only stays so, whichever statement tries to replace a row of it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from perdure.jobs.audit import AuditDraft
from perdure.jobs.effect import Effect, Place
from perdure.store.open import open_store
from perdure.store.store import Store
from tests.support.store import sql, started, write_of

# Where the database refuses to delete a row: the guard of each must also know replacements.
KEPT = "SELECT tbl_name FROM sqlite_schema WHERE type = 'trigger' AND sql LIKE '%append-only%'"
TABLES = ("audit", "event", "effect")


async def fill(store: Store) -> None:
    """Put a row into every table that is append-only."""
    claim = await started(store)
    effect = Effect(
        job_id="a",
        no=0,
        tenant="acme",
        key="k",
        place=Place("pay#1", 1),
        kind="payment",
        target="card",
        called_at=1000.0,
    )
    await store.write(write_of(claim, effects=(effect,)))
    await store.audit(AuditDraft(actor="ann", action="jobs.cancel", tenant="acme"))


CHANGE = {
    "audit": "(tenant, no) DO UPDATE SET line = 'forged'",
    "event": "(no) DO UPDATE SET actor = 'forged'",
    "effect": "(job_id, no) DO UPDATE SET step = 'forged'",
}


def replaced(url: str, table: str) -> str:
    """Return a statement that writes a row of a table again."""
    same = f"SELECT * FROM {table} LIMIT 1"
    if url.startswith("sqlite"):
        return f"INSERT OR REPLACE INTO {table} {same}"
    return f"INSERT INTO {table} OVERRIDING SYSTEM VALUE {same} ON CONFLICT {CHANGE[table]}"


@pytest.mark.parametrize("table", TABLES)
async def test_a_row_that_is_append_only_cannot_be_replaced(
    store: Store, url: str, table: str
) -> None:
    await fill(store)
    before = sql(url, f"SELECT * FROM {table}")
    assert before
    with pytest.raises(Exception, match=r"append-only|belongs to another"):
        sql(url, replaced(url, table))
    assert sql(url, f"SELECT * FROM {table}") == before


@pytest.mark.parametrize("recursive", [0, 1])
async def test_every_table_that_is_append_only_refuses_a_replacement_whatever_the_connection_sets(
    tmp_path: Path, recursive: int
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    store = open_store(url)
    await store.open()
    await fill(store)
    await store.close()
    with closing(sqlite3.connect(urlsplit(url).path.removeprefix("/"))) as database:
        database.execute(f"PRAGMA recursive_triggers = {recursive}")
        found = {name for (name,) in database.execute(KEPT)}
        assert found == set(TABLES)  # a new one gets a row in `fill`
        for table in sorted(found):
            for way in ("INSERT OR REPLACE", "REPLACE"):
                with pytest.raises(sqlite3.DatabaseError, match="append-only"):
                    database.execute(f"{way} INTO {table} SELECT * FROM {table} LIMIT 1")


@pytest.mark.parametrize("no", [0, -1, -(2**63)])
async def test_entries_of_the_audit_log_are_numbered_from_one(
    store: Store, url: str, no: int
) -> None:
    await fill(store)
    with pytest.raises(Exception, match=r"(?i)check"):
        sql(url, f"INSERT INTO audit SELECT tenant, {no}, line, hash FROM audit")
