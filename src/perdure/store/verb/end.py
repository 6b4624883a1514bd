"""The end of jobs: whoever ends them, nothing of them stays open."""

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.store.session import Session
from perdure.store.verb.approval import withdraw_open
from perdure.store.verb.budget import settle_ended


def end_jobs(session: Session, jobs: Sequence[Mapping[str, Any]], now: float) -> None:
    """End jobs, each given as the parameters of `end_job`; their leases are locked by us.

    People are told that their answers are not needed any more, and what was set aside is spent.
    """
    job_ids = [job["id"] for job in jobs]
    ids = session.array(job_ids)
    session.many("end_job", [{**job, "now": now} for job in jobs])
    session.run("end_leases", ids=ids)
    session.run("wake_parents", ids=ids, now=now)
    withdraw_open(session, job_ids, now)
    settle_ended(session, job_ids)
