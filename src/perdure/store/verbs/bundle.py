"""A job that was exported elsewhere, as a copy that has ended."""

from typing import Any

import msgspec

from perdure.base.errors import KeyConflict
from perdure.jobs.bundle import IMPORTED, Bundle, BundleEffect, imported_end, stored
from perdure.jobs.effect import OPEN, EffectState
from perdure.jobs.model import JobEvent
from perdure.jobs.output import pack
from perdure.store import rows
from perdure.store.statements import Session
from perdure.store.verbs.requester import add_requesters


def import_job(session: Session, bundle: Bundle, job_id: str, actor: str) -> None:
    """Store a copy of a job under an id: it has ended, and no worker claims it.

    It belongs to a tenant and a queue of their own. Nothing in it is found by keys of other jobs.

    Raises:
        KeyConflict: There is a job with this id.
    """
    if not session.run("import_job", **_job_row(bundle, job_id)):
        raise KeyConflict(f"there is a job {job_id!r} already")
    session.many("import_entry", [_entry_row(job_id, each) for each in bundle.journal])
    session.many("import_effect", [_effect_row(job_id, each) for each in bundle.effects])
    for event in bundle.events:
        session.run("insert_event", **rows.event_row(job_id, event, event.at))
    note = JobEvent(type="imported", data={"job": bundle.job.id}, actor=actor)
    session.run("insert_event", **rows.event_row(job_id, note, session.now()))
    add_requesters(session, job_id, None, [actor])  # of a tenant that it does not belong to
    for topic in bundle.output:
        _import_topic(session, bundle, job_id, topic)
    now = bundle.job.created_at
    for name, value in bundle.job.labels.items():
        session.run("insert_label", id=job_id, name=name, value=value, now=now)


def _job_row(bundle: Bundle, job_id: str) -> dict[str, Any]:
    job = bundle.job
    state, ended_at, error = imported_end(bundle)
    return {
        "id": job_id,
        "tenant": IMPORTED,
        "user": job.user,
        "name": job.name,
        "version": job.version,
        "state": state.value,
        "queue": IMPORTED,
        "priority": job.priority,
        "input": (stored(job.input) or b"null").decode(),
        "result": rows.text(stored(job.result)),
        "error": rows.text(error),
        "wait": rows.text(stored(job.wait)),
        "created_at": job.created_at,
        "started_at": job.started_at,
        "ended_at": ended_at,
        "labels": msgspec.json.encode(job.labels).decode() if job.labels else None,
        "worked": job.worked,
    }


def _entry_row(job_id: str, entry: Any) -> dict[str, Any]:
    plain = msgspec.structs.asdict(entry)
    for name in ("input", "output", "error", "checkpoint"):
        plain[name] = rows.text(stored(plain[name]))
    return {**plain, "job_id": job_id, "kind": entry.kind.value, "state": entry.state.value}


def _effect_row(job_id: str, effect: BundleEffect) -> dict[str, Any]:
    plain = msgspec.structs.asdict(effect)
    for name in ("details", "result", "error"):
        plain[name] = rows.text(stored(plain[name]))
    del plain["undo"], plain["stays"]
    # The job has ended: whatever was open is in doubt, and nobody is asked about it here.
    state = EffectState.FAILED if effect.state in OPEN else effect.state
    more = {"id": job_id, "tenant": IMPORTED, "key": f"{job_id}:{effect.key}", "state": state.value}
    proof = f"imported; it was {effect.state}" if effect.state in OPEN else effect.proof
    return {**plain, **more, "proof": proof}


def _import_topic(session: Session, bundle: Bundle, job_id: str, topic: str) -> None:
    pieces = [each for each in bundle.output[topic] if each.kind == "value"]
    if not pieces:
        return
    data = [stored(each.value) or b"null" for each in pieces]
    size, last = sum(map(len, data)), pieces[-1].position
    given = {"id": job_id, "topic": topic, "pieces": len(pieces), "size": size}
    more = {"step": "", "attempt": 0, "part": -1, "discards": None}
    session.run("insert_output", **given, **more, no=len(pieces), data=pack(data), at=pieces[-1].at)
    session.run("put_topic", **given, last=max(last, len(pieces)), emitted=len(pieces), dropped=0)
