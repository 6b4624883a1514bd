"""Convert rows of tables to values and back.

Payloads are JSON: bytes outside, text in the database, and never inspected here.
The rows of a fenced write are made by `db_thread`, as a part of the request.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from perdure.jobs.effect import Effect, EffectState, Place, UndoCall
from perdure.jobs.model import (
    EntryKind,
    Job,
    JobEvent,
    JobMessage,
    JobOutcome,
    JournalEntry,
    NewJob,
    Progress,
    Schedule,
)
from perdure.jobs.payload import Chunk
from perdure.jobs.state import JobState, StepState
from perdure.store.statements import Row

_KINDS = {kind.value: kind for kind in EntryKind}
_STEP_STATES = {state.value: state for state in StepState}
_JOB_STATES = {state.value: state for state in JobState}
STAYS = "null"  # the undo of an effect that is meant to stay


def text(payload: bytes | None) -> str | None:
    """Return a payload as the database stores it."""
    return None if payload is None else payload.decode()


def payload(stored: str | None) -> bytes | None:
    """Return a payload that was read from the database."""
    return None if stored is None else stored.encode()


def entry(row: Row) -> JournalEntry:
    """Return an entry of a journal; the row's first column is its job."""
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


def child_of(given: str | None) -> str | None:
    """Return the child that an undo undoes, from its arguments; None if it undoes none."""
    try:
        return None if given is None else msgspec.json.decode(given, type=_Child).child
    except msgspec.MsgspecError:
        return None


class _Child(msgspec.Struct):
    child: str | None = None


def chunk_row(job_id: str, chunk: Chunk) -> dict[str, Any]:
    """Return the parameters of the insert of a part of a large payload."""
    return {"id": job_id, "digest": chunk.digest, "data": chunk.data}


def effect(row: Row) -> Effect:
    """Return a line of the ledger."""
    return Effect(
        job_id=row[0],
        no=row[1],
        tenant=row[2],
        key=row[3],
        place=Place(row[4], row[6], row[5]),
        generation=row[7],
        kind=row[8],
        target=row[9],
        state=EffectState(row[10]),
        in_doubt=row[11],
        key_ttl=row[12],
        details=payload(row[13]),
        result=payload(row[14]),
        problem=row[15],
        error=payload(row[16]),
        undo=None if row[17] is None else msgspec.json.decode(row[17], type=UndoCall | None),
        stays=row[17] == STAYS,
        proof=row[18],
        called_at=row[19],
        ended_at=row[20],
        business=row[21],
        kept_until=row[22],
        last_called_at=row[23],
    )


def job_row(job: NewJob, now: float) -> dict[str, Any]:
    """Return the parameters of the insert of a new job."""
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
        "key": job.key,
        "fingerprint": job.fingerprint,
        "parent": job.parent,
        "parent_seq": job.parent_seq,
        "forked_from": job.forked_from,
        "budget_of": job.budget_of,
        "created_at": now,
        "deadline_at": None if job.deadline is None else now + job.deadline,
        "labels": msgspec.json.encode(job.labels).decode() if job.labels else None,
    }


_read_progress = msgspec.json.Decoder(tuple[Progress, ...]).decode


def job(row: Row) -> Job:
    """Return a job with what its lease says."""
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
        result=payload(row[10]),
        error=payload(row[11]),
        wait=payload(row[12]),
        request=row[13],
        key=row[14],
        parent=row[15],
        parent_seq=row[16],
        forked_from=row[17],
        created_at=row[18],
        started_at=row[19],
        ended_at=row[20],
        deadline_at=row[21],
        due_at=row[22],
        owner=row[23],
        epoch=row[24],
        claims=row[25],
        budget_of=row[26],
        awaits=max(0, row[27]),
        labels=labels(row[28]),
        worked=row[29],
        progress=() if row[30] is None else _read_progress(row[30]),
        silent_for=row[31],
        stuck=bool(row[32]),
        failed_undos=row[33],
    )


def labels(data: str | None) -> dict[str, str]:
    """Return the labels of a job as they are stored in its row."""
    return {} if data is None else msgspec.json.decode(data, type=dict[str, str])


def label_rows(job: NewJob, now: float) -> list[dict[str, Any]]:
    """Return the parameters of the inserts of a job's labels."""
    return [
        {"id": job.id, "name": name, "value": value, "now": now}
        for name, value in job.labels.items()
    ]


def event_row(job_id: str, event: JobEvent, now: float) -> dict[str, Any]:
    """Return the parameters of the insert of an event."""
    data = msgspec.json.encode(event.data).decode() if event.data else "{}"
    return {"id": job_id, "type": event.type, "data": data, "actor": event.actor, "at": now}


def event(row: Row) -> JobEvent:
    """Return an event."""
    data = msgspec.json.decode(row[1], type=dict[str, Any])
    return JobEvent(type=row[0], data=data, actor=row[2], at=row[3], no=row[4])


def message(row: Row) -> JobMessage:
    """Return a message; the row's first column is its job."""
    return JobMessage(no=row[1], topic=row[2], payload=row[3].encode(), sent_at=row[4])


def outcome(row: Row) -> JobOutcome:
    """Return the outcome of a job, which may not have ended."""
    result, error, wait = map(payload, row[2:5])
    return JobOutcome(row[0], _JOB_STATES[row[1]], result, error, wait, row[5])


def schedule_row(schedule: Schedule) -> dict[str, Any]:
    """Return the parameters of the upsert of a schedule."""
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
    """Return a schedule."""
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
    """Return rows grouped by their first column."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    return dict(groups)
