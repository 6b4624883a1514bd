"""Leases: claim jobs, renew leases, and take back those of dead workers.

A claim takes ready jobs by priority, then in turn by tenant (start-time fair queueing: each job got
a tag when it was submitted, and the lowest is next), as far as the limits of the queues allow. It
takes only kinds that the worker knows, and nothing from a queue that is paused.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from perdure.base.errors import EncryptionError
from perdure.jobs.failure import failure_of
from perdure.jobs.fleet import Known
from perdure.jobs.model import Claim, Job, JobChange, JobEvent, JobNews, QueueLimit, Write
from perdure.jobs.rate import Claims, places_left, still_counting, with_claim
from perdure.jobs.state import JobState
from perdure.store import rows as row
from perdure.store.statements import Row, Session
from perdure.store.verbs.output import topic

_UNLIMITED = QueueLimit()
_read_claims = msgspec.json.Decoder(Claims).decode


class Grant(NamedTuple):
    """A lease that was just granted."""

    job_id: str
    epoch: int
    claims: int
    news: int
    now: float
    job: Job | None = None  # if it was read along, and has neither journal nor messages


def claim(
    session: Session,
    owner: str,
    queues: Mapping[str, QueueLimit],
    free: int,
    lease: float,
    known: Known | None = None,
) -> list[Grant]:
    """Claim up to `free` ready jobs for an owner, and return their leases.

    `known` says which kinds the owner knows; None: all of them.
    """
    now, clock = session.now(), session.clock()
    picked = _pick(session, queues, free, now, known)
    if not picked:
        return []
    ids = session.array([each.job_id for each in picked])
    rows = session.all("claim", ids=ids, owner=owner, until=clock + lease, clock=clock)
    session.run("claim_jobs", ids=ids, now=now)
    note = JobEvent(type="claimed", actor=owner)
    session.many("insert_event", [row.event_row(each.job_id, note, now) for each in picked])
    _serve(session, picked, queues)
    grants = {each[0]: Grant(each[0], each[1], each[2], each[3], now) for each in rows}
    note_unproven(session, grants.values())
    return [grants[each.job_id] for each in picked]


def note_unproven(session: Session, grants: Iterable[Grant]) -> None:
    """Remember jobs whose previous claim made no progress: see `Session.unproven_claims`."""
    unproven = ((grant.job_id, grant.epoch) for grant in grants if grant.claims > 1)
    session.unproven_claims.update(unproven)


def load(session: Session, grants: Sequence[Grant]) -> list[Claim]:
    """Return everything that the owner of these jobs needs to continue them."""
    ids = session.array([grant.job_id for grant in grants])
    # Without the time since the claim, which has just begun.
    jobs = {each[0]: row.job(each) for each in session.all("get_jobs", ids=ids, clock=0.0)}
    journals = row.by_job(session.all("journal", ids=ids))
    messages = row.by_job(session.all("messages", ids=ids))
    topics = row.by_job(session.all("topics", ids=ids))
    return [
        Claim(
            job=jobs[grant.job_id],
            epoch=grant.epoch,
            now=grant.now,
            news=grant.news,
            journal=tuple(row.entry(each) for each in journals.get(grant.job_id, ())),
            messages=tuple(row.message(each) for each in messages.get(grant.job_id, ())),
            topics=tuple(topic(each) for each in topics.get(grant.job_id, ())),
        )
        for grant in grants
        if grant.job_id in jobs
    ]


def refused(grant: Grant, owner: str, error: EncryptionError) -> Write:
    """Return the write that parks a job with a payload that cannot be read."""
    failure, state = failure_of(error), JobState.NEEDS_ATTENTION
    change = JobChange(state=state, error=failure.pack(), release=True)
    note = JobEvent(type="job.needs_attention", data={"error": failure.summary()}, actor=owner)
    job_id, epoch = grant.job_id, grant.epoch
    return Write(job_id=job_id, owner=owner, epoch=epoch, job=change, events=(note,))


def in_order(grants: Sequence[Grant], loaded: Sequence[Claim]) -> list[Claim]:
    """Return the claims in the order of their grants; those not loaded have nothing but a job."""
    claims = {claim.job.id: claim for claim in loaded}
    for job_id, epoch, _, news, now, job in grants:
        if job is not None:
            claims[job_id] = Claim(
                job=job, epoch=epoch, now=now, news=news, journal=(), messages=()
            )
    return [claims[grant.job_id] for grant in grants if grant.job_id in claims]


def renew(session: Session, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
    """Renew the leases that are still the owner's; return their jobs."""
    ids = session.array([job_id for job_id, _ in held])
    clock = session.clock()
    rows = session.all("renew", owner=owner, ids=ids, until=clock + lease, clock=clock)
    mine = set(held)
    return {job_id for job_id, epoch in rows if (job_id, epoch) in mine}


