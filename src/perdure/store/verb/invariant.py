"""Looks for what must not be: rows that break a rule of `jobs/invariant`."""

from collections.abc import Iterator

from perdure.jobs.invariant import INVARIANTS, Violation, check_approval
from perdure.store.session import Session
from perdure.store.verb.approval import read_approval

_PAGE = 1000


def violations(session: Session, limit: int) -> list[Violation]:
    """List what breaks a rule, at most so many of each."""
    found: list[Violation] = []
    for each in INVARIANTS:
        if each.name == "decisions":
            found += _decisions(session, limit)
        else:
            rows = session.all(each.name, limit=limit)
            found += [Violation(each.name, job_id, what) for job_id, what in rows]
    return found


def _decisions(session: Session, limit: int) -> list[Violation]:
    found: list[Violation] = []
    for job_id, what in _wrong_decisions(session):
        found.append(Violation("decisions", job_id, what))
        if len(found) >= limit:
            break
    return found


def _wrong_decisions(session: Session) -> Iterator[tuple[str, str]]:
    after = ""
    while rows := session.all("some_approvals", after=after, limit=_PAGE):
        for after, action_hash, state, data in rows:  # noqa: B007 - the last one is where to go on
            approval = read_approval(data)
            for what in check_approval(approval, action_hash, state):
                yield approval.job_id, what
