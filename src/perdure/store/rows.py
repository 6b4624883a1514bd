"""Rows of tables to values and back. Payloads are bytes outside, text in the database."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from perdure.jobs.model import (
    EntryKind,
    Job,
    JobEvent,
    JobMessage,
    JobOutcome,
    JournalEntry,
    NewJob,
    Schedule,
    Write,
)
from perdure.jobs.state import JobState, StepState
from perdure.store.statements import Row

_plain = str.__str__  # of an enum: faster than its `value`, and a driver takes only plain text
_KINDS = {kind.value: kind for kind in EntryKind}
_STEP_STATES = {state.value: state for state in StepState}
_JOB_STATES = {state.value: state for state in JobState}


def text(payload: bytes | None) -> str | None:
    """Spell a payload for the database."""
    return None if payload is None else payload.decode()


def payload(stored: str | None) -> bytes | None:
    """Read a payload from the database."""
    return None if stored is None else stored.encode()


def entry_row(write: Write, entry: JournalEntry) -> tuple[Any, ...]:
    """Give an entry in the order of the journal's columns, owner and epoch before its key."""
    given, output, error, checkpoint = entry.input, entry.output, entry.error, entry.checkpoint
    return (
        write.job_id,
        entry.seq,
        entry.id,
        _plain(entry.kind),
        entry.name,
        _plain(entry.state),
        entry.attempt,
        None if given is None else given.decode(),
        None if output is None else output.decode(),
        None if error is None else error.decode(),
        None if checkpoint is None else checkpoint.decode(),
        entry.checkpoint_no,
        entry.wake_at,
        entry.started_at,
        entry.ended_at,
        write.owner,
        write.epoch,
        entry.key,
    )


def entry(row: Row) -> JournalEntry:
    """Read an entry; the row's first column is its job."""
    return JournalEntry(
        seq=row[1],
        id=row[2],
        kind=_KINDS[row[3]],
        name=row[4],
        state=_STEP_STATES[row[5]],
        attempt=row[6],
        input=payload(row[7]),
        output=payload(row[8]),
        error=payload(row[9]),
        checkpoint=payload(row[10]),
        checkpoint_no=row[11],
        wake_at=row[12],
        started_at=row[13],
        ended_at=row[14],
        key=row[15],
    )


def job_row(job: NewJob, now: float) -> dict[str, Any]:
    """Give a new job as the parameters of its insert."""
    return {
        "id": job.id,
        "tenant": job.tenant,
        "user": job.user,
        "name": job.name,
        "version": job.version,
        "queue": job.queue,
        "priority": job.priority,
        "input": job.input.decode(),
        "plan": text(job.plan),
        "options": job.options.decode(),
        "key": job.key,
        "fingerprint": job.fingerprint,
        "parent": job.parent,
        "parent_seq": job.parent_seq,
        "forked_from": job.forked_from,
        "budget_of": job.budget_of,
        "created_at": now,
        "deadline_at": None if job.deadline is None else now + job.deadline,
    }


def job(row: Row) -> Job:
    """Read a job with what its lease says."""
    return Job(
        id=row[0],
        tenant=row[1],
        user=row[2],
        name=row[3],
        version=row[4],
        state=_JOB_STATES[row[5]],
        queue=row[6],
        priority=row[7],
        input=row[8].encode(),
        plan=payload(row[9]),
        options=row[10].encode(),
        result=payload(row[11]),
        error=payload(row[12]),
        wait=payload(row[13]),
        request=row[14],
        key=row[15],
        parent=row[16],
        parent_seq=row[17],
        forked_from=row[18],
        created_at=row[19],
        started_at=row[20],
        ended_at=row[21],
        deadline_at=row[22],
        due_at=row[23],
        owner=row[24],
        epoch=row[25],
        claims=row[26],
        budget_of=row[27],
    )


def event_row(job_id: str, event: JobEvent, now: float) -> dict[str, Any]:
    """Give an event as the parameters of its insert."""
    data = msgspec.json.encode(event.data).decode() if event.data else "{}"
    return {"id": job_id, "type": event.type, "data": data, "actor": event.actor, "at": now}


def event(row: Row) -> JobEvent:
    """Read an event."""
    data = msgspec.json.decode(row[1], type=dict[str, Any])
    return JobEvent(type=row[0], data=data, actor=row[2], at=row[3], no=row[4])


def message(row: Row) -> JobMessage:
    """Read a message; the row's first column is its job."""
    return JobMessage(no=row[1], topic=row[2], payload=row[3].encode(), sent_at=row[4])


def outcome(row: Row) -> JobOutcome:
    """Read how a job ended."""
    return JobOutcome(row[0], _JOB_STATES[row[1]], payload(row[2]), payload(row[3]))


def schedule_row(schedule: Schedule) -> dict[str, Any]:
    """Give a schedule as the parameters of its upsert."""
    return {
        "tenant": schedule.tenant,
        "name": schedule.name,
        "cron": schedule.cron,
        "job": msgspec.json.encode(schedule.job).decode(),
        "timezone": schedule.timezone,
        "catch_up": schedule.catch_up,
        "paused": int(schedule.paused),
        "next_at": schedule.next_at,
        "last_at": schedule.last_at,
    }


def schedule(row: Row) -> Schedule:
    """Read a schedule."""
    return Schedule(
        name=row[0],
        cron=row[1],
        job=msgspec.json.decode(row[2], type=NewJob),
        timezone=row[3],
        catch_up=row[4],
        paused=bool(row[5]),
        next_at=row[6],
        last_at=row[7],
    )


def by_job(rows: Iterable[Row]) -> dict[str, Sequence[Row]]:
    """Group rows by their first column."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    return dict(groups)
