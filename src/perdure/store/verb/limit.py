"""How much of a queue may run at once, over the whole fleet."""

from collections import Counter

from perdure.jobs.model import QueueLimit
from perdure.store.session import Session

UNLIMITED = QueueLimit()


class Room:
    """What one claim may still take of a queue."""

    __slots__ = ("_running", "free", "per_tenant", "wanted")

    def __init__(self, free: int, per_tenant: int | None, running: Counter[str]) -> None:
        self.free = free
        self.wanted = free
        self.per_tenant = per_tenant
        self._running = running

    def take(self, tenant: str) -> bool:
        """Take a job of this tenant, if there is room for it."""
        assert self.per_tenant is not None
        if self.free <= 0 or self._running[tenant] >= self.per_tenant:
            return False
        self._running[tenant] += 1
        self.free -= 1
        return True

    def full(self) -> list[str]:
        """List the tenants that have no room left."""
        if self.per_tenant is None:
            return []
        return [tenant for tenant, number in self._running.items() if number >= self.per_tenant]


def room_of(session: Session, queue: str, limit: QueueLimit, free: int) -> Room:
    """Tell what the limits of a queue leave for one claim."""
    if limit == UNLIMITED:
        return Room(free, None, Counter())
    session.lock(f"queue {queue}")
    running = Counter[str]()
    if limit.running is not None or limit.running_per_tenant is not None:
        running.update({each[0]: each[1] for each in session.all("running", queue=queue)})
    if limit.running is not None:
        free = min(free, limit.running - running.total())
    if limit.rate is not None:
        free = min(free, int(_tokens(session, queue, limit)))
    return Room(free, limit.running_per_tenant, running)


def take_tokens(session: Session, queue: str, limit: QueueLimit, taken: int) -> None:
    """Note that so many of the queue's claims are used up."""
    if limit.rate is not None:
        left = _tokens(session, queue, limit) - taken
        session.run("set_tokens", queue=queue, tokens=left, at=session.clock())


def _tokens(session: Session, queue: str, limit: QueueLimit) -> float:
    """Count what is in the bucket: it holds `rate` claims and fills evenly in `per` seconds."""
    assert limit.rate is not None
    tokens, at = session.one("tokens", queue=queue) or (None, None)
    if tokens is None or at is None:
        return limit.rate
    clock = session.clock()
    if at > clock:
        # The clock was ahead, or counts from another start of the machine. Written down, for
        # else the bucket would not fill before the clock is there again.
        session.run("set_tokens", queue=queue, tokens=tokens, at=clock)
        at = clock
    return min(limit.rate, tokens + (clock - at) * limit.rate / limit.per)
