"""Submissions: each job is stored once, with its lease and its turn among the tenants."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from perdure.base.errors import IllegalTransition, JobNotFound, KeyConflict
from perdure.jobs.fleet import kind_of, plan_steps
from perdure.jobs.model import JobEvent, NewJob, Submitted
from perdure.jobs.payload import stand_in_of
from perdure.store import rows
from perdure.store.sealing import chunk_names
from perdure.store.statements import Session
from perdure.store.verbs.budget import grant_first
from perdure.store.verbs.requester import add_requesters, inherit_requesters
from perdure.store.verbs.reseal import copy_sealed


def submit(session: Session, jobs: Sequence[NewJob], actor: str = "") -> list[Submitted]:
    """Insert new jobs, all or none; for a key that is known, return the job of that key.

    Raises:
        KeyConflict: The key is known with another fingerprint.
    """
    now = session.now()
    # One by one: two with the same key in one batch are one job.
    done = [_insert(session, job, now) for job in jobs]
    new = [job for job, result in zip(jobs, done, strict=True) if result.created]
    if new:
        tags = _tags(session, new)
        leases = [_lease_row(job, tag, now) for job, tag in zip(new, tags, strict=True)]
        session.many("insert_lease", leases)
        for row in map(kind_row, new):
            if row["steps"] is not None:
                session.run("keep_plan_kind", **row)
        events = [rows.event_row(job.id, submitted(job, actor), now) for job in new]
        session.many("insert_event", events)
        if labels := [row for job in new for row in rows.label_rows(job, now)]:
            session.many("insert_label", labels)
        if traced := [{"id": job.id, "parent": job.trace} for job in new if job.trace]:
            session.many("insert_trace", traced)
    for job in new:
        _insert_rare(session, job)
    return done


def _insert_rare(session: Session, job: NewJob) -> None:
    if job.budget is not None:
        grant_first(session, job.id, job.budget)
    if job.requesters:
        add_requesters(session, job.id, job.tenant, job.requesters)


def fork(session: Session, source: str, job: NewJob, before: int, actor: str) -> str:
    """Submit a job with a copy of the journal entries of `source` before a place; return its id.

    Raises:
        JobNotFound: There is no such source.
        IllegalTransition: There is no entry at this place any more, or one among them was undone,
            or has asked people.
        KeyConflict: The new job exists already.
    """
    if session.one("keep_job", id=source) is None:
        raise JobNotFound(source)
    if session.one("entry_id", id=source, seq=before) is None:
        raise IllegalTransition(f"job {source} has begun anew meanwhile: fork it where it is now")
    refused = fork_refusal(session, source, before)
    if refused is not None:
        raise IllegalTransition(refused)
    (result,) = submit(session, [job], actor)
    if not result.created:
        raise KeyConflict(f"there is a job {result.id!r} already; give the fork another id or key")
    session.run("copy_journal", id=job.id, source=source, before=before)
    inherit_requesters(session, source, job.id, actor)
    copy_sealed(session, "journal", {"job_id": source}, {"job_id": job.id})
    _copy_payloads(session, source, job.id)
    note = JobEvent(type="forked", data={"job": job.id, "before": before}, actor=actor)
    session.run("insert_event", **rows.event_row(source, note, session.now()))
    return job.id


def fork_refusal(session: Session, source: str, before: int) -> str | None:
    """Return why a job cannot be forked before a place; None if it can."""
    undone = session.one("undone_entry", source=source, before=before)
    if undone is not None:
        return f"{undone[0]} of job {source} was undone: fork before it"
    answered = session.one("answered_step", source=source, before=before)
    if answered is not None:
        return (
            f"{answered[0]} of job {source} has asked people, and said their answer only to that "
            f"job: fork before {answered[0]}, so that they are asked again"
        )
    return None


def _copy_payloads(session: Session, source: str, fork: str) -> None:
    """Copy the large payloads of the entries that a fork has, so that it outlives its source."""
    entries = map(rows.entry, session.all("journal", ids=session.array([fork])))
    found = (stand_in_of(each) for entry in entries for each in (entry.input, entry.output))
    wanted = sorted({name for stand_in in found if stand_in for name in stand_in.chunks})
    if wanted and session.keys is None:
        session.run("copy_payload", id=fork, source=source, digests=session.array(wanted))
    elif wanted:  # each is sealed for its job
        names = chunk_names(session.keys, source, wanted)
        found = session.all("payload", id=source, digests=session.array(list(names)))
        chunks = {names[name]: bytes(data) for name, data in found}
        made = [{"id": fork, "digest": name, "data": data} for name, data in chunks.items()]
        session.many("insert_payload", made)


def _insert(session: Session, job: NewJob, now: float) -> Submitted:
    if session.run("insert_job", **rows.job_row(job, now)):
        return Submitted(job.id, True)
    found = session.one("same_job", tenant=job.tenant, key=job.key, id=job.id)
    assert found is not None
    known, fingerprint = found
    if fingerprint != job.fingerprint:
        what = f"the key {job.key!r}" if job.key is not None else f"the id {job.id!r}"
        raise KeyConflict(
            f"{what} belongs to job {known!r}, submitted with another name or other arguments: "
            "use another key, or the same arguments"
        )
    return Submitted(known, False)


def _lease_row(job: NewJob, tag: int, now: float) -> dict[str, Any]:
    return {
        "id": job.id,
        "tenant": job.tenant,
        "queue": job.queue,
        "kind": kind_row(job)["kind"],
        "priority": job.priority,
        "tag": tag,
        "ready": int(job.delay <= 0),
        "due_at": now + max(job.delay, 0.0),
        "epoch": 0,
        "worked": 0.0,
    }


def kind_row(job: NewJob) -> dict[str, Any]:
    """Return the kind of a job, and for a plan the steps that a worker must know."""
    steps = None if job.plan is None else msgspec.json.encode(plan_steps(job.plan)).decode()
    return {"kind": kind_of(job.name, job.version, job.plan), "steps": steps}


def submitted(job: NewJob, actor: str) -> JobEvent:
    """Return the event of a submission."""
    data: dict[str, Any] = {"forked_from": job.forked_from} if job.forked_from else {}
    if job.delay > 0:
        data["delay"] = job.delay
    return JobEvent(type="submitted", data=data, actor=actor or job.user)


def _tags(session: Session, jobs: Sequence[NewJob]) -> list[int]:
    """Return each job's turn: after the tenant's last one, but not before the one served now."""
    numbers = Counter((job.queue, job.tenant) for job in jobs)
    # In a fixed order, since each waits for other transactions that take the same turns.
    turns = {whose: take_turns(session, *whose, numbers[whose]) for whose in sorted(numbers)}
    return [next(turns[job.queue, job.tenant]) for job in jobs]


def take_turns(session: Session, queue: str, tenant: str, number: int) -> Iterator[int]:
    """Take a tenant's next turns in a queue, and return them."""
    found = session.one("take_turns", queue=queue, tenant=tenant, number=number)
    assert found is not None
    last: int = found[0]
    return iter(range(last - number + 1, last + 1))
