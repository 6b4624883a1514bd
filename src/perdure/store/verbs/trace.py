"""Where the trace of a job continues; only programs that trace ask."""

from perdure.jobs.model import JobTrace
from perdure.store.statements import Session


def trace(session: Session, job_id: str) -> JobTrace | None:
    """Return the trace of a job; None if nobody has traced it."""
    found = session.one("trace", id=job_id)
    return None if found is None else JobTrace(found[0], found[1])


def keep_trace(session: Session, job_id: str, span: str) -> None:
    """Record the span of a run, for the next one."""
    session.run("keep_trace", id=job_id, span=span)
