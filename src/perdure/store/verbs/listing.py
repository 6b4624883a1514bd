"""Jobs as rows of a list: a page in a fixed number of queries, however long the journals are."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from perdure.jobs.listing import JobFacts, LatestEntry
from perdure.jobs.model import EntryKind, Job, JobQuery
from perdure.jobs.state import JobState, StepState
from perdure.store import rows
from perdure.store.statements import Row, Session
from perdure.store.verbs.budget import read_budget
from perdure.store.verbs.read import job, jobs

# How many of the last entries of a journal are looked at: a running step is nearly always among
# them, and of a job with more branches one of them is as good as another.
_LATEST = 20
# A job in one of these states has nothing that is current.
_DONE = frozenset({JobState.COMPLETED, JobState.COMPENSATED, JobState.PENDING})


class ListedJobs(NamedTuple):
    """Jobs, each with what its row in a list needs, and the time at which they were read."""

    facts: list[JobFacts]
    now: float


def listed_jobs(session: Session, query: JobQuery, silent_for: float) -> ListedJobs:
    """Return the jobs that match, newest first.

    A worker without a heartbeat for `silent_for` seconds counts as silent.
    """
    return _listed(session, jobs(session, query), silent_for)


def listed_job(session: Session, job_id: str, silent_for: float) -> JobFacts | None:
    """Return one job with what its row in a list needs; None if there is none."""
    found = job(session, job_id)
    return None if found is None else _listed(session, [found], silent_for).facts[0]


def listed_jobs_of(session: Session, job_ids: Sequence[str], silent_for: float) -> ListedJobs:
    """Return these jobs, as far as they exist."""
    found = session.all("get_jobs", ids=session.array(job_ids), clock=session.clock())
    return _listed(session, [rows.job(each) for each in found], silent_for)


def _listed(session: Session, found: Sequence[Job], silent_for: float) -> ListedJobs:
    asked = facts_asked(session, found, silent_for)
    return ListedJobs(facts_of(found, session.together(*asked)), session.now())


Asked = list[tuple[str, dict[str, Any]]]


def facts_asked(session: Session, found: Sequence[Job], silent_for: float) -> Asked:
    """Return the statements that read what the rows of jobs in a list need: see `facts_of`."""
    ids = session.array([each.id for each in found])
    open_ids = session.array([each.id for each in found if each.state not in _DONE])
    clock = session.clock()
    return [
        ("latest_entries", {"ids": open_ids, "number": _LATEST}),
        ("budgets", {"ids": session.array(list({each.budget_of or each.id for each in found}))}),
        ("effects_in_doubt", {"ids": ids}),
        ("stale_leases", {"ids": ids, "clock": clock, "heard_since": clock - silent_for}),
    ]


def facts_of(found: Sequence[Job], answers: Sequence[Sequence[Row]]) -> list[JobFacts]:
    """Return what the rows of jobs in a list need, from what the statements have found."""
    latest, budgets = rows.by_job(answers[0]), {row[0]: read_budget(row[1]) for row in answers[1]}
    in_doubt, stale_ids = {row[0]: row[1] for row in answers[2]}, {row[0] for row in answers[3]}
    return [
        JobFacts(
            job=each,
            latest=tuple(map(_latest, latest.get(each.id, ()))),
            budget=budgets.get(each.budget_of or each.id),
            effects_in_doubt=in_doubt.get(each.id, 0),
            stale=each.id in stale_ids,
        )
        for each in found
    ]


def _latest(row: Row) -> LatestEntry:
    return LatestEntry(
        seq=row[1],
        id=row[2],
        kind=EntryKind(row[3]),
        state=StepState(row[4]),
        attempt=row[5],
        wake_at=row[6],
    )
