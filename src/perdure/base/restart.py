"""Whether and when something that ended is restarted; pure.

The one decision behind supervisors, pools, services and the workers of hosts. It has three parts:

- the rule (`Restart`): does this end ask for a restart at all,
- the intensity: how many restarts within how much time are too many,
- the backoff: how long to wait before the next start, and after how many starts to give up.

A supervisor uses the first two and restarts at once; a pool waits a fixed time; a service uses a
backoff, which forgets its failures once the service has run for a while.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import NamedTuple

from perdure.base.duration import Duration, named_seconds, spell
from perdure.base.errors import is_planned
from perdure.base.retry import Retry


class Restart(StrEnum):
    """When a child that ended is restarted."""

    PERMANENT = "permanent"  # always
    TRANSIENT = "transient"  # if it failed
    TEMPORARY = "temporary"  # never


def needs_restart(restart: Restart, reason: BaseException | None) -> bool:
    """Whether a child that ended for this reason is restarted."""
    if restart is Restart.PERMANENT:
        return True
    return restart is Restart.TRANSIENT and not is_planned(reason)


@dataclass(frozen=True, slots=True, init=False)
class Intensity:
    """The restart limit: more than `max_restarts` within `max_seconds` are too many.

    Attributes:
        max_restarts: How many restarts are allowed.
        max_seconds: The period in which they are counted.
        window: That period as text, for people.
    """

    max_restarts: int
    max_seconds: float
    window: str

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
        object.__setattr__(self, "window", spell(window))


class RestartHistory:
    """The restarts that still count against an intensity; without one there is no limit.

    Attributes:
        intensity: The limit.
        recent: How many restarts count now.
    """

    __slots__ = ("_times", "intensity", "recent")

    def __init__(self, intensity: Intensity | None) -> None:
        self.intensity = intensity
        self.recent = 0
        self._times: deque[float] = deque()  # the oldest first

    def record(self, now: float) -> bool:
        """Count one more restart, forget old ones, and return whether there are too many."""
        if self.intensity is None:
            return False
        times = self._times
        while times and now - times[0] > self.intensity.max_seconds:
            times.popleft()
        times.append(now)
        self.recent = len(times)
        return self.recent > self.intensity.max_restarts


class NextStart(NamedTuple):
    """When to start again, and how many starts count so far."""

    delay: float
    starts: int


@dataclass(frozen=True, slots=True)
class Backoff:
    """How something that keeps failing is restarted: later each time, and not for ever.

    Attributes:
        retry: The policy that computes the delays.
        max_starts: Give up after this many starts; 0 = never.
        stable_after: Earlier starts are forgotten once it has run for this many seconds.
    """

    retry: Retry
    max_starts: int = 0
    stable_after: float = 0.0

    def after_failure(
        self, starts: int, age: float, random: Random | None = None
    ) -> NextStart | None:
        """Return when to start again; None means to give up.

        Args:
            starts: How often it was started since it was last stable.
            age: How long it ran this time.
            random: The source of the jitter.
        """
        if age >= self.stable_after:
            starts = 0
        if self.max_starts and starts >= self.max_starts:
            return None
        return NextStart(self.retry.delay(max(1, starts), random), starts)
