"""The small tables: schedules, and facts about the store."""

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from perdure.jobs.model import NewJob, Schedule
from perdure.store import rows
from perdure.store.statements import Session
from perdure.store.verbs.submit import submit


class Agenda(NamedTuple):
    """In how many seconds something is due; None: never, as far as it is known."""

    schedules_in: float | None
    approvals_in: float | None
    notices_in: float | None
    is_commanded: bool  # somebody waits for the worker's answer to a command


def agenda(session: Session, channels: Sequence[str], owner: str = "") -> Agenda:
    """Return when schedules, approval timers and the notices of some channels are due next.

    It also says whether a worker is commanded: no query of its own is spent on that.
    """
    found = session.one("agenda", channels=session.array(channels), owner=owner)
    assert found is not None
    commanded, *times, now = found
    now = session.now() if now is None else now
    due_in = [None if time is None else time - now for time in times]
    return Agenda(*due_in, is_commanded=commanded is not None)


def put_schedule(session: Session, schedule: Schedule) -> None:
    """Insert or replace a schedule, known by its tenant and name.

    An existing one keeps its next time, unless cron or time zone change, and stays paused. Whoever
    has resumed it has still asked for its jobs.
    """
    known = _locked(session, schedule.tenant, schedule.name)
    if known is not None:
        schedule = _also_asked_by(schedule, *known.job.requesters)
    session.run("put_schedule", **rows.schedule_row(schedule))


def _locked(session: Session, tenant: str, name: str) -> Schedule | None:
    found = session.one("lock_schedule", tenant=tenant, name=name)
    return None if found is None else rows.schedule(found)


def _also_asked_by(schedule: Schedule, *people: str) -> Schedule:
    asked = tuple(dict.fromkeys((*schedule.job.requesters, *people)))
    return replace(schedule, job=replace(schedule.job, requesters=asked))


def schedules(session: Session, tenant: str | None = None) -> list[Schedule]:
    """Return the schedules by tenant and name."""
    given = {} if tenant is None else {"tenant": tenant}
    return [rows.schedule(each) for each in session.find("schedules", set(given), **given)]


def delete_schedule(session: Session, tenant: str, name: str) -> bool:
    """Delete a schedule; return whether there was one."""
    return bool(session.run("delete_schedule", tenant=tenant, name=name))


def pause_schedule(
    session: Session, tenant: str, name: str, next_at: float | None, *, paused: bool, by: str = ""
) -> bool:
    """Pause a schedule, or resume it from a time; return whether it exists.

    Who resumes it has asked for the jobs that it then submits.
    """
    if by and not paused and (known := _locked(session, tenant, name)) is not None:
        job = rows.schedule_row(_also_asked_by(known, by))["job"]
        session.run("change_schedule_job", tenant=tenant, name=name, job=job)
    given = {"tenant": tenant, "name": name, "paused": int(paused), "next_at": next_at}
    return bool(session.run("pause_schedule", **given))


def fire(
    session: Session, schedule: Schedule, next_at: float | None, jobs: Sequence[NewJob]
) -> bool:
    """Submit a schedule's jobs and set its next time; False if another worker was faster."""
    given = {"tenant": schedule.tenant, "name": schedule.name, "expected": schedule.next_at}
    if not session.run("fire", **given, next_at=next_at):
        return False
    submit(session, jobs, f"schedule {schedule.name}")
    return True


def fingerprint_key(session: Session) -> bytes:
    """Return the key of this store's fingerprints of personal data; made on first use."""
    session.run("keep_fact", name="fingerprint key", value=secrets.token_hex(32))
    found = session.one("fact", name="fingerprint key")
    assert found is not None
    return bytes.fromhex(found[0])