def report(session: Session, owner: str, reports: Sequence[tuple[str, int, bytes]]) -> None:
    """Keep how far the steps of jobs (id, epoch, JSON) are; those of other owners are left out."""
    rows = [
        {"id": job_id, "owner": owner, "epoch": epoch, "progress": data.decode()}
        for job_id, epoch, data in sorted(reports)  # in the order in which leases are locked
    ]
    session.many("report", rows)


def news(session: Session, owner: str) -> list[JobNews]:
    """Return the change counters of an owner's jobs, and the pending commands."""
    return [JobNews(*each) for each in session.all("news", owner=owner)]


def reap(
    session: Session, limit: int, dead: Sequence[str] = (), clock: float | None = None
) -> list[str]:
    """Free all jobs of dead owners, and up to `limit` with an expired lease; they are due now.

    `clock`: the time, by the clock of the leases, at which they were found to have expired.
    """
    now = session.now()
    found_at = session.clock() if clock is None else clock
    rows: list[Row] = []
    if dead:
        rows += session.all("reap_dead", now=now, clock=found_at, dead=session.array(dead))
    if limit > 0:
        rows += session.all("reap_expired", now=now, clock=found_at, limit=limit)
    freed: list[str] = [each[0] for each in rows]
    if freed:
        note = JobEvent(type="lease.expired")
        session.many("insert_event", [row.event_row(job_id, note, now) for job_id in freed])
    return freed


class Expired(NamedTuple):
    """What one look at all leases and workers has found."""

    lease: bool  # one has run out
    worker: bool  # one was silent for long
    clock: float  # the time of the look, by the clock of the leases


def expired(session: Session, silence: float) -> Expired:
    """Return whether a lease has run out, and whether a worker was silent for so many seconds."""
    clock = session.clock()
    found = session.one("expired", clock=clock, limit=clock - silence)
    assert found is not None
    return Expired(bool(found[0]), bool(found[1]), clock)


class Outlook(NamedTuple):
    """What one queue has for a worker."""

    queue: str
    ready: bool  # a job that the worker knows may be claimed now
    due_in: float | None  # seconds until the next timer is due


def outlook(session: Session, queues: Sequence[str], known: Known | None = None) -> list[Outlook]:
    """Return what the queues that are not paused have for a worker."""
    given = {"queues": session.array(queues), "keys": session.readable}
    found = session.all("outlook", **given, **_known(known))
    return [
        Outlook(queue, bool(ready), None if due_at is None else due_at - (now or session.now()))
        for queue, ready, due_at, now in found
    ]


def _known(known: Known | None) -> dict[str, str | None]:
    return {"kinds": known and known.kinds, "steps": known and known.steps}


# Which jobs a claim takes


class _Candidate(NamedTuple):
    rank: tuple[int, int]  # higher priority first, then by turn: queues count apart
    job_id: str
    queue: str
    tag: int


class _Capacity:
    """How much one claim may still take from a queue."""

    __slots__ = ("_running", "free", "per_tenant", "wanted")

    def __init__(self, free: int, per_tenant: int | None, running: Counter[str]) -> None:
        self.free = free
        self.wanted = free
        self.per_tenant = per_tenant
        self._running = running

    def take(self, tenant: str) -> bool:
        """Count a job of this tenant, if the limits allow it; return whether they do."""
        assert self.per_tenant is not None
        if self.free <= 0 or self._running[tenant] >= self.per_tenant:
            return False
        self._running[tenant] += 1
        self.free -= 1
        return True

    def full(self) -> list[str]:
        """Return the tenants that have reached their limit."""
        if self.per_tenant is None:
            return []
        return [tenant for tenant, number in self._running.items() if number >= self.per_tenant]


