"""What a supervisor does when a child ends: the decisions, without any effect; pure."""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TypeVar

from perdure.base.duration import Duration, named_seconds
from perdure.base.errors import is_planned

K = TypeVar("K", bound=Hashable)


class Restart(StrEnum):
    """When a child that ended is started again."""

    PERMANENT = "permanent"  # always
    TRANSIENT = "transient"  # if it failed
    TEMPORARY = "temporary"  # never


class Strategy(StrEnum):
    """Whom the restart of one child concerns."""

    ONE_FOR_ONE = "one_for_one"  # only that child
    ONE_FOR_ALL = "one_for_all"  # all children
    REST_FOR_ONE = "rest_for_one"  # that child, and those started after it


class AutoShutdown(StrEnum):
    """When the end of significant children ends their supervisor."""

    NEVER = "never"
    ANY_SIGNIFICANT = "any_significant"
    ALL_SIGNIFICANT = "all_significant"


class Fate(Enum):
    """What becomes of a child that ended."""

    RESTART = "restart"
    KEEP = "keep"  # its spec stays, without a process
    FORGET = "forget"


def fate(restart: Restart, reason: BaseException | None) -> Fate:
    """Decide what becomes of a child that ended for this reason."""
    match restart:
        case Restart.PERMANENT:
            return Fate.RESTART
        case Restart.TRANSIENT:
            return Fate.KEEP if is_planned(reason) else Fate.RESTART
        case Restart.TEMPORARY:
            return Fate.FORGET


def affected(strategy: Strategy, ids: Sequence[K], failed: K) -> list[K]:
    """Give who is restarted together with the failed child, and that child, in start order.

    They are stopped in the reverse of this order, and started in it.
    """
    match strategy:
        case Strategy.ONE_FOR_ONE:
            return [failed]
        case Strategy.ONE_FOR_ALL:
            return list(ids)
        case Strategy.REST_FOR_ONE:
            return list(ids[ids.index(failed) :])


def affected_again(strategy: Strategy, ids: Sequence[K], failed: K) -> list[K]:
    """Give who is started when the start of `failed` is tried again.

    Those before it have just been started, and are left alone.
    """
    again = Strategy.ONE_FOR_ONE if strategy is Strategy.ONE_FOR_ONE else Strategy.REST_FOR_ONE
    return affected(again, ids, failed)


def ends_supervisor(auto_shutdown: AutoShutdown, *, others_active: bool) -> bool:
    """Decide whether the supervisor ends with a significant child that is not restarted.

    Args:
        auto_shutdown: The rule of the supervisor.
        others_active: Whether another significant child still runs.
    """
    match auto_shutdown:
        case AutoShutdown.NEVER:
            return False
        case AutoShutdown.ANY_SIGNIFICANT:
            return True
        case AutoShutdown.ALL_SIGNIFICANT:
            return not others_active


@dataclass(frozen=True, slots=True, init=False)
class Intensity:
    """How many restarts in how much time are too many: more than `max_restarts`."""

    max_restarts: int
    max_seconds: float

    def __init__(self, max_restarts: int = 3, max_seconds: Duration = 5) -> None:
        """Check both numbers.

        Raises:
            ValueError: A number is out of its range or the duration is bad.
            TypeError: A number has the wrong type.
        """
        if isinstance(max_restarts, bool) or not isinstance(max_restarts, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"max_restarts is a whole number, not {max_restarts!r}")
        if max_restarts < 0:
            raise ValueError(f"max_restarts is 0 or more, not {max_restarts}")
        window = named_seconds("max_seconds", max_seconds)
        if window == 0:
            raise ValueError("max_seconds must be longer than 0")
        object.__setattr__(self, "max_restarts", max_restarts)
        object.__setattr__(self, "max_seconds", window)


class Restarts:
    """The restarts that still count against an intensity."""

    __slots__ = ("_intensity", "_times")

    def __init__(self, intensity: Intensity) -> None:
        self._intensity = intensity
        self._times: deque[float] = deque()  # the oldest first

    def __len__(self) -> int:
        return len(self._times)

    def too_many_with(self, now: float) -> bool:
        """Count one more, forget those that are too long ago, and tell whether it is too many."""
        while self._times and now - self._times[0] > self._intensity.max_seconds:
            self._times.popleft()
        self._times.append(now)
        return len(self._times) > self._intensity.max_restarts
