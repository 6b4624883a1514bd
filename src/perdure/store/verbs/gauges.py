"""What metrics show of a store."""

import msgspec

from perdure.jobs.fleet import WorkerInfo
from perdure.jobs.gauges import Backlog, StoreGauges, WorkerGauge, backlog
from perdure.jobs.model import WorkerRow
from perdure.store.statements import Session
from perdure.store.verbs.fleet import workers
from perdure.store.verbs.insight import stuck_jobs


def gauges(session: Session) -> StoreGauges:
    """Return what a store holds now that somebody may have to act on."""
    now = session.now()
    queues = session.all("gauge_queues", now=now)
    schedules = session.one("gauge_schedules")
    next_at = schedules[0] if schedules else None
    return StoreGauges(
        now=now,
        states={state: number for state, number in session.all("gauge_states")},  # noqa: C416  rows are no pairs to the type checker
        queues={name: backlog(int(count), since, now) for name, count, since in queues},
        stuck=len(stuck_jobs(session)),
        approvals=_backlog(session, "gauge_approvals", now),
        in_doubt=_backlog(session, "gauge_effects", now),
        notices=_backlog(session, "gauge_notices", now),
        schedule_lag=0.0 if next_at is None else max(0.0, now - next_at),
        workers=tuple(_worker(each) for each in workers(session)),
    )


def schema_number(session: Session) -> int:
    """Return the number of the newest migration that was applied."""
    found = session.one("schema_number")
    return found[0] if found and found[0] is not None else 0


def _backlog(session: Session, name: str, now: float) -> Backlog:
    found = session.one(name)
    return Backlog() if found is None else backlog(found[0], found[1], now)


def _worker(row: WorkerRow) -> WorkerGauge:
    try:
        info = msgspec.json.decode(row.info, type=WorkerInfo)
        name, slots = f"{info.host}:{info.pid}", info.concurrency
    except msgspec.MsgspecError:  # another version of perdure wrote it
        name, slots = "?", 0
    return WorkerGauge(name=name, silent_for=row.silent_for, running=row.running, concurrency=slots)
