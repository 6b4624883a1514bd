"""`perdure audit`: read the audit log of the API, and check that nobody has touched it."""

from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

import msgspec
import typer
from rich.table import Table

from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    cell,
    counted,
    give_one,
    give_table,
    perform,
    refuse,
    say,
)
from perdure.cli.target import AppOption, UrlOption, find_caller
from perdure.engine.caller import Caller
from perdure.jobs.audit import INSTALLATION, AuditHead, AuditReport, AuditRow, chain_of
from perdure.web.access.audit_trail import verify_audit

TenantOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Whose log; without it, `list` shows that of the installation.")
]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Read and check the audit log of the API.", no_args_is_help=True)
    group.command("list")(list_entries)
    group.command()(verify)
    app.add_typer(group, name="audit")


def list_entries(
    *,
    tenant: TenantOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 50,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List what principals have changed, the newest first."""
    found = perform(_newest, find_caller(app, url), chain_of(tenant), limit)
    rows: list[dict[str, Any]] = [
        {**msgspec.to_builtins(each.entry), "hash": each.hash} for each in found
    ]
    give_table(rows, output, lambda: _drawn(rows), empty="There are no entries.", key="no")


async def _newest(caller: Caller, tenant: str, limit: int) -> list[AuditRow]:
    async with caller:
        return await caller.verbs.audit_newest(tenant, limit=limit)


def _drawn(rows: list[dict[str, Any]]) -> Table:
    table = Table("no", "at", "who", "did", "to", "by", box=None)
    for row in rows:
        at = datetime.fromtimestamp(row["at"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        shown = (str(row["no"]), at, row["actor"], row["action"], row["target"], row["credential"])
        table.add_row(*map(cell, shown))
    return table


def verify(
    *,
    tenant: TenantOption = None,
    expect: Annotated[
        str | None,
        typer.Option(metavar="NO:HASH", help="An entry that you noted elsewhere, to compare with."),
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check every chain, or that of one tenant; exit with 1 if one is broken."""
    tenants = None if tenant is None else [tenant]
    head = _head(chain_of(tenant), expect)
    report = perform(_verify, find_caller(app, url), tenants, head)
    shown: dict[str, Any] = {"ok": report.ok, **msgspec.to_builtins(report)}
    if not give_one(shown, output, "ok"):
        _say(report)
    if not report.ok:
        raise typer.Exit(Code.FAILED)


def _head(tenant: str, expect: str | None) -> AuditHead | None:
    if expect is None:
        return None
    no, _, hash_ = expect.partition(":")
    if not no.isascii() or not no.isdigit() or not hash_:
        refuse("--expect takes the number and the hash of an entry: 12:9f86d0…", Code.USAGE)
    return AuditHead(tenant=tenant, no=int(no), hash=hash_)


async def _verify(
    caller: Caller, tenants: list[str] | None, expect: AuditHead | None
) -> AuditReport:
    async with caller:
        return await verify_audit(caller.verbs, tenants, expect)


def _say(report: AuditReport) -> None:
    for head in report.heads:
        say(f"{_whose(head.tenant)}: {counted(head.no, 'entry')}, head {head.no}:{head.hash}")
    for each in report.broken:
        say(f"{_whose(each.tenant)}: BROKEN at entry {each.no}: {each.why}")
    if report.ok and not report.entries:
        say("The audit log is empty.")
    elif report.ok:
        are = "is as it was" if report.entries == 1 else "are as they were"
        say(f"{counted(report.entries, 'entry')} {are} written.")


def _whose(tenant: str) -> str:
    return "the installation" if tenant == INSTALLATION else f"tenant {tenant}"
