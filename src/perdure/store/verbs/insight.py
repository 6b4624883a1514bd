"""What pages show of many jobs: groups of errors, and numbers over time."""

from typing import Any

from perdure.jobs.error_group import ErrorMark, ErrorState, FailedJob
from perdure.jobs.gauges import Backlog, backlog
from perdure.jobs.series import MINUTE, MetricsFacts, StepStats
from perdure.jobs.state import JobState
from perdure.store import rows
from perdure.store.statements import Session

_WORKED = 10_000  # ended jobs whose worked time is looked at
_SAMPLED = 200  # newest jobs whose steps are looked at …
_ENTRIES = 200  # … and so many entries of each


def failed_jobs(session: Session, tenant: str | None, since: float, limit: int) -> list[FailedJob]:
    """Return the newest jobs that failed or need attention, so many of each at most."""
    found: list[FailedJob] = []
    for state in (JobState.FAILED, JobState.NEEDS_ATTENTION):
        given = {**_tenant(tenant), "state": state.value, "since": since, "limit": limit}
        for id, owner, name, at, error in session.find("failed_jobs", set(given), **given):
            found.append(FailedJob(id=id, tenant=owner, name=name, at=at, error=error.encode()))
    return found


def error_marks(session: Session, tenant: str) -> dict[str, ErrorMark]:
    """Return what people said about groups of errors, by fingerprint."""
    return {
        fingerprint: ErrorMark(state=ErrorState(state), by=by, at=at)
        for fingerprint, state, by, at in session.all("error_marks", tenant=tenant)
    }


def mark_error(
    session: Session, tenant: str, fingerprint: str, state: ErrorState, actor: str
) -> None:
    """Record what a person says about a group of errors."""
    given = {"tenant": tenant, "fingerprint": fingerprint, "state": state.value, "by": actor}
    session.run("mark_error", **given, now=session.now())


def stuck_jobs(session: Session, tenant: str | None = None) -> list[str]:
    """Return the jobs that are stuck, of all tenants or of one: at most those that workers have."""
    whose = _tenant(tenant)
    found = session.find("stuck_jobs", set(whose), **whose, clock=session.clock())
    return [each[0] for each in found]


def metrics(session: Session, tenant: str | None, minutes: int) -> MetricsFacts:
    """Return what the page of metrics shows, for all tenants or for one."""
    whose, now = _tenant(tenant), session.now()
    since = (now // MINUTE - minutes + 1) * MINUTE
    newest = session.find("newest_jobs", set(whose), **whose, now=now, limit=_SAMPLED)
    ids = session.array([each[0] for each in newest])
    return MetricsFacts(
        now=now,
        submitted=_submitted(session, whose, since),
        ended=_ended(session, whose, since),
        worked=_worked(session, whose, since, now + MINUTE),
        worked_before=_worked(session, whose, since - minutes * MINUTE, since),
        steps=_step_stats(session, ids),
        sampled_jobs=len(newest),
        reused=sum(each[1] for each in newest),
        stuck=len(stuck_jobs(session, tenant)),
        failed_undos=_count(session, "failed_undos", whose),
        approvals=_backlog(session, "pending_approvals", whose, now),
        in_doubt=_backlog(session, "doubtful_effects", whose, now),
        queues={
            name: backlog(int(count), oldest, now)
            for name, count, oldest in session.find("ready_backlogs", set(whose), **whose)
        },
    )


def _tenant(tenant: str | None) -> dict[str, Any]:
    return {} if tenant is None else {"tenant": tenant}


def _submitted(session: Session, whose: dict[str, Any], since: float) -> dict[int, int]:
    found = session.find("submitted_per_minute", set(whose), **whose, since=since)
    return {int(minute): number for minute, number in found}


def _ended(session: Session, whose: dict[str, Any], since: float) -> dict[str, dict[int, int]]:
    counted: dict[str, dict[int, int]] = {}
    found = session.find("ended_per_minute", set(whose), **whose, since=since)
    for state, group in rows.by_job(found).items():
        counted[state] = {int(minute): number for _, minute, number in group}
    return counted


def _worked(
    session: Session, whose: dict[str, Any], since: float, until: float
) -> tuple[float, ...]:
    given = {"since": since, "until": until, "limit": _WORKED}
    return tuple(each[0] for each in session.find("worked_times", set(whose), **whose, **given))


def _step_stats(session: Session, ids: Any) -> tuple[StepStats, ...]:
    return tuple(
        StepStats(
            step=name,
            count=count,
            failed=int(failed),
            attempts=int(attempts),
            largest_checkpoint=largest,
        )
        for name, count, failed, attempts, largest in session.all(
            "step_stats", ids=ids, most=_ENTRIES
        )
    )


def _count(session: Session, name: str, whose: dict[str, Any]) -> int:
    return int(session.find(name, set(whose), **whose)[0][0])


def _backlog(session: Session, name: str, whose: dict[str, Any], now: float) -> Backlog:
    (found,) = session.find(name, set(whose), **whose)
    return backlog(found[0], found[1], now)
