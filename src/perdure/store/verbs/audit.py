"""The audit log: appended in the transaction of the change that it is about."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perdure.jobs.audit import INSTALLATION, AuditDraft, AuditRow, chained
from perdure.store.statements import Session


def audit(session: Session, draft: AuditDraft) -> AuditRow:
    """Append an entry to its chain, and return it.

    The chain is locked to the end of the transaction, so nothing else must be locked after it.
    """
    tenant = _tenant(session, draft)
    session.lock(f"audit {tenant}")
    found = session.one("audit_head", tenant=tenant)
    head = None if found is None else (int(found[0]), str(found[1]))
    row = chained(draft, tenant, head, session.now())
    session.run("insert_audit", tenant=row.tenant, no=row.no, line=row.line, hash=row.hash)
    return row


def audited(
    session: Session,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    describe: Callable[[Any], AuditDraft | None],
) -> Any:
    """Run a verb, and append what it did to the audit log, in one transaction.

    Args:
        session: The transaction.
        function: The verb.
        args: Its arguments by position.
        kwargs: Its arguments by name.
        describe: Returns the entry for what the verb returned; None: there is nothing to note.
    """
    result = function(session, *args, **kwargs)
    draft = describe(result)
    if draft is not None:
        audit(session, draft)
    return result


def audit_rows(session: Session, tenant: str, after: int = 0, limit: int = 1000) -> list[AuditRow]:
    """Return rows of a chain in order: those after a number."""
    found = session.all("audit_rows", tenant=tenant, after=after, limit=limit)
    return [AuditRow(*each) for each in found]


def audit_newest(
    session: Session, tenant: str, before: int = 2**62, limit: int = 50
) -> list[AuditRow]:
    """Return rows of a chain, newest first: those before a number."""
    found = session.all("audit_newest", tenant=tenant, before=before, limit=limit)
    return [AuditRow(*each) for each in found]


def audit_tenants(session: Session) -> list[str]:
    """Return the tenants that have a chain, by name; "" is the installation."""
    return [each[0] for each in session.all("audit_tenants")]


def _tenant(session: Session, draft: AuditDraft) -> str:
    if draft.tenant is not None:
        return draft.tenant
    found = session.one("tenant_of_job", id=draft.target)
    return INSTALLATION if found is None else found[0]
