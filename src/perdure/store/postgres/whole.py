"""Verbs that are one statement each: such a statement is a whole transaction.

A submission and a claim lie between whoever submits a job and its start, so nobody waits for more
than one answer of the server to each.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from perdure.jobs.model import NewJob, Submitted
from perdure.store import row
from perdure.store.session import Row, Session
from perdure.store.verb.claim import Grant
from perdure.store.verb.submit import submit, submitted

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class Whole(ABC, Generic[T]):
    """A named statement with its values."""

    statement: str
    values: Mapping[str, Any]

    def __call__(self, session: Session) -> T:
        """Do it as a part of a larger transaction."""
        result = self.read(session, session.all(self.statement, **self.values))
        return self.by_parts(session) if result is None else result

    @abstractmethod
    def read(self, session: Session, rows: Sequence[Row]) -> T | None:
        """Read the answer; None: nothing was done that way."""

    @abstractmethod
    def look_up(self, session: Session, lane: str) -> T | None:
        """Find out what was done, since the answer was lost; None as above."""

    def by_parts(self, session: Session) -> T:
        """Do it in another way, if there is one."""
        return self(session)


class Take(Whole[list[Grant]]):
    """A claim from queues that have no limits."""

    statement = "take"

    def __init__(self, owner: str, queues: Sequence[str], free: int, lease: float) -> None:
        self.values = {"owner": owner, "queues": list(queues), "free": free, "lease": lease}

    def read(self, session: Session, rows: Sequence[Row]) -> list[Grant]:
        # In their order, so the last tag of a queue is not always its highest.
        for queue in {each[6] for each in rows}:
            tag = max(each[30] for each in rows if each[6] == queue)
            session.aside("set_served", queue=queue, tag=tag)
        return [_trusted(session, _grant(each)) for each in rows]

    def look_up(self, session: Session, lane: str) -> list[Grant]:
        owner, lease = self.values["owner"], self.values["lease"]
        rows = session.all("taken", lane=lane, owner=owner, lease=lease)
        return [_trusted(session, Grant(*each)) for each in rows]


def _grant(found: Row) -> Grant:
    """Read a grant; what has neither journal nor messages need not be asked for again."""
    job = row.job(found) if found[31] else None
    return Grant(found[0], found[25], found[26], found[28], found[29], job)


def _trusted(session: Session, grant: Grant) -> Grant:
    if grant.claims > 1:
        session.suspects.add((grant.job_id, grant.epoch))
    return grant


class SubmitAll(Whole[list[Submitted]]):
    """A submission of jobs of which none is known, as most are."""

    statement = "submit_all"

    def __init__(self, jobs: Sequence[NewJob], actor: str) -> None:
        self._jobs = jobs
        self._actor = actor
        rows = [_job_row(place, job, actor) for place, job in enumerate(jobs)]
        self.values = {"jobs": _encode(rows).decode()}

    def read(self, session: Session, rows: Sequence[Row]) -> list[Submitted] | None:  # noqa: ARG002
        if len(rows) < len(self._jobs):
            return None
        return [Submitted(job.id, True) for job in self._jobs]

    def look_up(self, session: Session, lane: str) -> list[Submitted] | None:
        ids = session.array([job.id for job in self._jobs])
        return self.read(session, session.all("submitted", lane=lane, ids=ids))

    def by_parts(self, session: Session) -> list[Submitted]:
        return submit(session, self._jobs, self._actor)


def _job_row(place: int, job: NewJob, actor: str) -> dict[str, Any]:
    note = row.event_row(job.id, submitted(job, actor), 0.0)
    given = row.job_row(job, 0.0) | {"place": place, "delay": job.delay, "deadline": job.deadline}
    return given | {"data": note["data"], "actor": note["actor"]}