def _pick(
    session: Session,
    queues: Mapping[str, QueueLimit],
    free: int,
    now: float,
    known: Known | None,
) -> list[_Candidate]:
    found: list[_Candidate] = []
    for queue, limit in queues.items():
        served, paused = session.one("served", queue=queue) or (0, 0)
        if not paused:
            session.run("wake_timers", queue=queue, now=now)
            kinds = _Kinds(session, queue, served, known)
            found += _candidates(kinds, _capacity(session, queue, limit, free))
    if len(queues) > 1:
        found.sort(key=lambda each: each.rank)
    return found[:free]


def _candidates(kinds: "_Kinds", capacity: _Capacity) -> list[_Candidate]:
    """Return the jobs that the limits of the queue let run, in order."""
    if capacity.free <= 0:
        return []
    if capacity.per_tenant is None:
        return [candidate for candidate, _ in kinds.first(capacity)]
    chosen: dict[str, _Candidate] = {}
    while capacity.free > 0:
        taken = 0
        for candidate, tenant in kinds.first(capacity):
            if candidate.job_id not in chosen and capacity.take(tenant):
                chosen[candidate.job_id] = candidate
                taken += 1
        if not taken:
            break
    return list(chosen.values())


class _Kinds:
    """The ready jobs of one queue whose kinds the worker knows."""

    def __init__(self, session: Session, queue: str, served: int, known: Known | None) -> None:
        self._session = session
        self._queue = queue
        self._served = served
        found = session.all("ready_kinds", queue=queue, keys=session.readable, **_known(known))
        self._kinds: list[str] = [each[0] for each in found]

    def first(self, capacity: _Capacity) -> list[tuple[_Candidate, str]]:
        """Return the first jobs in order, each with its tenant, as many as the claim wants."""
        full = capacity.full()
        found = [each for kind in self._kinds for each in self._ready(kind, capacity.wanted, full)]
        candidates = [(self._candidate(each), each[1]) for each in found]
        if len(self._kinds) > 1:
            candidates.sort(key=lambda each: each[0].rank)
        return candidates[: capacity.wanted]

    def _ready(self, kind: str, limit: int, full: list[str]) -> Sequence[Row]:
        given = {"queue": self._queue, "kind": kind, "limit": limit}
        if not full:
            return self._session.all("ready", **given)
        return self._session.all("ready_but", **given, full=self._session.array(full))

    def _candidate(self, found: Row) -> _Candidate:
        job_id, _, priority, tag = found
        return _Candidate((-priority, tag - self._served), job_id, self._queue, tag)


def _serve(
    session: Session, picked: Sequence[_Candidate], queues: Mapping[str, QueueLimit]
) -> None:
    """Record what was taken: the tag that is served now, and what counts for the rate."""
    for queue, limit in queues.items():
        tags = [each.tag for each in picked if each.queue == queue]
        if tags:
            session.best_effort("set_served", queue=queue, tag=max(tags))
            _count(session, queue, limit, len(tags))


# Limits of a queue


def _capacity(session: Session, queue: str, limit: QueueLimit, free: int) -> _Capacity:
    """Return what the limits of a queue leave for one claim."""
    if limit == _UNLIMITED:
        return _Capacity(free, None, Counter())
    session.lock(f"queue {queue}")
    running = Counter[str]()
    if limit.running is not None or limit.running_per_tenant is not None:
        running.update({each[0]: each[1] for each in session.all("running", queue=queue)})
    if limit.running is not None:
        free = min(free, limit.running - running.total())
    if limit.rate is not None:
        free = min(free, places_left(_counting(session, queue, limit), limit.rate))
    return _Capacity(free, limit.running_per_tenant, running)


def _count(session: Session, queue: str, limit: QueueLimit, taken: int) -> None:
    """Count this many claims for the rate of the queue."""
    if limit.rate is not None:
        counting = _counting(session, queue, limit)
        _keep_counting(session, queue, with_claim(counting, session.clock(), taken))


def _counting(session: Session, queue: str, limit: QueueLimit) -> Claims:
    """Return the claims that count for the rate of the queue."""
    found = session.one("queue_claimed", queue=queue)
    kept: Claims = _read_claims(found[0]) if found and found[0] else ()
    clock = session.clock()
    counting = still_counting(kept, clock, limit.per)
    if any(at > clock for at, _ in kept):  # the clock was ahead: corrected in the database, too
        _keep_counting(session, queue, counting)
    return counting


def _keep_counting(session: Session, queue: str, claims: Claims) -> None:
    session.run("set_claimed", queue=queue, claimed=msgspec.json.encode(claims).decode())
