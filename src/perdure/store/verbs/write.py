"""The fenced write of a job's owner: all of it happens, or none.

Plain writes (journal and ledger alone) do not come here: the writers put many of them into one
statement, whose fence is part of the statement. All other writes lock the leases first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import structs

from perdure.base.errors import LeaseLost
from perdure.jobs.fleet import job_kind
from perdure.jobs.model import (
    ChildWait,
    CodeVersion,
    EntryKind,
    JobChange,
    JobEvent,
    JournalEntry,
    NewBeginning,
    Write,
)
from perdure.jobs.state import ENDED, JobState, StepState
from perdure.store import rows
from perdure.store.statements import EncodedWrite, Session
from perdure.store.verbs.approval import withdraw_open
from perdure.store.verbs.budget import settle_ended, spend_all
from perdure.store.verbs.effect import write_effects
from perdure.store.verbs.output import keep_output, write_output
from perdure.store.verbs.submit import submit

_FINISHED: Final = (StepState.SUCCEEDED, StepState.FAILED)
_PARKED: Final = (JobState.PAUSED, JobState.NEEDS_ATTENTION)


def progresses(entries: Iterable[JournalEntry]) -> bool:
    """Whether the job makes progress with these entries."""
    return any(entry.state in _FINISHED or entry.checkpoint_no for entry in entries)


class _Fenced(NamedTuple):
    """A write, its rows, and what its locked lease says."""

    write: Write
    entries: Sequence[tuple[Any, ...]]
    effects: Sequence[Mapping[str, Any]]
    news: int
    claims: int


def write_all(session: Session, writes: Sequence[EncodedWrite]) -> None:
    """Make writes of any kind, all or none; of one job, nothing follows its release or end.

    Raises:
        LeaseLost: The fence of one of them did not hold; everything must be rolled back.
    """
    works = _behind_fences(session, writes)
    now = session.now()
    if entries := [row for work in works for row in work.entries]:
        session.write_entries(entries)
    if events := [_event_row(work, event, now) for work in works for event in work.write.events]:
        session.many("insert_event", events)
    if spending := [change for work in works for change in work.write.spending]:
        spend_all(session, spending, now)
    for work in works:
        _write_rest(session, work, now)
    ended = [work.write for work in works if work.write.job and work.write.job.state in ENDED]
    if ended:
        _end(session, ended, now)


def _behind_fences(session: Session, writes: Sequence[EncodedWrite]) -> list[_Fenced]:
    """Lock the leases, in a fixed order, and check that they are the writers'."""
    ids = session.array(sorted({write.job_id for write, _, _ in writes}))
    leases = {each[0]: each[1:] for each in session.all("fences", ids=ids)}
    works: list[_Fenced] = []
    for write, entries, effects in writes:
        owner, epoch, news, claims = leases.get(write.job_id, (None, 0, 0, 0))
        if (owner, epoch) != (write.owner, write.epoch):
            raise LeaseLost(write.job_id, write.epoch)
        works.append(_Fenced(write, entries, effects, news, claims))
    return works


def _event_row(work: _Fenced, event: JobEvent, now: float) -> dict[str, Any]:
    return rows.event_row(work.write.job_id, event, now)


def _write_rest(session: Session, work: _Fenced, now: float) -> None:
    write = work.write
    if work.claims > 1 and progresses(write.entries):
        session.run("progressed", id=write.job_id)
    if write.chunks:
        session.many(
            "insert_payload", [rows.chunk_row(write.job_id, each) for each in write.chunks]
        )
    if write.taken:
        session.run("take_messages", id=write.job_id, nos=session.array(write.taken), now=now)
    if write.children:
        submit(session, write.children, write.owner)
    write_effects(session, write, work.effects, now)
    if write.output is not None:
        write_output(session, write.job_id, write.output, now)
    _change_version(session, write.job_id, write.belongs_to)
    _count(session, write)
    if write.job is not None:
        session.unproven_claims.discard((write.job_id, write.epoch))
        if write.job.state not in ENDED:
            _change(session, write, write.job, work.news, now)


def _count(session: Session, write: Write) -> None:
    """Keep the numbers that people see of a job."""
    if write.reused:
        session.run("count_reused", id=write.job_id, number=write.reused)
    if any(
        each.kind is EntryKind.UNDO and each.state is StepState.FAILED for each in write.entries
    ):
        session.run("count_failed_undos", id=write.job_id)
    if write.stalled is not None:
        session.run("stall", id=write.job_id, stalled=int(write.stalled))


def _end(session: Session, writes: Sequence[Write], now: float) -> None:
    outcomes = [
        {**_outcome(write.job_id, write.job), "epoch": write.epoch} for write in writes if write.job
    ]
    end_jobs(session, outcomes, now)


