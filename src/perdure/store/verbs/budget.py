"""Budgets of trees of jobs: amounts are reserved, settled and raised, one at a time.

A budget is one JSON document, changed under a lock by the pure functions of `jobs.budget`.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from perdure.base.errors import LeaseLost
from perdure.jobs.budget import (
    Budget,
    BudgetLimits,
    Exceeded,
    Reservation,
    grant,
    job_of,
    settle_all,
    spend,
)
from perdure.jobs.budget import reserve as reserve_amount
from perdure.jobs.model import SpendingChange
from perdure.store.rows import event_row
from perdure.store.statements import Session

read_budget = msgspec.json.Decoder(Budget).decode


def budget(session: Session, root_id: str) -> Budget | None:
    """Return the budget of a tree of jobs; None if it has no limits and nothing was spent yet."""
    found = session.one("budget", id=root_id)
    return None if found is None else read_budget(found[0])


def grant_first(session: Session, job_id: str, limits: BudgetLimits) -> None:
    """Store the limits of a new job, which workers that do not know its code hold to as well."""
    _put(session, job_id, Budget(root=job_id, limits=limits))


def reserve(session: Session, asked: Reservation, new: Budget) -> Budget | Exceeded:
    """Reserve an amount, unless that would exceed a limit; `new` is the budget if there is none.

    When the job ends, what is still reserved is settled as spent.

    Raises:
        LeaseLost: The job has ended or has another owner: nothing may be spent for it here.
    """
    # The lease is locked first, as when a job ends.
    if tuple(session.one("lock_lease", id=asked.job_id) or ()) != (asked.owner, asked.epoch):
        raise LeaseLost(asked.job_id, asked.epoch)
    found = _began(_lock(session, asked.root_id), new)
    changed = reserve_amount(found, asked.id, asked.amount, session.now())
    if isinstance(changed, Budget):
        _put(session, asked.root_id, changed)
    return changed


def spend_all(session: Session, changes: Iterable[SpendingChange], now: float) -> None:
    """Record what writes reserve and settle, with a line in the log of a job for what is settled.

    Budgets are locked in a fixed order.
    """
    by_root: dict[str, list[SpendingChange]] = {}
    for change in changes:
        by_root.setdefault(change.budget.root, []).append(change)
    for root_id, theirs in sorted(by_root.items()):
        found = _began(_lock(session, root_id), theirs[0].budget.new)
        for change in theirs:
            before, found = found, spend(found, change.id, change.reserved, change.settled)
            if change.note is not None and found is not before:
                session.run("insert_event", **event_row(job_of(change.id), change.note, now))
        _put(session, root_id, found)


def settle_ended(session: Session, job_ids: Sequence[str]) -> None:
    """Settle every open reservation of jobs that end now."""
    for (root_id,) in session.all("budgets_of", ids=session.array(job_ids)):
        found = _lock(session, root_id)
        if found is not None:
            settled = settle_all(found, job_ids)
            if settled is not found:
                _put(session, root_id, settled)


def raise_limits(session: Session, root_id: str, limits: BudgetLimits, new: Budget) -> None:
    """Raise the limits of a budget."""
    _put(session, root_id, grant(_lock(session, root_id) or new, limits))


def _began(stored: Budget | None, new: Budget) -> Budget:
    """Return a budget with the time when its first job began."""
    found = stored or new
    return found if found.began_at else replace(found, began_at=new.began_at)


def _lock(session: Session, root_id: str) -> Budget | None:
    session.lock(f"budget {root_id}")
    found = session.one("lock_budget", id=root_id)
    return None if found is None else read_budget(found[0])


def _put(session: Session, root_id: str, budget: Budget) -> None:
    session.run("put_budget", id=root_id, no=budget.no, data=msgspec.json.encode(budget).decode())
