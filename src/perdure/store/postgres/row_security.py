"""Row-level security: a role of the database that sees the rows of one tenant, and only reads.

The workers and the API are the owner of the tables, and check tenants themselves. This is for those
who query by hand, or a program for reports: a role that is not the owner, and whose every query is
limited by the database to the tenant in its setting `perdure.tenant`. Without the setting it sees
nothing. FORCE puts the owner under the same policies, with one of its own that lets it work.
"""

from typing import Final

import psycopg
from psycopg import sql

from perdure.base.errors import StoreError
from perdure.store.postgres.connection import Pg, Target

_MINE: Final = "tenant = current_setting('perdure.tenant', true)"
_MY_JOBS: Final = "EXISTS (SELECT 1 FROM {schema}.job WHERE job.id = {table}.job_id)"
_BY_TENANT: Final = (
    *("job", "lease", "effect", "approval", "schedule", "audit"),
    *("langgraph_checkpoint", "langgraph_value", "langgraph_piece", "langgraph_write"),
    "langgraph_item",
    "workflow_checkpoint",
)
_BY_JOB: Final = (
    "label",
    "requester",
    "journal",
    "payload",
    "event",
    "message",
    "output",
    "output_topic",
)
_INVOKER: Final = 150000  # from this version on, a view may have the rights of who reads it
_TABLES: Final = b"""
SELECT relname, relkind = 'v' FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = %s AND relkind IN ('r', 'p', 'v') ORDER BY relname
"""


def secure_rows(url: str, role: str) -> None:
    """Let a role read the rows of the tenant in `perdure.tenant`; may be done again at any time.

    Args:
        url: The store, as the owner of its tables.
        role: An existing role, which is neither the owner nor a superuser.

    Raises:
        StoreError: There is no such role, or it sees everything anyway.
    """
    target = Target(url)
    with target.connect() as pg, pg.transaction():
        _check_role(pg, role)
        names = pg.execute(_TABLES, (target.schema,)).fetchall()
        grant = "REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}"
        _run(pg, target.schema, role, grant, "GRANT USAGE ON SCHEMA {schema} TO {role}")
        for name, is_view in names:
            if is_view:
                _open_view(pg, target.schema, role, name)
            else:
                _secure_table(pg, target.schema, role, name)


def _check_role(pg: Pg, role: str) -> None:
    found = pg.execute(
        b"SELECT rolsuper OR rolbypassrls OR rolname = current_user FROM pg_roles"
        b" WHERE rolname = %s",
        (role,),
    ).fetchone()
    if found is None:
        raise StoreError(f"there is no role {role!r}: run CREATE ROLE {role} LOGIN first")
    if found[0]:
        raise StoreError(f"{role!r} is the owner or a superuser: use another role")


def _secure_table(pg: Pg, schema: str, role: str, table: str) -> None:
    _run(
        pg, schema, role,
        "ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE {schema}.{table} FORCE ROW LEVEL SECURITY",
        "DROP POLICY IF EXISTS perdure_owner ON {schema}.{table}",
        "CREATE POLICY perdure_owner ON {schema}.{table} TO CURRENT_USER USING (true)",
        "DROP POLICY IF EXISTS {policy} ON {schema}.{table}",
        table=table,
    )  # fmt: skip
    mine = _MINE if table in _BY_TENANT else _MY_JOBS if table in _BY_JOB else None
    if mine is not None:
        policy = "CREATE POLICY {policy} ON {schema}.{table} FOR SELECT TO {role} USING "
        select = "GRANT SELECT ON {schema}.{table} TO {role}"
        _run(pg, schema, role, f"{policy}({mine})", select, table=table)


def _open_view(pg: Pg, schema: str, role: str, view: str) -> None:
    """Let the role read a view, if that has the rights of who reads it, and not of its owner."""
    if pg.info.server_version >= _INVOKER:
        invoker = "ALTER VIEW {schema}.{table} SET (security_invoker = true)"
        _run(pg, schema, role, invoker, "GRANT SELECT ON {schema}.{table} TO {role}", table=view)


def _run(pg: Pg, schema: str, role: str, *statements: str, table: str = "") -> None:
    names = {"schema": schema, "role": role, "table": table, "policy": f"perdure {role}"}
    given = {name: sql.Identifier(text) for name, text in names.items() if text}
    for each in statements:
        try:
            pg.execute(sql.SQL(each).format(**given), prepare=False)  # pyright: ignore[reportArgumentType]  they are the texts above
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(f"the owner of the tables must do this: {error}") from error
