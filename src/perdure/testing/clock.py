"""Virtual time: a loop whose clock stands still while code runs, and jumps when all tasks wait."""

import asyncio
import random
import selectors
from collections import deque
from collections.abc import MutableSequence
from typing import Any

# Real seconds to wait for I/O and threads when nothing else can happen.
REAL_WAIT = 5.0


class Deadlock(AssertionError):
    """Nothing can happen any more: everything waits for something else."""


class VirtualClock:
    """A clock that moves only by `advance`."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def monotonic(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def monotonic_ns(self) -> int:
        """Return the virtual time in nanoseconds."""
        return round(self._now * 1e9)

    def time(self) -> float:
        """Return the virtual wall time, which starts at the epoch."""
        return self._now

    def time_ns(self) -> int:
        """Return the virtual wall time in nanoseconds."""
        return round(self._now * 1e9)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    """Jumps to the next timer instead of waiting for it; real I/O still comes first."""

    def __init__(self, clock: VirtualClock, patience: float) -> None:
        super().__init__()
        self._clock = clock
        self._patience = patience
        self.held = False  # time flows as it does outside

    def select(self, timeout: float | None = None) -> Any:
        if self.held:
            return super().select(timeout)
        if timeout is None:  # no timer at all: only real I/O or a thread can wake anything
            events = super().select(REAL_WAIT)
            if not events:
                raise Deadlock("everything waits, and no timer, thread or I/O will wake anything")
            return events
        events = super().select(min(timeout, self._patience))
        if not events and timeout > 0:
            self._clock.advance(timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on a virtual clock.

    Args:
        clock: The clock; a new one by default.
        patience: Real seconds to wait for I/O before time jumps; 0 suits programs without I/O.
        seed: Shuffles the order of ready tasks. The same seed produces the same order, so that a
            race can be reproduced once it is found.
    """

    def __init__(
        self, clock: VirtualClock | None = None, *, patience: float = 0.0, seed: int | None = None
    ) -> None:
        self.clock = clock or VirtualClock()
        self._random = None if seed is None else random.Random(seed)
        self._jumping = _JumpingSelector(self.clock, patience)
        super().__init__(self._jumping)

    @property
    def is_held(self) -> bool:
        """Whether time does not jump."""
        return self._jumping.held

    def hold(self) -> None:
        """Let time flow as it does outside: another clock takes over."""
        self._jumping.held = True

    def release(self) -> None:
        """Let time jump again."""
        self._jumping.held = False

    def time(self) -> float:
        """Return the virtual time."""
        return self.clock.monotonic()

    def shuffle(self, ready: MutableSequence[Any]) -> None:
        """Shuffle what is ready into the order given by the seed."""
        if self._random is not None and len(ready) > 1:
            self._random.shuffle(ready)

    def _run_once(self) -> None:
        loop: Any = self  # only a test may use its private parts
        ready: deque[Any] = loop._ready  # noqa: SLF001
        # Only steps of tasks are shuffled: transports rely on the order of their callbacks.
        # A copy, because another thread may append to the queue meanwhile.
        places = [i for i, handle in enumerate(list(ready)) if _steps_a_task(handle)]
        steps = [ready[i] for i in places]
        self.shuffle(steps)
        for i, step in zip(places, steps, strict=True):
            ready[i] = step
        parent: Any = super()
        parent._run_once()  # noqa: SLF001


def _steps_a_task(handle: Any) -> bool:
    callback = handle._callback  # noqa: SLF001
    task = getattr(callback, "__self__", None)
    return isinstance(task, asyncio.Task) or type(callback).__name__ == "TaskStepMethWrapper"
