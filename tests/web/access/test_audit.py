"""The audit log: every change is in it, in one transaction with it, and tampering shows."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing

import psycopg
import pytest
from msgspec.structs import replace

from perdure import App
from perdure.base.errors import IllegalTransition
from perdure.jobs.audit import AuditCheck, AuditDraft, AuditHead, AuditRow, chained
from perdure.store.postgres.connection import Target
from perdure.web.access.audit_trail import verify_audit
from perdure.web.access.principal import Role
from tests.support.tenants import Seeded, door, of, seeded, tenant_app

DRAFT = AuditDraft(actor="ann", action="jobs.cancel", tenant="acme", target="j1")


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[App, None]:
    app = tenant_app(url)
    try:
        await app.store()
        yield app
    finally:
        await app.close()


def chain(length: int, tenant: str = "acme") -> list[AuditRow]:
    rows: list[AuditRow] = []
    for no in range(length):
        head = (rows[-1].no, rows[-1].hash) if rows else None
        rows.append(chained(replace(DRAFT, target=f"j{no}"), tenant, head, 1.5 + no))
    return rows


def broken_at(rows: list[AuditRow], expect: tuple[int, str] | None = None) -> int | None:
    check = AuditCheck("acme", expect)
    check.add(rows)
    check.end()
    return None if check.broken is None else check.broken.no


def test_a_whole_chain_is_whole() -> None:
    assert broken_at(chain(5)) is None


def test_any_flipped_byte_of_any_entry_is_found() -> None:
    rows = chain(4)
    for at, row in enumerate(rows):
        for place in range(len(row.line)):
            other = chr(ord(row.line[place]) ^ 1)
            line = row.line[:place] + other + row.line[place + 1 :]
            changed = [*rows[:at], AuditRow(row.tenant, row.no, line, row.hash), *rows[at + 1 :]]
            assert broken_at(changed) == at + 1


def test_a_removed_an_added_and_an_exchanged_entry_are_found() -> None:
    rows, others = chain(4), chain(4, "globex")
    assert broken_at([rows[0], *rows[2:]]) == 2
    assert broken_at([rows[0], rows[2], rows[1], rows[3]]) == 2
    assert broken_at([rows[0], others[1], *rows[2:]]) == 2
    forged = chained(DRAFT, "acme", (1, "f" * 64), 2.0)
    assert broken_at([rows[0], forged, *rows[2:]]) == 2


def test_a_rewritten_or_shortened_chain_is_found_by_a_head_that_was_noted() -> None:
    rows = chain(4)
    noted = (4, rows[3].hash)
    assert broken_at(rows, noted) is None
    assert broken_at(rows[:3]) is None
    assert broken_at(rows[:3], noted) == 4
    again = [*rows[:3], chained(DRAFT, "acme", (3, rows[2].hash), 9.0)]
    assert broken_at(again) is None
    assert broken_at(again, noted) == 4


async def test_every_change_of_a_principal_is_in_the_log_of_its_tenant(url: str) -> None:
    async with opened(url) as app:
        mine = await seeded(app)
        store = door(app, of("acme", Role.OPERATOR, Role.APPROVER, credential="t1", address="::1"))
        await store.command(mine["acme"].job, "pause", reason="lunch")
        await store.command(mine["acme"].job, "resume")
        made = await store.submit("business", {"text": "x"})
        await store.send(mine["acme"].job, "note", "secret payload")
        rows = await app.verbs.audit_rows("acme")
        entries = [row.entry for row in rows]
        assert [each.action for each in entries] == [
            "jobs.pause", "jobs.resume", "jobs.submit", "jobs.send",
        ]  # fmt: skip
        assert entries[0].data["reason"] == "lunch"
        assert {each.actor for each in entries} == {"ann@acme"}
        assert (entries[2].target, entries[0].credential, entries[0].address) == (
            made, "t1", "::1",
        )  # fmt: skip
        assert "secret payload" not in "".join(row.line for row in rows)
        assert await app.verbs.audit_tenants() == ["acme"]


async def test_what_whoever_runs_it_all_does_to_a_job_is_in_the_log_of_its_tenant(
    url: str,
) -> None:
    async with opened(url) as app:
        mine = await seeded(app)
        store = door(app, of(None, Role.ADMIN))
        await store.command(mine["globex"].job, "pause")
        await store.pause_queue("default", reason="maintenance")
        assert await app.verbs.audit_tenants() == ["", "globex"]


async def test_a_refused_change_and_a_dry_run_leave_nothing_behind(url: str) -> None:
    async with opened(url) as app:
        mine = await seeded(app)
        store = door(app, of("acme", Role.OPERATOR))
        with pytest.raises(IllegalTransition):
            await store.command(mine["acme"].job, "resume")
        found = await store.jobs()
        assert found
        assert await app.verbs.audit_tenants() == []


async def test_concurrent_writers_keep_the_chain_whole(url: str) -> None:
    async with opened(url) as first, opened(url) as second, opened(url) as third:
        writers = [first, second, third]
        drafts = [replace(DRAFT, target=f"{no}") for no in range(30)]
        await asyncio.gather(
            *(app.verbs.audit(draft) for draft in drafts for app in writers),
        )
        report = await verify_audit(first.verbs)
        assert report.ok
        assert report.entries == 90


async def test_audited_changes_of_many_callers_neither_deadlock_nor_break_the_chain(
    url: str,
) -> None:
    async with opened(url) as first, opened(url) as second:
        stores = [door(app, of(t, Role.OPERATOR)) for app in (first, second) for t in ("a", "b")]
        await asyncio.gather(
            *(each.submit("business", {"text": f"{no}"}) for no in range(10) for each in stores)
        )
        report = await verify_audit(first.verbs)
        assert report.ok
        assert report.entries == 40


async def test_audited_changes_at_once_share_a_commit(postgres_url: str) -> None:
    async with opened(postgres_url) as app:
        store = door(app, of("acme", Role.OPERATOR))
        await asyncio.gather(*(store.submit("business", {"text": f"{no}"}) for no in range(20)))
        with Target(postgres_url).connect() as pg:
            found = pg.execute(b"SELECT sum(no) FROM last_commit").fetchone()
        assert found is not None
        assert found[0] < 10
        assert (await verify_audit(app.verbs)).entries == 20


def run_sql(url: str, statement: str) -> None:
    """Run a statement on the tables, as somebody with the password of the database could."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database, database:
            database.executescript(statement)
        database.close()
        return
    with Target(url).connect() as pg:
        pg.execute(statement.encode(), prepare=False)


