"""An asyncio loop that looks for a moment longer before it sleeps.

To be woken from sleep takes the system longer than a call to an OS worker and its answer take
in all, so whoever expects an answer soon looks out for it awake, as Erlang's schedulers do.
"""

import asyncio
import selectors
import sys
from collections.abc import Callable

from perdure.base.clock import SystemClock
from perdure.base.machine import cores

_MOST_SKIPS = 64  # so that hopeless looking costs next to nothing, and hope is not given up

Ready = list[tuple[selectors.SelectorKey, int]]


class Hope:
    """Whether it is worth to look once more; pure. What was in vain is tried ever less often."""

    __slots__ = ("_skips", "_vain")

    def __init__(self) -> None:
        self._skips = 0  # that are still to be made
        self._vain = 0  # how many are made after the next look in vain

    def is_worth_it(self) -> bool:
        """Tell whether to look now."""
        if self._skips:
            self._skips -= 1
            return False
        return True

    def came_true(self) -> None:
        """Learn that what was looked for has come."""
        self._vain = 0

    def was_in_vain(self) -> None:
        """Learn that it has not come in time."""
        self._skips = self._vain = min(2 * self._vain or 1, _MOST_SKIPS)


class EagerSelector(selectors.DefaultSelector):
    """The system's selector, which looks for a while before it sleeps if something is expected."""

    def __init__(self, now: Callable[[], float] = SystemClock.monotonic) -> None:
        super().__init__()
        self.look_for = 0.0  # seconds
        self._now = now
        self._expecting = False
        self._hope = Hope()

    def expect(self) -> None:
        """Learn that something may come very soon."""
        self._expecting = True

    def select(self, timeout: float | None = None) -> Ready:
        """Give what is ready; wait for it if nothing is."""
        if self._expecting and (timeout is None or timeout > self.look_for):
            self._expecting = False
            if self.look_for and self._hope.is_worth_it() and (ready := self._look()):
                return ready
        return super().select(timeout)

    def _look(self) -> Ready:
        now, look = self._now, super().select
        until = now() + self.look_for
        while now() < until:
            if ready := look(0):
                self._hope.came_true()
                return ready
        self._hope.was_in_vain()
        return []


class EagerLoop(asyncio.SelectorEventLoop):
    """The usual loop on an eager selector."""

    def __init__(self) -> None:
        self._eager = EagerSelector()
        super().__init__(self._eager)
        self.expect = self._eager.expect

    @property
    def looks_for(self) -> float:
        """How long it looks before it sleeps, in seconds."""
        return self._eager.look_for

    def look_for(self, seconds: float) -> None:
        """Set that; never on one core, which others need."""
        self._eager.look_for = seconds if cores() > 1 else 0.0


def new_loop() -> asyncio.AbstractEventLoop:
    """Make the loop that asyncio would make, an eager one if that is its usual one."""
    loop = asyncio.new_event_loop()
    if sys.platform == "win32" or type(loop) is not asyncio.SelectorEventLoop:
        return loop  # such as the policy of the program says
    loop.close()
    return EagerLoop()


def tune(loop: asyncio.AbstractEventLoop, look_for: float) -> None:
    """Set how long a loop looks before it sleeps, if it can look at all."""
    if isinstance(loop, EagerLoop):
        loop.look_for(look_for)


def expectation(loop: asyncio.AbstractEventLoop) -> Callable[[], object]:
    """Give what is to be called when something may come to a loop very soon."""
    return loop.expect if isinstance(loop, EagerLoop) else _expect_nothing


def _expect_nothing() -> None:
    """Say nothing to a loop that cannot look."""
