"""Time as channels: `after`, `timer`, `ticker`; and `sleep`.

A timer of the loop is armed only while somebody waits for it.
So code that makes a new `after("5s")` for each `select` leaves nothing behind.
"""

import asyncio
import types
from collections.abc import Generator
from typing import Self

from perdure.base.duration import Duration, required_seconds
from perdure.process.channel import Channel
from perdure.process.waiter import Waiter


class Timer(Channel[float]):
    """A channel that yields the loop's time once, when its time has come."""

    __slots__ = ("_handle", "_loop", "_when")

    def __init__(self, delay: float) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._when: float | None = self._loop.time() + delay

    @property
    def channel(self) -> Self:
        """The timer itself: it is a channel."""
        return self

    def stop(self) -> bool:
        """Stop it until `reset`; return whether it was still going to yield."""
        was_armed, self._when = self._when is not None, None
        self._rearm()
        return was_armed

    def reset(self, delay: Duration) -> bool:
        """Start again from now; return whether it was still going to yield."""
        seconds = _positive(delay, "a timer")
        was_armed, self._when = self._when is not None, self._loop.time() + seconds
        self._rearm()
        return was_armed

    def _has_for(self, waiter: Waiter | None) -> bool:  # noqa: ARG002 - the same for all
        due = self._when is not None and self._loop.time() >= self._when
        return due or self.closed

    def _take(self, waiter: Waiter | None) -> float:
        if self.closed:
            return super()._take(waiter)
        self._when = self._next()
        return self._loop.time()

    def _next(self) -> float | None:
        return None

    def _join(self, waiter: Waiter) -> None:
        super()._join(waiter)
        self._rearm()

    def _leave(self, waiter: Waiter) -> None:
        super()._leave(waiter)
        self._rearm()

    def _rearm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._receivers and self._when is not None:
            self._handle = self._loop.call_at(self._when, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if self._when is not None:  # the loop may be early by the resolution of its clock
            self._when = min(self._when, self._loop.time())
        self._wake_next()


class Ticker(Timer):
    """A channel that yields periodically; a reader that is late misses ticks."""

    __slots__ = ("_period",)

    def __init__(self, period: float) -> None:
        super().__init__(period)
        self._period = period

    def reset(self, delay: Duration) -> bool:
        """Tick with this period from now on."""
        was_armed = super().reset(delay)
        self._period = _positive(delay, "a ticker")
        return was_armed

    def _next(self) -> float | None:
        due = self._when or 0.0
        # A tick that is early only by the rounding of floats counts, or it would come twice.
        missed = int((self._loop.time() - due) / self._period + 1e-6)
        return due + (missed + 1) * self._period


def after(delay: Duration) -> Timer:
    """Return a channel that yields once, `delay` from now: the timeout case of a `select`."""
    return Timer(required_seconds(delay))


def timer(delay: Duration) -> Timer:
    """Return a channel that yields once, and can be stopped and reset."""
    return Timer(_positive(delay, "a timer"))


def ticker(period: Duration) -> Ticker:
    """Return a channel that yields every `period`."""
    return Ticker(_positive(period, "a ticker"))


async def sleep(delay: Duration) -> None:
    """Suspend only this process; exits and kills still reach it.

    Zero lets all others run once.
    """
    seconds = required_seconds(delay)
    if seconds == 0:
        await _one_turn()
    else:
        await Timer(seconds).receive()


@types.coroutine
def _one_turn() -> Generator[None, None, None]:
    yield  # a bare yield is one turn of the loop, for processes as for tasks


def _positive(delay: Duration, what: str) -> float:
    seconds = required_seconds(delay)
    if seconds <= 0:
        raise ValueError(f"{what} needs a positive duration, not {delay!r}")
    return seconds
