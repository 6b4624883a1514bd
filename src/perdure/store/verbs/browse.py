"""What pages read: parts of long journals, and which jobs have changed."""

from typing import NamedTuple

from perdure.jobs.listing import JobFacts
from perdure.jobs.model import JournalEntry
from perdure.jobs.output import OutputTopic
from perdure.store import rows
from perdure.store.statements import Session
from perdure.store.verbs.fleet import fleet
from perdure.store.verbs.listing import facts_asked, facts_of
from perdure.store.verbs.output import topic
from perdure.store.verbs.read import job


class JobSize(NamedTuple):
    """How much there is of a job."""

    entries: int
    children: int


class WholeJob(NamedTuple):
    """All of a job that is not a list of its own."""

    facts: JobFacts
    now: float
    size: JobSize
    topics: list[OutputTopic]
    unserved: str | None  # why no worker can claim it, although it is due


class LoggedChange(NamedTuple):
    """A line in the log of a job: its number, the job, and what happened."""

    no: int
    job_id: str
    type: str


def journal_page(
    session: Session, job_id: str, after: int = 0, limit: int = 1000, *, slim: bool = False
) -> list[JournalEntry]:
    """Return a part of a journal: the entries behind `after`; `slim`: without payloads."""
    given = {"slim"} if slim else {"whole"}
    found = session.find("journal_page", given, id=job_id, after=after, limit=limit)
    return [rows.entry(each) for each in found]


def whole_job(
    session: Session, job_id: str, tenant: str | None, silent_for: float
) -> WholeJob | None:
    """Return all of a job that is not a list of its own; None if the tenant has no such job.

    A worker without a heartbeat for `silent_for` seconds counts as silent.
    """
    found = job(session, job_id, tenant)
    if found is None:
        return None
    now, id = session.now(), {"id": job_id}
    *answers, entries, children, topics = session.together(
        *facts_asked(session, [found], silent_for),
        ("count_entries", id),
        ("count_children", id),
        ("topics", {"ids": session.array([job_id])}),
    )
    (facts,) = facts_of([found], answers)
    is_due = found.owner is None and found.due_at is not None and found.due_at <= now
    return WholeJob(
        facts=facts,
        now=now,
        size=JobSize(entries[0][0], children[0][0]),
        topics=[topic(each) for each in topics],
        unserved=fleet(session, silent_for).why_waiting(found) if is_due else None,
    )


def newest_event(session: Session) -> int:
    """Return the number of the newest line in the logs of all jobs."""
    found = session.one("newest_event")
    return (found[0] if found else None) or 0


def logged_changes(session: Session, after: int, limit: int) -> list[LoggedChange]:
    """Return lines in the logs of all jobs behind a number, in order."""
    found = session.all("events_since", after=after, limit=limit)
    return [LoggedChange(each[0], each[1], each[2]) for each in found]


def owned_jobs(session: Session, limit: int) -> list[str]:
    """Return jobs that a worker has now: their steps change without a line in a log."""
    return [each[0] for each in session.find("owned_jobs", set(), limit=limit)]
