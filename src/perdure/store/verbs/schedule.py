"""Schedules, who works, and facts about the store: the small tables."""

import secrets
from collections.abc import Sequence

from perdure.jobs.model import NewJob, Schedule
from perdure.store import rows
from perdure.store.statements import Session
from perdure.store.verbs.submit import submit


def put_schedule(session: Session, schedule: Schedule) -> None:
    """Keep a schedule under its name; its next time is another one only if its rule is."""
    session.run("put_schedule", **rows.schedule_row(schedule))


def schedules(session: Session, tenant: str | None) -> list[Schedule]:
    """List the schedules by tenant and name."""
    given = {} if tenant is None else {"tenant": tenant}
    return [rows.schedule(each) for each in session.find("schedules", set(given), **given)]


def delete_schedule(session: Session, tenant: str, name: str) -> bool:
    """Forget a schedule; tell whether there was one."""
    return bool(session.run("delete_schedule", tenant=tenant, name=name))


def pause_schedule(
    session: Session, tenant: str, name: str, next_at: float | None, *, paused: bool
) -> bool:
    """Let a schedule rest, or go on from a time; tell whether there is one."""
    given = {"tenant": tenant, "name": name, "paused": int(paused), "next_at": next_at}
    return bool(session.run("pause_schedule", **given))


def fire(
    session: Session, schedule: Schedule, next_at: float | None, jobs: Sequence[NewJob]
) -> bool:
    """Submit a schedule's jobs, unless somebody else was faster."""
    given = {"tenant": schedule.tenant, "name": schedule.name, "expected": schedule.next_at}
    if not session.run("fire", **given, next_at=next_at):
        return False
    submit(session, jobs, f"schedule {schedule.name}")
    return True


def beat(session: Session, owner: str, info: str | None) -> None:
    """Note that a worker lives, or that it has gone."""
    if info is None:
        session.run("sign_off", owner=owner)
    else:
        session.run("beat", owner=owner, info=info, clock=session.clock())


def workers(session: Session) -> list[tuple[str, float, bytes]]:
    """List workers with the seconds since their last beat."""
    rows = session.all("workers", clock=session.clock())
    return [(owner, max(age, 0.0), info.encode()) for owner, age, info in rows]


def forget_workers(session: Session, silent_for: float) -> None:
    """Delete workers that nobody has heard of for so long, and that hold no lease."""
    session.run("forget_silent_workers", limit=session.clock() - silent_for)


def fingerprint_key(session: Session) -> bytes:
    """Give the key of this store, drawn when it is first asked for."""
    session.run("keep_fact", name="fingerprint key", value=secrets.token_hex(32))
    found = session.one("fact", name="fingerprint key")
    assert found is not None
    return bytes.fromhex(found[0])
