"""Whether and when a service that ended is started again; pure."""

from enum import StrEnum
from random import Random
from typing import NamedTuple

from perdure.base.backoff import Retry
from perdure.base.errors import is_planned
from perdure.entries.model import Lifecycle


class State(StrEnum):
    """How a service fares."""

    STOPPED = "stopped"  # not started yet, or stopped by us
    STARTING = "starting"  # spawned, and not ready yet
    RUNNING = "running"
    RESTARTING = "restarting"  # it failed, and waits for its next start
    STOPPING = "stopping"
    EXITED = "exited"  # it ended by itself, without an error
    FAILED = "failed"  # it failed too often


class Verdict(NamedTuple):
    """What happens to a service that ended: its state, the starts that count, the delay."""

    state: State
    starts: int
    delay: float = 0.0


def judge(
    lifecycle: Lifecycle,
    starts: int,
    age: float,
    error: BaseException | None,
    random: Random | None = None,
) -> Verdict:
    """Decide about a service that ended.

    Args:
        lifecycle: Its rules.
        starts: How often it was started since it last was stable.
        age: How long it ran this time.
        error: Why it ended; None: normally.
        random: The source of the jitter.
    """
    if is_planned(error):
        return Verdict(State.EXITED, starts)
    plan = lifecycle.restart
    if age >= lifecycle.stable_threshold:
        starts = 0
    if plan.max_attempts and starts >= plan.max_attempts:
        return Verdict(State.FAILED, starts)
    pauses = Retry(
        first=plan.initial_delay,
        factor=plan.backoff_factor,
        most=plan.max_delay,
        jitter=plan.jitter,
    )
    return Verdict(State.RESTARTING, starts, pauses.delay(max(1, starts), random))
