"""Messages from outside to jobs."""

from perdure.base.errors import IllegalTransition, JobNotFound
from perdure.store.session import Session


def send(session: Session, job_id: str, topic: str, payload: str, key: str | None) -> bool:
    """Leave a message and wake its job.

    Raises:
        JobNotFound, IllegalTransition: There is no such job, or nobody will read it any more.
    """
    found, now = session.one("has_ended", id=job_id), session.now()
    if found is None:
        raise JobNotFound(job_id)
    state, ended = found
    if key is not None and session.one("message_known", id=job_id, key=key):
        return False  # also if the job has ended: whoever sends it again has done his part
    if ended:
        raise IllegalTransition(f"job {job_id} is {state}: it receives no more messages")
    sent = session.run("insert_message", id=job_id, topic=topic, payload=payload, key=key, now=now)
    if sent and not session.run("wake", id=job_id, now=now):
        raise IllegalTransition(f"job {job_id} has just ended: it receives no more messages")
    return bool(sent)
