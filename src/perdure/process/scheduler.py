"""The scheduler: runs the processes of one asyncio loop.

One loop callback, `turn`, drains the queue of ready processes under a budget,
so that a storm of messages cannot starve timers and I/O.
"""

import asyncio
from collections import deque
from collections.abc import Callable, MutableSequence
from contextvars import Context
from threading import get_ident
from typing import Any

from perdure.base.settings import Settings

# The time is looked at once in so many steps: often enough to be fair, seldom enough to be free.
_STEPS_PER_LOOK = 32

# How much may be received at a stretch, without a wait, before others get a turn:
# whoever has a long mailbox, or talks to itself, must not stop the loop.
STREAK = 1024

Shuffle = Callable[[MutableSequence[Any]], None]


class Scheduler:
    """The queue of processes that can run now."""

    __slots__ = (
        "_context",
        "_looks",
        "_shuffle",
        "_steps",
        "_streak",
        "_thread",
        "_turn_time",
        "awake",
        "loop",
        "ready",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        shuffle: Shuffle | None = None,
    ) -> None:
        """Start with nothing to do.

        Args:
            loop: The loop that gives the turns.
            settings: The budget of a turn.
            shuffle: Puts the ready processes into another order at each turn,
                by which tests find and replay races.
        """
        self.loop = loop
        self.ready: deque[Any] = deque()
        self.awake = False
        self._shuffle = shuffle
        self._context = Context()
        self._thread = get_ident()
        self._streak = STREAK
        self._steps = min(_STEPS_PER_LOOK, settings.turn_steps)
        self._looks = settings.turn_steps // self._steps
        self._turn_time = settings.turn_time

    @property
    def seeded(self) -> bool:
        """Whether a test draws the order of steps."""
        return self._shuffle is not None

    def rouse(self) -> None:
        """Ask the loop for a turn."""
        self.awake = True
        # In a context of its own: what happens in a turn is nobody's, least of all that of
        # the process which happened to be woken first.
        if get_ident() == self._thread:
            self.loop.call_soon(self.turn, context=self._context)
        else:  # a thread that a process started sends a message
            self.loop.call_soon_threadsafe(self.turn, context=self._context)

    def tires(self) -> bool:
        """Count what is done without a wait; tell when everybody else should get a turn."""
        self._streak -= 1
        if self._streak:
            return False
        self._streak = STREAK
        return True

    def turn(self) -> None:
        """Let ready processes step until none is left or the budget is used up."""
        ready, now = self.ready, self.loop.time
        deadline = now() + self._turn_time
        if self._shuffle is not None:
            self._shuffle(ready)
        for _ in range(self._looks):
            for _ in range(self._steps):
                if not ready:
                    self.awake = False
                    return
                ready.popleft().step()
            if now() >= deadline:
                break
        self.rouse()
