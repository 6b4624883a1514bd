"""An asyncio loop that spins for a moment before it sleeps.

Waking up from a sleep in the selector takes longer than a whole call to an OS worker and its
answer. So a loop that has just sent something to a worker polls for the answer first, as Erlang's
schedulers do. Polling that finds nothing backs off exponentially, so it costs next to nothing.
"""

import asyncio
import selectors
import sys
from collections.abc import Callable

from perdure.base.clock import SystemClock
from perdure.base.machine import cores

_MAX_SKIPS = 64  # useless spinning then costs next to nothing, and is still tried now and then

Ready = list[tuple[selectors.SelectorKey, int]]


class SpinBackoff:
    """Decides whether to spin; pure. Each useless spin doubles the number of spins to skip."""

    __slots__ = ("_next_skips", "_skips")

    def __init__(self) -> None:
        self._skips = 0  # spins that are still to be skipped
        self._next_skips = 0  # how many are skipped after the next useless spin

    def should_spin(self) -> bool:
        """Whether to spin now; counts a skip if not."""
        if self._skips:
            self._skips -= 1
            return False
        return True

    def succeeded(self) -> None:
        """Note that something came while spinning."""
        self._next_skips = 0

    def failed(self) -> None:
        """Note that nothing came while spinning."""
        self._skips = self._next_skips = min(2 * self._next_skips or 1, _MAX_SKIPS)


class SpinSelector(selectors.DefaultSelector):
    """The system's selector, which spins before it sleeps if an answer is expected."""

    def __init__(self, now: Callable[[], float] = SystemClock.monotonic) -> None:
        super().__init__()
        self.spin_time = 0.0  # seconds
        self._now = now
        self._expecting = False
        self._backoff = SpinBackoff()

    def expect(self) -> None:
        """Spin before the next sleep: something may come very soon."""
        self._expecting = True

    def select(self, timeout: float | None = None) -> Ready:
        """Return what is ready; wait for it if nothing is."""
        if self._expecting and (timeout is None or timeout > self.spin_time):
            self._expecting = False
            if self.spin_time and self._backoff.should_spin() and (ready := self._spin()):
                return ready
        return super().select(timeout)

    def _spin(self) -> Ready:
        now, poll = self._now, super().select
        until = now() + self.spin_time
        while now() < until:
            if ready := poll(0):
                self._backoff.succeeded()
                return ready
        self._backoff.failed()
        return []


class SpinLoop(asyncio.SelectorEventLoop):
    """The usual loop on a selector that spins."""

    def __init__(self) -> None:
        self._spin_selector = SpinSelector()
        super().__init__(self._spin_selector)
        self.expect = self._spin_selector.expect

    @property
    def spin_time(self) -> float:
        """How long it spins before it sleeps, in seconds; always 0 on a machine with one core."""
        return self._spin_selector.spin_time

    @spin_time.setter
    def spin_time(self, seconds: float) -> None:
        self._spin_selector.spin_time = seconds if cores() > 1 else 0.0


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop: a `SpinLoop`, unless the policy of the program asks for another kind."""
    loop = asyncio.new_event_loop()
    if sys.platform == "win32" or type(loop) is not asyncio.SelectorEventLoop:
        return loop
    loop.close()
    return SpinLoop()


def set_spin_time(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Set how long a loop spins before it sleeps, if it can spin at all."""
    if isinstance(loop, SpinLoop):
        loop.spin_time = seconds


def expectation(loop: asyncio.AbstractEventLoop) -> Callable[[], object]:
    """Return what to call when an answer may come to a loop very soon."""
    return loop.expect if isinstance(loop, SpinLoop) else _expect_nothing


def _expect_nothing() -> None:
    """Do nothing, for a loop that cannot spin."""
