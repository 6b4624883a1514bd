"""The scheduler: runs the processes of one asyncio loop.

A process is not an `asyncio.Task`. A task costs a handle, a future and a turn of the loop for each
step; here all processes of a loop share one loop callback, `turn`, which drains the queue of ready
processes. That is what makes a message cheap. Two things keep it fair:

- A turn ends when its budget of steps or of time is used up, and asks the loop for another one.
  So timers and sockets get their turn in a storm of messages.
- A process that receives message after message without ever waiting would never return to the
  scheduler at all. So receiving counts: after a streak of values taken without a wait, the
  process looks at the clock, and yields once if its time is up (`streak_is_over`,
  `yield_if_due`).

Exactly one turn is scheduled at a time: `turn_scheduled` is set by the code that makes the queue
non-empty, and cleared by the turn that finds it empty. Both happen on the thread of the loop,
except for wake-ups by another thread, which go through `call_soon_threadsafe`.

The scheduler knows nothing about the death of a process: `finish` is given to it, and is called
with a process whose code has returned or raised.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, MutableSequence
from contextvars import Context
from threading import get_ident
from typing import Any

from perdure.base.settings import Settings
from perdure.process.waiter import PARK, PARKED, READY, RUNNING, RUNNING_TASKS

# Steps between reads of the clock: often enough to be fair, seldom enough to cost nothing.
_STEPS_PER_CLOCK_READ = 32

# A process that has received this many values without a wait checks whether its time is up.
# A turn is at most this many streaks long, however fast the values come.
STREAK = 1024
_STREAKS_PER_TURN = 16

# How many nested servers may answer a call directly, inside the step of their caller.
_MAX_INLINE_CALLS = 16

Shuffle = Callable[[MutableSequence[Any]], None]
Finish = Callable[[Any, object, BaseException | None], None]


class Scheduler:
    """The queue of processes that can run now."""

    __slots__ = (
        "_clock_reads",
        "_context",
        "_shuffle",
        "_steps",
        "_streak",
        "_thread",
        "_turn_time",
        "_yield_at",
        "finish",
        "inline_calls_left",
        "loop",
        "max_inline_calls",
        "ready",
        "turn_scheduled",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        finish: Finish,
        shuffle: Shuffle | None = None,
    ) -> None:
        """Start with an empty queue.

        Args:
            loop: The loop that runs the turns.
            settings: The budget of a turn.
            finish: Called with a process whose code has ended, its value and its error.
            shuffle: Reorders the ready processes at each turn; tests use it to find and replay
                races.
        """
        self.loop = loop
        self.finish = finish
        self.ready: deque[Any] = deque()
        self.turn_scheduled = False
        # How many calls may still be served inside their callers before one goes through the
        # queue; none under a shuffle, which must see every step.
        self.inline_calls_left = self.max_inline_calls = 0 if shuffle else _MAX_INLINE_CALLS
        self._shuffle = shuffle
        self._context = Context()
        self._thread = get_ident()
        self._streak = STREAK
        self._steps = min(_STEPS_PER_CLOCK_READ, settings.turn_steps)
        self._clock_reads = settings.turn_steps // self._steps
        self._turn_time = settings.turn_time
        self._yield_at = 0.0

    @property
    def shuffled(self) -> bool:
        """Whether a test decides the order of steps."""
        return self._shuffle is not None

    @property
    def turn_ends(self) -> float:
        """When the turn that runs now should end; another value in every turn."""
        return self._yield_at

    def schedule_turn(self) -> None:
        """Ask the loop for a turn."""
        self.turn_scheduled = True
        # A turn runs in a context of its own: it serves many processes, and must not inherit
        # the context variables of the one that happened to be woken first.
        if get_ident() == self._thread:
            self.loop.call_soon(self.turn, context=self._context)
        else:  # a thread that a process started sends a message
            self.loop.call_soon_threadsafe(self.turn, context=self._context)

    def streak_is_over(self) -> bool:
        """Count one operation without a wait; return whether others should get a turn now."""
        self._streak -= 1
        if self._streak:
            return False
        self._streak = STREAK
        return True

    def yield_if_due(self) -> Generator[None, None, None]:
        """Let all others run, if the time of this turn is up."""
        now = self.loop.time
        # A streak counts as some time at least, for loops on which time stands still.
        self._yield_at -= self._turn_time / _STREAKS_PER_TURN
        if now() >= self._yield_at:
            yield
            self._yield_at = now() + self._turn_time

    def turn(self) -> None:
        """Step ready processes until none is left or the budget is used up."""
        now = self.loop.time
        self._yield_at = deadline = now() + self._turn_time
        if self._shuffle is not None:
            self._shuffle(self.ready)
        try:
            for _ in range(self._clock_reads):
                if not self._run(self._steps):
                    self.turn_scheduled = False
                    return
                if now() >= deadline:
                    break
        finally:
            RUNNING_TASKS.pop(self.loop, None)
        self.schedule_turn()

    def _run(self, steps: int) -> bool:  # noqa: C901 - the hot path, on one screen
        """Take this many steps: the core loop of the kernel. Return False if the queue ran empty.

        This is `Process.step` for the plain case, without its calls.
        """
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
            if send is None:  # bound at the first step, since many processes never take one
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
            # Outside of the handler, so that this error does not become the context of another.
            if type(error) is StopIteration:  # it returned
                self.finish(process, error.value, None)
            else:
                self.finish(process, None, error)
            error = None  # its traceback refers to this frame: otherwise a cycle for each death
        return True
