"""Jobs as rows of a list: a page in a fixed number of queries, however long the journals are."""

from collections.abc import Sequence

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


def listed_jobs(session: Session, query: JobQuery, silent_for: float) -> list[JobFacts]:
    """Return the jobs that match, newest first, each with what its row in a list needs.

    A worker without a heartbeat for `silent_for` seconds counts as silent.
    """
    return _facts(session, jobs(session, query), silent_for)


def listed_job(session: Session, job_id: str, silent_for: float) -> JobFacts | None:
    """Return one job with what its row in a list needs; None if there is none."""
    found = job(session, job_id)
    return None if found is None else _facts(session, [found], silent_for)[0]


def listed_jobs_of(session: Session, job_ids: Sequence[str], silent_for: float) -> list[JobFacts]:
    """Return these jobs, as far as they exist, each with what its row in a list needs."""
    found = session.all("get_jobs", ids=session.array(job_ids), clock=session.clock())
    return _facts(session, [rows.job(each) for each in found], silent_for)


def _facts(session: Session, found: Sequence[Job], silent_for: float) -> list[JobFacts]:
    ids = session.array([each.id for each in found])
    roots = session.array(list({each.budget_of or each.id for each in found}))
    open_ids = session.array([each.id for each in found if each.state not in _DONE])
    latest = rows.by_job(session.all("latest_entries", ids=open_ids, number=_LATEST))
    budgets = {each[0]: read_budget(each[1]) for each in session.all("budgets", ids=roots)}
    in_doubt = {each[0]: each[1] for each in session.all("effects_in_doubt", ids=ids)}
    clock = session.clock()
    stale = session.all("stale_leases", ids=ids, clock=clock, heard_since=clock - silent_for)
    stale_ids = {each[0] for each in stale}
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
