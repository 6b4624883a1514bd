"""Retry policies, and calling a function with retries."""

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import TypeVar, cast, overload

from perdure.base.duration import Duration, named_seconds
from perdure.base.result import Err

_LARGEST = sys.float_info.max
_SYSTEM_RANDOM = SystemRandom()  # has no state: safe to share between threads and after a fork


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """A retry policy with exponential backoff.

    Attributes:
        attempts: The number of calls, including the first.
        initial_delay: Seconds to wait after the first failure.
        factor: The factor from each delay to the next; at least 1.
        max_delay: The longest delay in seconds; None means no limit.
        jitter: Fraction (0 to 1) by which a delay is randomly lengthened or shortened, so that
            callers that failed together do not retry together.
        on: Exception classes to retry.
    """

    attempts: int
    initial_delay: float
    factor: float
    max_delay: float | None
    jitter: float
    on: tuple[type[Exception], ...]

    def __init__(
        self,
        attempts: int = 4,
        initial_delay: Duration = "200ms",
        factor: float = 2,
        max_delay: Duration = None,
        jitter: float = 0.0,
        on: type[Exception] | Iterable[type[Exception]] = (),
    ) -> None:
        """Check every field.

        Raises:
            ValueError: A number is out of range, or a duration is invalid.
            TypeError: A field has the wrong type.
        """
        longest = None if max_delay is None else named_seconds("max_delay", max_delay)
        object.__setattr__(self, "attempts", _calls(attempts))
        object.__setattr__(self, "initial_delay", named_seconds("initial_delay", initial_delay))
        object.__setattr__(self, "factor", _number("factor", factor, 1.0, _LARGEST))
        object.__setattr__(self, "max_delay", longest)
        object.__setattr__(self, "jitter", _number("jitter", jitter, 0.0, 1.0))
        object.__setattr__(self, "on", _exceptions(on))

    def delay(self, failures: int, random: Random | None = None) -> float:
        """Return the seconds to wait after this many failed calls.

        Args:
            failures: The number of failed calls so far; 0 means no delay.
            random: The source of jitter; by default the system's.

        Raises:
            ValueError: `failures` is negative.
        """
        if failures < 0:
            raise ValueError(f"failures must be 0 or more, not {failures}")
        if failures == 0:
            return 0.0
        most = _LARGEST if self.max_delay is None else self.max_delay
        pause = min(self.initial_delay * _power(self.factor, failures - 1), most)
        if not self.jitter:
            return pause
        # Jitter is drawn below the cap instead of being cut at it; otherwise half of all late
        # delays would be equal.
        shortest = pause * (1 - self.jitter)
        longest = min(pause * (1 + self.jitter), most)
        return min((random or _SYSTEM_RANDOM).uniform(shortest, longest), longest)


def _power(factor: float, exponent: int) -> float:
    """Return a power, or the largest float if it is beyond floats."""
    try:
        return factor ** float(min(exponent, _LARGEST))
    except OverflowError:
        return _LARGEST


def _calls(attempts: object) -> int:
    if isinstance(attempts, bool) or not isinstance(attempts, int):
        raise TypeError(f"attempts must be an int, not {attempts!r}")
    if attempts < 1:
        raise ValueError(f"attempts must be 1 or more, since the first call counts, not {attempts}")
    return attempts


def _number(name: str, value: object, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not least <= value <= most:
        limits = f"{least:g} or more" if most == _LARGEST else f"from {least:g} to {most:g}"
        raise ValueError(f"{name} must be {limits}, not {value!r}")
    return float(value)


def _exceptions(on: type[Exception] | Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    classes = (on,) if isinstance(on, type) else tuple(on)
    for each in classes:
        _check_exception(each)
    return classes


def _check_exception(each: object) -> None:
    # Cancellations and exits are not Exceptions: code that retried after one could not be stopped.
    if not (isinstance(each, type) and issubclass(each, Exception)):
        raise TypeError(f"on must hold subclasses of Exception, not {each!r}")


T = TypeVar("T")

_STANDARD = Retry()


async def pause(seconds: float) -> None:
    """Wait on the clock of the running loop, which may be virtual."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, _end, over)
    try:
        await over
    finally:
        timer.cancel()  # no timer remains if the waiter was cancelled


async def idle(seconds: float, wake: asyncio.Event | None = None) -> None:
    """Wait for the next round of periodic work, or until `wake` is set; it is set afterwards.

    A test that skips time does not stop at such a pause: see `perdure.testing`.
    """
    wake = asyncio.Event() if wake is None else wake
    timer = asyncio.get_running_loop().call_later(seconds, end_idle, wake)
    try:
        await wake.wait()
    finally:
        timer.cancel()


def end_idle(wake: asyncio.Event) -> None:
    """End a pause of `idle`."""
    wake.set()


# Two overloads, since mypy finds no `T` for the union of the two kinds of function.
@overload
async def with_retry(
    fn: Callable[[], Awaitable[T]],
    *,
    policy: Retry = ...,
    sleep: Callable[[float], Awaitable[object]] = ...,
    random: Random | None = ...,
) -> T: ...
@overload
async def with_retry(
    fn: Callable[[], T],
    *,
    policy: Retry = ...,
    sleep: Callable[[float], Awaitable[object]] = ...,
    random: Random | None = ...,
) -> T: ...
async def with_retry(
    fn: Callable[[], Awaitable[T]] | Callable[[], T],
    *,
    policy: Retry = _STANDARD,
    sleep: Callable[[float], Awaitable[object]] = pause,
    random: Random | None = None,
) -> T:
    """Call `fn` until it returns something other than `Err`, at most `policy.attempts` times.

    An exception is retried only if its class is in `policy.on`; any other propagates at once.
    The last `Err` is returned, and the last exception is raised.

    Args:
        fn: Called without arguments; may be sync or async. A sync function blocks the loop.
        policy: How often to retry, how long to wait, and after which exceptions.
        sleep: Waits the given seconds.
        random: The source of jitter.
    """
    failures = 0
    while True:
        try:
            result = await _called(fn)
        except policy.on:
            failures += 1
            if failures >= policy.attempts:
                raise
        else:
            failures += 1
            if failures >= policy.attempts or not _failed(result):
                return result
        await sleep(policy.delay(failures, random))


async def _called(fn: Callable[[], Awaitable[T]] | Callable[[], T]) -> T:
    result = fn()
    return await cast("Awaitable[T]", result) if inspect.isawaitable(result) else cast("T", result)


def _failed(result: object) -> bool:
    return isinstance(result, Err)


def _end(over: "asyncio.Future[None]") -> None:
    # The waiter may have been cancelled in the same turn of the loop.
    if not over.done():
        over.set_result(None)