def end_jobs(session: Session, jobs: Sequence[Mapping[str, Any]], now: float) -> None:
    """End jobs, each given as the parameters of `end_job`; the caller has locked their leases.

    Nothing of them stays open: questions are withdrawn, and reservations are settled.
    """
    job_ids = [job["id"] for job in jobs]
    ids = session.array(job_ids)
    clock = session.clock()
    session.many("end_job", [{**job, "now": now, "clock": clock} for job in jobs])
    session.run("end_leases", ids=ids)
    _wake_parents(session, job_ids, now)
    withdraw_open(session, job_ids, now)
    settle_ended(session, job_ids)


def _wake_parents(session: Session, job_ids: Sequence[str], now: float) -> None:
    """Count the ends of children for their parents, in the order in which leases are locked."""
    ends = Counter(parent for (parent,) in session.all("parents", ids=session.array(job_ids)))
    if ends:
        parents = [{"id": id, "number": ends[id], "now": now} for id in sorted(ends)]
        session.many("wake_parent", parents)


def _outcome(job_id: str, change: JobChange) -> dict[str, Any]:
    return {
        "id": job_id,
        "state": change.state.value,
        "result": rows.text(change.result),
        "error": rows.text(change.error),
    }


def _change(session: Session, write: Write, change: JobChange, news: int, now: float) -> None:
    late_news = write.news_seen is not None and news != write.news_seen
    if change.state in _PARKED and change.release and late_news:
        change = _unless_overtaken(session, write.job_id, change)
    wait, clear = rows.text(change.wait), int(change.clear_request)
    session.run("change_job", **_outcome(write.job_id, change), wait=wait, clear_request=clear)
    if change.begins_anew is not None:
        _begin_anew(session, write.job_id, change.begins_anew)
    if change.release:
        _release(session, write.job_id, change, now, is_due=late_news)
    if change.state == JobState.NEEDS_ATTENTION:  # a parent that waits to undo it can say so
        session.run("wake_undoing_parent", id=write.job_id, now=now)


def _change_version(session: Session, job_id: str, code: CodeVersion | None) -> None:
    """Let only workers that know this version of its code claim a job, if one is given."""
    if code is None:
        return
    session.run("change_version", id=job_id, version=code.version)
    session.run("change_kind", id=job_id, kind=job_kind(code.name, code.version))


def _begin_anew(session: Session, job_id: str, begins: NewBeginning) -> None:
    """Give a job other arguments and an empty journal; its large payloads go with the old one."""
    _change_version(session, job_id, CodeVersion(begins.name, begins.version))
    session.run("begin_anew", id=job_id, input=rows.text(begins.input))
    keep_output(session, job_id)
    session.run("forget_journal", id=job_id, seq=begins.seq)
    session.run("delete_payload", ids=session.array([job_id]))


def _release(session: Session, job_id: str, change: JobChange, now: float, *, is_due: bool) -> None:
    """Give up the lease, and say when the job may be claimed again."""
    parked = change.state in _PARKED  # only a person wakes it
    due_at = None if parked else now if is_due or change.at_once else change.due_at
    awaits, gathers = (0, 0.0) if parked else _awaited(session, change.children)
    if change.children is not None and awaits <= 0 and not parked:  # enough have ended meanwhile
        due_at = now + gathers if due_at is None else min(due_at, now + gathers)
    ready, wakes = int(due_at is not None and due_at <= now), int(not parked)
    values = {"ready": ready, "due_at": due_at, "wakes": wakes, "awaits": awaits}
    session.run("release", id=job_id, gathers=gathers, clock=session.clock(), **values)


def _awaited(session: Session, children: ChildWait | None) -> tuple[int, float]:
    """Return how many more children must end, and for how long further ends are gathered then.

    A child that ends at this moment, in another transaction, is still counted here: it waits for
    the lock of its parent's lease, and counts itself down when this transaction has ended.
    """
    if children is None:
        return 0, 0.0
    found = session.one("not_ended", ids=session.array(children.ids))
    ended = len(children.ids) - (found[0] if found else 0)
    return children.needed - ended, children.window


def _unless_overtaken(session: Session, job_id: str, change: JobChange) -> JobChange:
    """Keep an owner that parks its job from overriding a command that came meanwhile.

    That is a cancel, or the resume of a job that was to be paused.
    """
    found = session.one("job_state", id=job_id)
    assert found is not None
    state, request = found[:2]
    stays = request != "cancel" if change.state == JobState.NEEDS_ATTENTION else request == "pause"
    if stays:
        return change
    goes_on = JobState.COMPENSATING if state == JobState.COMPENSATING else JobState.WAITING
    return structs.replace(change, state=goes_on, clear_request=False)
