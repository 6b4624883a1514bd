"""`perdure migrate`: brings the schema of a store up to date, or says what is missing.

A worker does the same when it starts. In production, one may want it as a step of its own, by a
user with more privileges, before the workers are deployed.
"""

from typing import Annotated

import typer

from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    counted,
    give_list,
    perform,
    pour,
    progress,
    refuse,
    say,
)
from perdure.cli.target import UrlOption, spelled
from perdure.store.migrations import Migration
from perdure.store.open import limit_to_tenant, open_store, pending_migrations


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate")(migrate)


def migrate(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 10 if something is missing.")
    ] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Only print the SQL that is missing.")] = False,
    rls: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE", help="Let this role of PostgreSQL read only the rows of one tenant."
        ),
    ] = None,
    url: UrlOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Bring the schema of a store up to date; a new store is created."""
    if not url:
        refuse(
            "which store? Pass --url, set PERDURE_URL, or write `url` into perdure.toml", Code.USAGE
        )
    found = perform(_pending, url)
    if sql:
        for each in found:
            pour(f"-- {each.number:04}_{each.name}\n{each.sql.rstrip()}\n")
        return
    if not check and found:
        with progress(f"applying {counted(len(found), 'migration')}"):
            perform(_opened, url)
    state = "missing" if check else "applied"
    rows = [{"number": each.number, "name": each.name, "state": state} for each in found]
    if not give_list(rows, output, "number"):
        say(*(f"{each.number:04}_{each.name}  {state}" for each in found))
        if not found:
            say(f"The schema of {spelled(url)} is up to date.")
    if check and found:
        raise typer.Exit(Code.SCHEMA)
    _secure(url, None if check else rls)


async def _pending(url: str) -> list[Migration]:
    return pending_migrations(url)


def _secure(url: str, role: str | None) -> None:
    if role is not None:
        perform(_secured, url, role)
        say(f"Role {role} reads the rows of the tenant in its setting perdure.tenant.")


async def _secured(url: str, role: str) -> None:
    limit_to_tenant(url, role)


async def _opened(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.close()
