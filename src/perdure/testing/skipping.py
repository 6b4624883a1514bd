"""Time that skips: the machine's clock plus what was skipped, for a loop and for a store at once.

Real time flows, so sockets, threads and disks work as always. What is left out are the hours in
which nothing happens: when all work is done and a job only waits for a time, the clock is set
forward to that time. Loop and store move together, and nothing runs in between, so nobody can see
one of them ahead of the other.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from perdure.base.clock import SystemClock
from perdure.base.retry import end_idle
from perdure.testing.clock import VirtualLoop

# What the loop itself waits for: its own wake-ups, and new connections of a server.
_ALWAYS_OPEN = ("_read_from_self", "_accept_connection")


class SkippingClock:
    """The clock of the machine, plus the seconds that were skipped."""

    def __init__(self) -> None:
        self.skipped = 0.0
        self._machine = SystemClock()

    def monotonic(self) -> float:
        """Return the seconds of the machine's monotonic clock, and those skipped."""
        return self._machine.monotonic() + self.skipped

    def monotonic_ns(self) -> int:
        """Return `monotonic` in nanoseconds."""
        return self._machine.monotonic_ns() + round(self.skipped * 1e9)

    def time(self) -> float:
        """Return the UNIX seconds of the machine's clock, and those skipped."""
        return self._machine.time() + self.skipped

    def time_ns(self) -> int:
        """Return `time` in nanoseconds."""
        return self._machine.time_ns() + round(self.skipped * 1e9)


class StoreTime(Protocol):
    """The clock of a store that can be set forward."""

    def skip(self, seconds: float) -> None:
        """Set the clock of the store forward, before it answers anything else."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class SkippingLoop:
    """A running asyncio loop whose clock is set forward, and what it still waits for.

    It uses private parts of asyncio's loop, as only a test may: its timers, and its sockets.

    Raises:
        RuntimeError: The loop is not one of asyncio's own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: SkippingClock) -> None:
        if not isinstance(loop, asyncio.BaseEventLoop):
            raise RuntimeError(  # noqa: TRY004  the loop is the state of the program, no argument
                f"time cannot be skipped on {type(loop).__name__}: use asyncio's own loop in tests"
            )
        self.loop: Any = loop  # whose private parts are untyped
        self._is_virtual = isinstance(loop, VirtualLoop)
        self._start_thread: Any = loop.run_in_executor
        self._clock = clock
        self._in_threads = 0  # calls of `run_in_executor` that have not ended

    def install(self) -> None:
        """Let the loop follow the clock."""
        before = self.loop.time()
        if self._is_virtual:
            self.loop.hold()
        self.loop.time = self._clock.monotonic
        self.loop.run_in_executor = self._run_in_executor
        self._move_timers(self.loop.time() - before)

    def uninstall(self) -> None:
        """Let the loop follow its own clock again; its timers keep what they had left."""
        before = self.loop.time()
        del self.loop.time, self.loop.run_in_executor
        if self._is_virtual:
            self.loop.release()
        self._move_timers(self.loop.time() - before)

    def _move_timers(self, seconds: float) -> None:
        for timer in self._scheduled:  # all by the same amount: their order stays
            timer._when += seconds  # noqa: SLF001

    def _run_in_executor(
        self, executor: Any, function: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._start_thread(executor, function, *args)
        self._in_threads += 1
        future.add_done_callback(self._left_thread)
        return future

    def _left_thread(self, _: "asyncio.Future[Any]") -> None:
        self._in_threads -= 1

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is about to run, as seen by a callback of the loop."""
        return not self.loop._ready and not self._in_threads  # noqa: SLF001

    @property
    def has_open_io(self) -> bool:
        """Whether code on this loop may wait for a socket, a pipe or a child process."""
        if self._in_threads:
            return True
        open_now = self.loop._selector.get_map().values()  # noqa: SLF001
        return any(not _is_ours(key.data) for key in open_now)

    def next_timer(self, *, periodic: bool) -> float | None:
        """Return the time of the next timer; those of periodic work count only if asked for."""
        whens = (timer.when() for timer in self._timers(periodic=periodic))
        return min(whens, default=None)

    def _timers(self, *, periodic: bool) -> Iterator[asyncio.TimerHandle]:
        for timer in self._scheduled:
            is_periodic = timer._callback is end_idle  # noqa: SLF001
            if not timer.cancelled() and (periodic or not is_periodic):
                yield timer

    @property
    def _scheduled(self) -> list[Any]:
        return self.loop._scheduled  # noqa: SLF001  only a test may use its private parts


def _is_ours(handles: tuple[Any, Any]) -> bool:
    """Whether what waits for a descriptor is the loop itself, or a part of Perdure."""
    for handle in handles:
        callback = getattr(handle, "_callback", None)
        if callback is None:
            continue
        module = getattr(callback, "__module__", None) or ""
        if callback.__name__ not in _ALWAYS_OPEN and not module.startswith("perdure."):
            return False
    return True
