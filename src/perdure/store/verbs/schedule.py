"""The small tables: schedules, workers, and facts about the store."""

import secrets
from collections.abc import Sequence

from perdure.jobs.model import NewJob, Schedule
from perdure.store import rows
from perdure.store.statements import Session
from perdure.store.verbs.submit import submit


def put_schedule(session: Session, schedule: Schedule) -> None:
    """Insert or replace a schedule, known by its tenant and name.

    An existing one keeps its next time, unless cron or time zone change, and stays paused.
    """
    session.run("put_schedule", **rows.schedule_row(schedule))


def schedules(session: Session, tenant: str | None = None) -> list[Schedule]:
    """Return the schedules by tenant and name."""
    given = {} if tenant is None else {"tenant": tenant}
    return [rows.schedule(each) for each in session.find("schedules", set(given), **given)]


def delete_schedule(session: Session, tenant: str, name: str) -> bool:
    """Delete a schedule; return whether there was one."""
    return bool(session.run("delete_schedule", tenant=tenant, name=name))


def pause_schedule(
    session: Session, tenant: str, name: str, next_at: float | None, *, paused: bool
) -> bool:
    """Pause a schedule, or resume it from a time; return whether it exists."""
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


def heartbeat(session: Session, owner: str, info: bytes | None) -> None:
    """Register a worker, or record that it is alive; None removes it."""
    if info is None:
        session.run("delete_worker", owner=owner)
    else:
        session.run("heartbeat", owner=owner, info=info.decode(), clock=session.clock())


def workers(session: Session) -> list[tuple[str, float, bytes]]:
    """Return workers: owner, seconds since the last heartbeat, info."""
    rows = session.all("workers", clock=session.clock())
    return [(owner, max(age, 0.0), info.encode()) for owner, age, info in rows]


def forget_workers(session: Session, silent_for: float) -> None:
    """Delete workers without a recent heartbeat, unless they still hold leases."""
    session.run("forget_silent_workers", limit=session.clock() - silent_for)


def fingerprint_key(session: Session) -> bytes:
    """Return the key of this store's fingerprints of personal data; made on first use."""
    session.run("keep_fact", name="fingerprint key", value=secrets.token_hex(32))
    found = session.one("fact", name="fingerprint key")
    assert found is not None
    return bytes.fromhex(found[0])
