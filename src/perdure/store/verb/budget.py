"""What trees of jobs may spend: reserved, settled and raised, one after the other."""

import msgspec

from perdure.jobs.budget import Amount, Budget, Exceeded, Limits, grant, reserve, settle
from perdure.store.session import Session

_read = msgspec.json.Decoder(Budget).decode


def budget(session: Session, root_id: str) -> Budget | None:
    """Read the budget of a tree of jobs."""
    found = session.one("budget", id=root_id)
    return None if found is None else _read(found[0])


def set_aside(
    session: Session, root_id: str, id: str, amount: Amount, new: Budget
) -> Budget | Exceeded:
    """Reserve an amount; `new` is the budget if there is none yet."""
    changed = reserve(_lock(session, root_id) or new, id, amount, session.now())
    if isinstance(changed, Budget):
        _put(session, root_id, changed)
    return changed


def settle_spending(session: Session, root_id: str, id: str, actual: Amount | None) -> None:
    """Say what was really spent of what was reserved."""
    found = _lock(session, root_id)
    if found is not None and id in found.reserved:
        _put(session, root_id, settle(found, id, actual))


def raise_limits(session: Session, root_id: str, limits: Limits, new: Budget) -> None:
    """Grant more."""
    _put(session, root_id, grant(_lock(session, root_id) or new, limits))


def _lock(session: Session, root_id: str) -> Budget | None:
    session.lock(f"budget {root_id}")
    found = session.one("lock_budget", id=root_id)
    return None if found is None else _read(found[0])


def _put(session: Session, root_id: str, budget: Budget) -> None:
    session.run("put_budget", id=root_id, no=budget.no, data=msgspec.json.encode(budget).decode())
