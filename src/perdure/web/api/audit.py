"""The audit log: what principals have changed, and whether anybody has touched it since."""

from typing import Any, Final

from msgspec import Struct

from perdure.jobs.audit import AuditHead, AuditRow, Broken
from perdure.web.access.principal import Permission
from perdure.web.paging import checked_limit, cursor_of, number_place
from perdure.web.request import Answer, ApiRequest, Page, Paged, Route
from perdure.web.views import view_of


class AuditView(Struct, frozen=True, kw_only=True):
    """An entry of the audit log; `before` is the hash of the entry before it."""

    tenant: str
    no: int
    at: float
    actor: str
    kind: str
    action: str
    target: str
    data: dict[str, Any]
    address: str
    credential: str
    before: str
    hash: str


class AuditPage(Page, frozen=True, kw_only=True):
    """Entries of the audit log, newest first."""

    items: list[AuditView]


class AuditReportView(Struct, frozen=True, kw_only=True):
    """Whether the chains are whole; note the heads elsewhere, to find a chain that was replaced."""

    ok: bool
    entries: int
    heads: list[AuditHead]
    broken: list[Broken]


async def list_entries(request: ApiRequest) -> Answer:
    """List entries of the audit log."""
    limit, cursor = checked_limit(request.query.limit), request.query.cursor
    before = 2**62 if cursor is None else number_place(cursor)
    rows = await request.store.audit_entries(before, limit)
    more = cursor_of(rows[-1].no) if len(rows) == limit else None
    now = await request.store.now()
    return Answer(AuditPage(items=[_view(each) for each in rows], next=more, now=now))


def _view(row: AuditRow) -> AuditView:
    return view_of(AuditView, row.entry, hash=row.hash)


async def verify(request: ApiRequest) -> Answer:
    """Check the audit log."""
    found = await request.store.verify_audit()
    view = AuditReportView(
        ok=found.ok, entries=found.entries, heads=found.heads, broken=found.broken
    )
    return Answer(view)


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/audit",
        handler=list_entries,
        permission=Permission.AUDIT_READ,
        summary="List entries of the audit log, newest first",
        query=Paged,
        response=AuditPage,
        tag="access",
    ),
    Route(
        method="GET",
        path="/api/v1/audit/verify",
        handler=verify,
        permission=Permission.AUDIT_READ,
        summary="Check the chains of the audit log",
        response=AuditReportView,
        tag="access",
    ),
)
