"""Who works on what: claims, renewals, the reaper."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.jobs.model import Claim, Entry, Event, Job, Message, News, QueueLimit
from perdure.store import row
from perdure.store.session import Row, Session
from perdure.store.verb.limit import Room, room_of, take_tokens


class Grant(NamedTuple):
    """A lease that was just given."""

    job_id: str
    epoch: int
    claims: int
    news: int
    now: float
    job: Job | None = None  # if it was read with it, and there is nothing else to be read


class _Candidate(NamedTuple):
    rank: tuple[int, int]  # higher priority first, then by turn: queues count apart
    job_id: str
    queue: str
    tag: int


def claim(
    session: Session, owner: str, queues: Mapping[str, QueueLimit], free: int, lease: float
) -> list[Grant]:
    """Give up to `free` ready jobs to an owner."""
    now, clock = session.now(), session.clock()
    picked = _pick(session, queues, free, now)
    if not picked:
        return []
    ids = session.array([each.job_id for each in picked])
    rows = session.all("claim", ids=ids, owner=owner, until=clock + lease)
    session.run("claim_jobs", ids=ids, now=now)
    note = Event(type="claimed", actor=owner)
    session.many("insert_event", [row.event_row(each.job_id, note, now) for each in picked])
    _serve(session, picked, queues)
    grants = {each[0]: Grant(each[0], each[1], each[2], each[3], now) for each in rows}
    session.suspects.update(
        (each.job_id, each.epoch) for each in grants.values() if each.claims > 1
    )
    return [grants[each.job_id] for each in picked]


def load(session: Session, grants: Sequence[Grant], lease: float) -> list[Claim]:
    """Bring along everything that the owner of these jobs needs in order to go on."""
    ids = session.array([grant.job_id for grant in grants])
    jobs = {each[0]: row.job(each) for each in session.all("get_jobs", ids=ids)}
    journals = row.by_job(session.all("journal", ids=ids))
    messages = row.by_job(session.all("messages", ids=ids))
    return [
        claimed(
            grant,
            jobs[grant.job_id],
            lease,
            journal=tuple(row.entry(each) for each in journals.get(grant.job_id, ())),
            messages=tuple(row.message(each) for each in messages.get(grant.job_id, ())),
        )
        for grant in grants
        if grant.job_id in jobs
    ]


def claimed(
    grant: Grant,
    job: Job,
    lease: float,
    journal: tuple[Entry, ...] = (),
    messages: tuple[Message, ...] = (),
) -> Claim:
    """Put a claim together."""
    return Claim(
        job=job,
        epoch=grant.epoch,
        now=grant.now,
        until=lease,
        news=grant.news,
        journal=journal,
        messages=messages,
    )


def _pick(
    session: Session, queues: Mapping[str, QueueLimit], free: int, now: float
) -> list[_Candidate]:
    found: list[_Candidate] = []
    for queue, limit in queues.items():
        session.run("wake_timers", queue=queue, now=now)
        found += _candidates(session, queue, room_of(session, queue, limit, free))
    if len(queues) > 1:
        found.sort(key=lambda each: each.rank)
    return found[:free]


def _candidates(session: Session, queue: str, room: Room) -> list[_Candidate]:
    """Find what the queue's limits leave room for, in order."""
    if room.free <= 0:
        return []
    (served,) = session.one("served", queue=queue) or (0,)
    if room.per_tenant is None:
        return [_candidate(queue, each, served) for each in _ready(session, queue, room)]
    chosen: dict[str, _Candidate] = {}
    while room.free > 0:
        taken = 0
        for each in _ready(session, queue, room):
            if each[0] not in chosen and room.take(each[1]):
                chosen[each[0]] = _candidate(queue, each, served)
                taken += 1
        if not taken:
            break
    return list(chosen.values())


def _ready(session: Session, queue: str, room: Room) -> Sequence[Row]:
    full = room.full()
    if not full:
        return session.all("ready", queue=queue, limit=room.wanted)
    return session.all("ready_but", queue=queue, limit=room.wanted, full=session.array(full))


def _candidate(queue: str, found: Row, served: int) -> _Candidate:
    job_id, _, priority, tag = found
    return _Candidate((-priority, tag - served), job_id, queue, tag)


def _serve(
    session: Session, picked: Sequence[_Candidate], queues: Mapping[str, QueueLimit]
) -> None:
    for queue, limit in queues.items():
        tags = [each.tag for each in picked if each.queue == queue]
        if tags:
            session.aside("set_served", queue=queue, tag=max(tags))
            take_tokens(session, queue, limit, len(tags))


def renew(session: Session, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
    """Prolong the leases that are still the owner's."""
    ids = session.array([job_id for job_id, _ in held])
    rows = session.all("renew", owner=owner, ids=ids, until=session.clock() + lease)
    mine = set(held)
    return {job_id for job_id, epoch in rows if (job_id, epoch) in mine}


def news(session: Session, owner: str) -> list[News]:
    """Tell what is asked of an owner's jobs."""
    return [News(*each) for each in session.all("news", owner=owner)]


def reap(session: Session, limit: int, dead: Sequence[str]) -> list[str]:
    """Free all jobs of the dead, and up to `limit` whose lease has run out."""
    now = session.now()
    rows: list[Row] = []
    if dead:
        rows += session.all("reap_dead", now=now, dead=session.array(dead))
    if limit > 0:
        rows += session.all("reap_expired", now=now, clock=session.clock(), limit=limit)
    freed: list[str] = [each[0] for each in rows]
    if freed:
        note = Event(type="lease.expired")
        session.many("insert_event", [row.event_row(job_id, note, now) for job_id in freed])
    return freed


def next_due(session: Session, queues: Sequence[str]) -> float | None:
    """Tell when the next unowned job falls due."""
    found = session.one("next_due", queues=session.array(queues))
    return found[0] if found else None
