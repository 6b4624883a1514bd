"""The audit log: appended in the transaction of the change that it is about."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.jobs.approval import Refusal
from perdure.jobs.audit import INSTALLATION, LOWEST, AuditDraft, AuditRow, chained
from perdure.store.statements import Session
from perdure.store.verbs.answer import RequestKey, note_done


def audit(session: Session, draft: AuditDraft) -> None:
    """Append an entry to its chain."""
    session.note(draft)


def append(session: Session, drafts: Sequence[AuditDraft]) -> None:
    """Append entries to their chains.

    A chain is locked to the end of the transaction, so nothing else must be locked after it.
    """
    chains: dict[str, list[AuditDraft]] = {}
    for draft in drafts:
        chains.setdefault(_tenant(session, draft), []).append(draft)
    for tenant in sorted(chains):
        session.lock(f"audit {tenant}")
        (heads,) = session.together(("audit_head", {"tenant": tenant}))
        head = (int(heads[0][0]), str(heads[0][1])) if heads else None
        rows: list[AuditRow] = []
        for draft in chains[tenant]:
            rows.append(row := chained(draft, tenant, head, session.now()))
            head = row.no, row.hash
        session.many("insert_audit", [msgspec.structs.asdict(row) for row in rows])


def audited(
    session: Session,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    describe: Callable[[Any], Iterable[AuditDraft]],
    key: RequestKey | None = None,
) -> Any:
    """Run a verb, and append what it did to the audit log, in one transaction.

    Args:
        session: The transaction.
        function: The verb.
        args: Its arguments by position.
        kwargs: Its arguments by name.
        describe: Returns the entries for what the verb returned.
        key: The key of the request that calls it, with which the result is noted.
    """
    result = function(session, *args, **kwargs)
    drafts = describe(result)
    changed_nothing = isinstance(result, Refusal) or result == []
    if key is not None and not changed_nothing:
        note_done(session, key, msgspec.json.encode(result).decode())
    for draft in drafts:
        session.note(draft)
    return result


def audit_rows(
    session: Session, tenant: str, first: int = LOWEST, limit: int = 1000
) -> list[AuditRow]:
    """Return rows of a chain in order: those from a number on, by default all."""
    found = session.all("audit_rows", tenant=tenant, first=first, limit=limit)
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
