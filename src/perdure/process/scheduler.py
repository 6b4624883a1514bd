"""The scheduler: runs the processes of one asyncio loop.

One loop callback, `turn`, drains the queue of ready processes under a budget,
so that a storm of messages cannot starve timers and I/O.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, MutableSequence
from contextvars import Context
from threading import get_ident
from typing import Any

from perdure.base.settings import Settings
from perdure.process.death import finish
from perdure.process.waiter import PARK, PARKED, READY, RUNNING, RUNNING_TASKS

# The time is looked at once in so many steps: often enough to be fair, seldom enough to be free.
_STEPS_PER_LOOK = 32

# Whoever has a long mailbox, or talks to itself, must not stop the loop: having received so much
# at a stretch, without a wait, it looks whether its time is up, and is so often let go on.
STREAK = 1024
_STREAKS = 16

# So many servers in a row may answer a call at once, in the step of their caller.
_IN_A_ROW = 16

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
        "_tired_at",
        "_turn_time",
        "awake",
        "in_a_row",
        "loop",
        "out_of_turn",
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
        # How many steps may still be taken where they are needed, before one comes through here;
        # none where a test draws the order, which must see every step.
        self.out_of_turn = self.in_a_row = 0 if shuffle is not None else _IN_A_ROW
        self._shuffle = shuffle
        self._context = Context()
        self._thread = get_ident()
        self._streak = STREAK
        self._steps = min(_STEPS_PER_LOOK, settings.turn_steps)
        self._looks = settings.turn_steps // self._steps
        self._turn_time = settings.turn_time
        self._tired_at = 0.0

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

    def breathe(self) -> Generator[None, None, None]:
        """Give everybody else a turn, if the time is up."""
        now = self.loop.time
        # A streak counts as some time at least, for loops on which the time stands still.
        self._tired_at -= self._turn_time / _STREAKS
        if now() >= self._tired_at:
            yield
            self._tired_at = now() + self._turn_time

    def turn(self) -> None:
        """Let ready processes step until none is left or the budget is used up."""
        now = self.loop.time
        self._tired_at = deadline = now() + self._turn_time
        if self._shuffle is not None:
            self._shuffle(self.ready)
        try:
            for _ in range(self._looks):
                if not self._run(self._steps):
                    self.awake = False
                    return
                if now() >= deadline:
                    break
        finally:
            RUNNING_TASKS.pop(self.loop, None)
        self.rouse()

    def _run(self, steps: int) -> bool:  # noqa: C901 - the hot path, on one screen
        """Let processes step, so often: the core loop of the kernel; tell whether it could."""
        loop, ready = self.loop, self.ready
        for _ in range(steps):
            if not ready:
                return False
            process = RUNNING_TASKS[loop] = ready.popleft()
            if process.state != READY or process.must_cancel:
                process.step()
                continue
            process.state = RUNNING
            send = process.send
            if send is None:  # its first step: not before, since newborns are many and small
                send = process.send = process.coro.send
            try:
                yielded = process.context.run(send, None)
            except BaseException as raised:  # noqa: BLE001 - it returned, or raised: it is over
                error = raised
            else:
                if yielded is PARK and not process.must_cancel:  # it waits in the kernel
                    process.state = PARKED
                else:
                    process.pause_for(yielded)
                continue
            # Out of the handler, so that its error is nobody's context.
            if type(error) is StopIteration:  # it returned
                finish(process, error.value, None)
            else:
                finish(process, None, error)
            error = None  # its traceback knows this frame: without this, a cycle for each death
        return True
