"""Who asked for a tree of jobs, besides the user of its first job.

Who starts any part of a tree again may have chosen what the rest of it does next: what a child is
said to have returned is what its parent goes on with. So a requester is one of the whole tree.
"""

from collections.abc import Iterable

import msgspec

from perdure.base.errors import JobNotFound
from perdure.store.statements import Session

_read = msgspec.json.Decoder(list[str]).decode


def makers_of(session: Session, person: str, tenant: str | None) -> set[str]:
    """Return everybody who stands behind the tokens of a principal, to the beginning.

    Those of one tenant, and of the installation; None: of all.
    """
    given = {} if tenant is None else {"tenant": tenant}
    found = session.find("token_makers", set(given), principal=person, **given)
    return {maker for row in found for maker in _read(row[0])} - {person}


def add_requesters(session: Session, root: str, tenant: str | None, people: Iterable[str]) -> None:
    """Note that people, and whoever stands behind them, have asked for a tree of jobs.

    Args:
        session: The transaction of what they asked for.
        root: The first job of the tree.
        tenant: The tenant whose people they are; None: nobody knows.
        people: Who asked; programs that do not say who they are have no name, and are left out.
    """
    asked = {each for each in people if each}
    behind = {maker for each in asked for maker in makers_of(session, each, tenant)}
    # In a fixed order, since each waits for other transactions that insert the same.
    rows = [{"id": root, "person": each} for each in sorted(asked | behind)]
    if rows:
        session.many("insert_requester", rows)


def inherit_requesters(session: Session, source: str, fork: str, actor: str) -> None:
    """Note that whoever asked for a job, and who forks it, has asked for its fork.

    Raises:
        JobNotFound: There is no such job.
    """
    found = session.one("requested_by", id=source)
    if found is None:
        raise JobNotFound(source)
    root, tenant, user = found
    others = [each[0] for each in session.all("requesters", id=root)]
    add_requesters(session, fork, tenant, [user, actor, *others])