DROP = {
    "sqlite": "DROP TRIGGER audit_unchanged; DROP TRIGGER audit_kept;",
    "postgresql": "DROP TRIGGER audit_unchanged ON audit; DROP TRIGGER audit_kept ON audit;",
}


@pytest.mark.parametrize(
    "statement", ["UPDATE audit SET line = line || ' '", "DELETE FROM audit WHERE no = 2"]
)
async def test_the_database_refuses_to_change_the_log_and_a_check_finds_it_if_it_did_not(
    url: str, statement: str
) -> None:
    async with opened(url) as app:
        for no in range(4):
            await app.verbs.audit(replace(DRAFT, target=f"{no}"))
        with pytest.raises((sqlite3.DatabaseError, psycopg.Error), match="append-only"):
            run_sql(url, statement)
        assert (await verify_audit(app.verbs)).ok
        run_sql(
            url,
            DROP[url.partition(":")[0]]
            + statement.replace(
                "UPDATE audit SET line = line || ' '",
                "UPDATE audit SET line = replace(line, 'ann', 'eve') WHERE no = 2",
            ),
        )
        report = await verify_audit(app.verbs)
        assert [(each.tenant, each.no) for each in report.broken] == [("acme", 2)]


UNCHECKED = {
    "sqlite": "PRAGMA ignore_check_constraints = 1;",
    "postgresql": "ALTER TABLE audit DROP CONSTRAINT audit_no_check;",
}


@pytest.mark.parametrize("no", [0, -1, -(2**63), 5, 2**62])
@pytest.mark.parametrize("tenant", ["acme", "nobody", ""])
async def test_a_check_accounts_for_every_row_whatever_its_number_and_tenant(
    url: str, no: int, tenant: str
) -> None:
    async with opened(url) as app:
        for target in range(3):
            await app.verbs.audit(replace(DRAFT, target=f"{target}"))
        assert (await verify_audit(app.verbs)).ok
        forged = chained(DRAFT, tenant, (no - 1, "0" * 64), 1.0)
        run_sql(
            url,
            UNCHECKED[url.partition(":")[0]] + f"INSERT INTO audit (tenant, no, line, hash) "
            f"VALUES ('{tenant}', {no}, '{forged.line}', '{forged.hash}')",
        )
        report = await verify_audit(app.verbs)
        assert [each.tenant for each in report.broken] == [tenant]


async def test_a_cut_off_end_is_found_by_its_noted_head(url: str) -> None:
    async with opened(url) as app:
        for no in range(3):
            await app.verbs.audit(replace(DRAFT, target=f"{no}"))
        (head,) = (await verify_audit(app.verbs)).heads
        run_sql(url, DROP[url.partition(":")[0]] + "DELETE FROM audit WHERE no = 3")
        assert (await verify_audit(app.verbs)).ok
        assert not (await verify_audit(app.verbs, expect=head)).ok
        elsewhere = AuditHead(tenant="gone", no=1, hash="0" * 64)
        assert not (await verify_audit(app.verbs, expect=elsewhere)).ok


async def test_the_log_outlives_the_jobs_that_it_is_about(url: str) -> None:
    async with opened(url) as app:
        mine: dict[str, Seeded] = await seeded(app)
        await door(app, of("acme", Role.OPERATOR)).command(mine["acme"].job, "pause")
        for each in mine.values():
            job = await app.handle(each.job)
            await job.cancel()
        async with app.running():
            for each in mine.values():
                await (await app.handle(each.job)).wait()
        while await app.verbs.prune(await app.verbs.now() + 1, 100):
            pass
        assert await app.verbs.job(mine["acme"].job) is None
        assert [row.entry.target for row in await app.verbs.audit_rows("acme")] == [
            mine["acme"].job
        ]
