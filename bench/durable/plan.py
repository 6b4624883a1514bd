"""Which workloads are run, how large, and how often."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.contenders import Contender
from bench.durable.contenders import FLOOR, OURS, can_use

Figures = dict[str, float]


@dataclass(frozen=True)
class Size:
    """How much of a workload is run; ``limit`` is in seconds for each wait."""

    steps: int = 1_000
    jobs: int = 1_000
    steps_of_a_job: int = 10
    submits: int = 0
    limit: float = 30.0


DEFAULT = Size()
EFFECTS = Size(jobs=9, steps=100)


@dataclass(frozen=True)
class Part:
    """One workload of one contender.

    Attributes:
        contender: Its name.
        workload: Its name.
        size: How much of it.
        limit: In seconds, for all of it.
        extra: Whether it only makes a figure steadier, and is left out when the time is up.
    """

    contender: str
    workload: str
    size: Size
    limit: float
    extra: bool = False


@dataclass(frozen=True)
class Plan:
    """How large everything is.

    Attributes:
        rounds: Of the floor and us, side by side: the speed of a shared disk changes all the time.
        speed: For ``speed``, of the floor and us.
        peer: The same, of peers, which are much slower.
        killed: For ``restart``.
        long_job: For ``growth``.
        finished: For ``claims``: jobs in the store beside those that are claimed.
        effects: For ``effect``.
        children: For ``children``: of one job.
        budget: Seconds for each store, after which there are no further rounds.
    """

    rounds: int
    speed: Size
    peer: Size
    killed: Size = DEFAULT
    long_job: int = 10_000
    finished: int = 1_000_000
    effects: Size = EFFECTS
    children: Size = DEFAULT
    budget: float = math.inf


FULL = Plan(
    rounds=5,
    speed=Size(submits=60),
    peer=Size(jobs=200, submits=10, limit=60),
)
QUICK = Plan(
    rounds=3,
    speed=Size(submits=10),
    peer=Size(steps=100, jobs=30, limit=20),
    killed=Size(limit=8),
    long_job=3_000,
    finished=100_000,
    budget=22,
)


def parts(plan: Plan, store: str, contenders: Sequence[Contender]) -> Iterator[Part]:
    """List what is measured with one store, in order: first what must be, then further rounds."""
    present = [one for one in contenders if can_use(one, store)]
    fast = [one.name for one in present if one in (FLOOR, OURS)]
    peers = [one.name for one in present if one.name not in fast]
    yield from (Part(name, "speed", plan.speed, 60) for name in fast)
    yield from (Part(name, "speed", plan.peer, 120) for name in peers)
    if OURS in present:
        yield Part(OURS.name, "restart", plan.killed, 60)
        yield Part(OURS.name, "growth", Size(steps=plan.long_job), 60)
        yield Part(OURS.name, "claims", Size(jobs=plan.finished), 300)
        yield Part(OURS.name, "effect", plan.effects, 60)
        yield Part(OURS.name, "children", plan.children, 60)
    # Submits are many already, and their pauses take long.
    again = replace(plan.speed, submits=0)
    for _ in range(1, plan.rounds):
        yield from (Part(name, "speed", again, 60, extra=True) for name in fast)
    if plan.budget == math.inf:
        yield from _only_in_a_full_run(plan, [name for name in fast if name != OURS.name], peers)


def _only_in_a_full_run(plan: Plan, fast: Sequence[str], peers: Sequence[str]) -> Iterator[Part]:
    """List what only a full run measures."""
    yield from (Part(name, "restart", plan.killed, 90) for name in (*fast, *peers))
    again = replace(plan.peer, submits=0)
    yield from (Part(name, "speed", again, 120, extra=True) for name in peers)
