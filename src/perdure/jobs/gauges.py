"""What metrics show of a store at one moment; pure."""

from msgspec import Struct


class Backlog(Struct, frozen=True, kw_only=True):
    """Things of one kind that wait: how many, and for how many seconds the oldest does."""

    count: int = 0
    oldest: float = 0.0


def backlog(count: int, since: float | None, now: float) -> Backlog:
    """Return what waits, the oldest since a time; None if nothing waits."""
    return Backlog(count=count, oldest=0.0 if since is None else max(0.0, now - since))


class WorkerGauge(Struct, frozen=True, kw_only=True):
    """A registered worker: where it runs, since when it is silent, and its slots."""

    name: str
    silent_for: float
    running: int
    concurrency: int


class StoreGauges(Struct, frozen=True, kw_only=True):
    """What a store holds that somebody may have to act on.

    Attributes:
        now: The time of the store, in UNIX seconds.
        states: How many jobs are in each state that is not an end.
        queues: Jobs that are ready for a worker, by queue.
        stuck: Jobs that are stuck: see `Job.stuck`.
        approvals: Questions that nobody has answered yet.
        in_doubt: Effects of which nobody knows whether they happened.
        notices: Messages to people that are not delivered yet.
        schedule_lag: How many seconds the schedule is late that is due longest.
        workers: The registered workers.
    """

    now: float
    states: dict[str, int]
    queues: dict[str, Backlog]
    stuck: int
    approvals: Backlog
    in_doubt: Backlog
    notices: Backlog
    schedule_lag: float
    workers: tuple[WorkerGauge, ...]
