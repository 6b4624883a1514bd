"""Row-level security on a real server: a role that is not the owner sees one tenant."""

import uuid
from collections.abc import Generator
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

from perdure.base.errors import StoreError
from perdure.jobs.state import JobState
from perdure.store.open import limit_to_tenant
from perdure.store.postgres.connection import Target
from tests.support.tenants import seeded, tenant_app


class Secured(NamedTuple):
    """A store of an owner who is no superuser, and a role for one tenant."""

    url: str
    role: str


@pytest.fixture
def secured(postgres_server: str) -> Generator[Secured]:
    mark = uuid.uuid4().hex[:12]
    owner, role, schema = f"owner_{mark}", f"reader_{mark}", f"rls_{mark}"
    with psycopg.connect(postgres_server, autocommit=True) as pg:
        pg.execute(f"CREATE ROLE {owner} LOGIN".encode())
        pg.execute(f"CREATE ROLE {role} LOGIN".encode())
        pg.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {owner}".encode())
    parts = urlsplit(postgres_server)
    query = f"{parts.query}&schema={schema}" if parts.query else f"schema={schema}"
    netloc = f"{owner}@{parts.netloc.rpartition('@')[2]}"
    yield Secured(f"{parts.scheme}://{netloc}{parts.path}?{query}", role)
    with psycopg.connect(postgres_server, autocommit=True) as pg:
        pg.execute(f"DROP SCHEMA {schema} CASCADE".encode())
        pg.execute(f"DROP OWNED BY {owner}, {role}".encode())
        pg.execute(f"DROP ROLE {owner}, {role}".encode())


def seen(secured: Secured, table: str, tenant: str | None, what: str = "*") -> list[str]:
    """Return what the role sees, as text."""
    with Target(secured.url.replace("owner_", "reader_", 1)).connect() as pg:
        if tenant is not None:
            pg.execute(b"SELECT set_config('perdure.tenant', %s, false)", (tenant,))
        found = pg.execute(f"SELECT ({what})::text FROM {table}".encode()).fetchall()
    return [row[0] for row in found]


async def test_a_role_sees_the_rows_of_its_tenant_and_the_owner_goes_on_working(
    secured: Secured,
) -> None:
    app = tenant_app(secured.url)
    try:
        await app.store()
        limit_to_tenant(secured.url, secured.role)
        limit_to_tenant(secured.url, secured.role)  # again, as after an upgrade
        mine = await seeded(app)  # under FORCE
        for tenant, other in (("acme", "globex"), ("globex", "acme")):
            assert seen(secured, "job", tenant, "id") == [mine[tenant].job]
            tables = ("job", "journal", "event", "message", "label", "approval", "schedule")
            for table in (*tables, "output", "lease", "perdure_jobs", "perdure_steps"):
                rows = seen(secured, table, tenant, table)
                assert rows, table
                assert other not in "".join(rows), table
                assert mine[other].job not in "".join(rows), table
        for table in ("job", "journal", "perdure_jobs", "audit"):
            assert seen(secured, table, None, table) == []
        assert await (await app.handle(mine["acme"].job)).status() is JobState.WAITING
    finally:
        await app.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM token",
        "SELECT * FROM session",
        "SELECT * FROM sign_in_link",
        "SELECT * FROM fact",
        "UPDATE job SET state = 'FAILED'",
        "DELETE FROM job",
        "ALTER TABLE job DISABLE ROW LEVEL SECURITY",
    ],
)
async def test_the_role_reads_no_secrets_and_changes_nothing(
    secured: Secured, statement: str
) -> None:
    app = tenant_app(secured.url)
    await app.store()
    await app.close()
    limit_to_tenant(secured.url, secured.role)
    with Target(secured.url.replace("owner_", "reader_", 1)).connect() as pg:
        pg.execute(b"SET perdure.tenant = 'acme'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            pg.execute(statement.encode())


async def test_a_role_that_would_see_everything_is_refused(secured: Secured) -> None:
    app = tenant_app(secured.url)
    await app.store()
    await app.close()
    for role, why in (("postgres", "superuser"), ("nobody_there", "no role")):
        with pytest.raises(StoreError, match=why):
            limit_to_tenant(secured.url, role)
    with pytest.raises(StoreError, match="only PostgreSQL"):
        limit_to_tenant("sqlite:///x.db", secured.role)
