"""The fleet: which workers are alive, what they know, and which queues are paused."""

from collections.abc import Sequence
from typing import NamedTuple

from perdure.base.codec import digest
from perdure.jobs.fleet import Definitions, Fleet, PublishedDefinitions, QueueCounts, fleet_worker
from perdure.jobs.model import JobEvent, WorkerRow
from perdure.store import rows
from perdure.store.statements import Row, Session

# Definitions that no worker runs are kept for this long: callers check arguments by them.
_KEEP_DEFINITIONS = 30 * 86400.0


def publish(session: Session, definitions: bytes) -> str:
    """Store what a worker knows, once for all that know the same; return its digest."""
    name, now = digest(definitions)[:32], session.now()
    session.run("forget_definitions", before=now - _KEEP_DEFINITIONS)
    session.run("publish", digest=name, data=definitions.decode(), now=now)
    return name


def definitions(session: Session) -> list[PublishedDefinitions]:
    """Return what workers know or knew lately, those that were published last first."""
    return _definitions(session.all("definitions"))


def _definitions(found: Sequence[Row]) -> list[PublishedDefinitions]:
    return [
        PublishedDefinitions(
            digest=name,
            published_at=at,
            workers=workers,
            definitions=Definitions.unpack(data.encode()),
        )
        for name, at, data, workers in found
    ]


class Heard(NamedTuple):
    """The answer to a heartbeat."""

    workers: int  # that are alive
    now: float  # by the store's clock


def heartbeat(
    session: Session, owner: str, info: bytes | None, definitions: str = "", lately: float = 120.0
) -> Heard:
    """Register a worker, or record that it is alive; `info` None removes it.

    Args:
        session: The transaction.
        owner: The worker.
        info: What it says about itself.
        definitions: The digest of what it knows: see `publish`.
        lately: Within how many seconds a worker counts as alive.

    Returns:
        How many workers are alive, and the time.
    """
    clock = session.clock()
    if info is None:
        session.run("delete_worker", owner=owner)
    else:
        given = {"info": info.decode(), "definitions": definitions, "clock": clock}
        session.run("register_worker", owner=owner, **given)
    found = session.one("count_workers", since=clock - lately)
    return Heard(found[0] if found else 0, session.now())


def workers(session: Session) -> list[WorkerRow]:
    """Return the registered workers by owner; one that died is among them for a while."""
    return _workers(session.all("workers", clock=session.clock()))


def _workers(found: Sequence[Row]) -> list[WorkerRow]:
    return [
        WorkerRow(
            owner=owner,
            silent_for=max(age, 0.0),
            info=info.encode(),
            definitions=digest,
            running=running,
        )
        for owner, age, info, digest, running in found
    ]


def running_of(session: Session, tenant: str) -> dict[str, int]:
    """Return how many jobs of a tenant each worker has."""
    return {owner: number for owner, number in session.all("running_of", tenant=tenant)}  # noqa: C416  rows are no pairs to the type checker


def forget_workers(session: Session, silent_for: float) -> None:
    """Delete workers without a recent heartbeat, unless they still hold leases."""
    session.run("forget_silent_workers", limit=session.clock() - silent_for)


def fleet(session: Session, silent_for: float) -> Fleet:
    """Return the living workers with what they know, and the paused queues.

    A worker without a heartbeat for `silent_for` seconds does not count.
    """
    published, workers, paused = session.together(
        ("definitions", {}), ("workers", {"clock": session.clock()}), ("paused_queues", {})
    )
    known = {each.digest: each.definitions for each in _definitions(published)}
    living = [each for each in _workers(workers) if each.silent_for <= silent_for]
    return Fleet(
        workers=tuple(fleet_worker(each, known.get(each.definitions)) for each in living),
        paused=frozenset(each[0] for each in paused),
    )


# Queues

_COUNTS = ("ready", "waiting", "running")


def pause_queue(session: Session, name: str, actor: str, reason: str, *, paused: bool) -> bool:
    """Pause a queue or resume it, with a line in its log; return whether that changed anything."""
    found = session.one("served", queue=name)
    if paused == bool(found and found[1]):
        return False
    session.run("pause_queue", queue=name, paused=int(paused))
    note = JobEvent(
        type="queue.paused" if paused else "queue.resumed",
        data={"reason": reason} if reason else {},
        actor=actor,
    )
    session.run("insert_event", **rows.event_row(queue_log(name), note, session.now()))
    return True


def queue_log(name: str) -> str:
    """Return the id under which the events of a queue are logged; no job has it."""
    return f"queue {name}"


def queues(session: Session, tenant: str | None = None) -> list[QueueCounts]:
    """Return the queues that have jobs, or that were used before; counts may be of one tenant."""
    given = {} if tenant is None else {"tenant": tenant}
    return [
        QueueCounts(
            name=name, paused=bool(paused), **dict(zip(_COUNTS, map(int, numbers), strict=True))
        )
        for name, paused, *numbers in session.find("queues", set(given), **given)
    ]


def unclaimed(session: Session, tenant: str | None = None) -> list[tuple[str, str, int, str]]:
    """Return queue and kind of the jobs that are ready, how many there are, and one of them."""
    given = {} if tenant is None else {"tenant": tenant}
    found = session.find("unclaimed", set(given), **given)
    return [(each[0], each[1], each[2], each[3]) for each in found]
