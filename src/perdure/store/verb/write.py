"""The fenced write of a job's owner: all of it, or nothing."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from perdure.base.errors import LeaseLost
from perdure.jobs.model import Entry, JobChange, Write
from perdure.jobs.state import ENDED, JobState, StepState
from perdure.store import row
from perdure.store.session import Session
from perdure.store.verb.submit import submit

Rows = Sequence[tuple[Any, ...]]

_FINISHED: Final = (StepState.SUCCEEDED, StepState.FAILED)
_PARKED: Final = (JobState.PAUSED, JobState.ATTENTION)


def is_plain(write: Write) -> bool:
    """Tell whether it writes journal entries alone: most do, and many go in one statement."""
    return bool(write.entries) and not (write.job or write.events or write.taken or write.children)


def progresses(entries: Iterable[Entry]) -> bool:
    """Tell whether the job has come further with these entries."""
    return any(entry.state in _FINISHED or entry.checkpoint_no for entry in entries)


class Fence(NamedTuple):
    """What the lease says while nobody can change it."""

    news: int
    claims: int


def write_one(session: Session, write: Write, entries: Rows) -> None:
    """Do one write, whatever is in it; `entries` are its entries as rows.

    Raises:
        LeaseLost: The fence; nothing was written.
    """
    fence = session.one("fence", id=write.job_id, owner=write.owner, epoch=write.epoch)
    if fence is None:
        raise LeaseLost(write.job_id, write.epoch)
    write_behind(session, write, entries, Fence(*fence))


def write_behind(session: Session, write: Write, entries: Rows, fence: Fence) -> None:
    """Do one write whose fence holds until the end of the transaction."""
    now = session.now()
    if entries:
        session.upsert(entries)
        if fence.claims > 1 and progresses(write.entries):
            session.run("progressed", id=write.job_id)
    if write.events:
        events = [row.event_row(write.job_id, event, now) for event in write.events]
        session.many("insert_event", events)
    if write.taken:
        session.run("take_messages", id=write.job_id, nos=session.array(write.taken), now=now)
    if write.children:
        submit(session, write.children, write.owner)
    if write.job is not None:
        session.suspects.discard((write.job_id, write.epoch))
        _change(session, write, write.job, fence.news, now)


def _change(session: Session, write: Write, change: JobChange, news: int, now: float) -> None:
    values = {
        "id": write.job_id,
        "state": change.state.value,
        "result": row.text(change.result),
        "error": row.text(change.error),
    }
    if change.state in ENDED:
        session.run("end_job", **values, now=now, epoch=write.epoch)
        session.run("end_lease", id=write.job_id)
        session.run("wake_parent", id=write.job_id, now=now)
        return
    wait, clear = row.text(change.wait), int(change.clear_request)
    session.run("change_job", **values, wait=wait, clear_request=clear)
    if change.release:
        late_news = write.news_seen is not None and news != write.news_seen
        due_at = now if late_news else change.due_at
        parked = change.state in _PARKED  # only a person wakes it
        if parked:
            due_at = None
        ready = int(due_at is not None and due_at <= now)
        session.run("release", id=write.job_id, ready=ready, due_at=due_at, wakes=int(not parked))
