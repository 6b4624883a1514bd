"""Call again what failed, after the pauses of a policy."""

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import TypeVar, cast

from perdure.base.duration import Duration, named_seconds
from perdure.base.result import Err

# How often to try again and how long to wait in between; pure.

_LARGEST = sys.float_info.max
_CHANCE = SystemRandom()  # without state: safe to share between threads and after a fork


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """A policy of retries: the pause grows by `factor` after each failed call.

    Attributes:
        attempts: Calls in all, the first one included.
        initial_delay: Seconds to wait after the first failure.
        factor: What each pause is multiplied by to give the next; at least 1.
        max_delay: The longest pause in seconds; None = no limit.
        jitter: Fraction (0 to 1) by which a pause is made longer or shorter by chance,
            so that those who failed together do not come back together.
        on: Classes of exceptions after which to try again.
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
            ValueError: A number is out of its range or a duration is bad.
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
        """Give the seconds to wait after so many failed calls.

        Args:
            failures: Calls that failed up to now; after none there is nothing to wait for.
            random: The source of the jitter; the system's when it is not given.

        Raises:
            ValueError: `failures` is negative.
        """
        if failures < 0:
            raise ValueError(f"failures must be 0 or more: {failures}")
        if failures == 0:
            return 0.0
        most = _LARGEST if self.max_delay is None else self.max_delay
        pause = min(self.initial_delay * _power(self.factor, failures - 1), most)
        if not self.jitter:
            return pause
        # Drawn below the cap, not cut at it: else half of all late pauses would be equal.
        shortest = pause * (1 - self.jitter)
        longest = min(pause * (1 + self.jitter), most)
        return min((random or _CHANCE).uniform(shortest, longest), longest)


def _power(factor: float, exponent: int) -> float:
    """Raise to a power that may be far beyond floats; the largest float stands for the rest."""
    try:
        return factor ** float(min(exponent, _LARGEST))
    except OverflowError:
        return _LARGEST


def _calls(attempts: object) -> int:
    if isinstance(attempts, bool) or not isinstance(attempts, int):
        raise TypeError(f"attempts must be an int, the number of calls, not {attempts!r}")
    if attempts < 1:
        raise ValueError(f"attempts must be 1 or more, for the first call counts: {attempts}")
    return attempts


def _number(name: str, value: object, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not least <= value <= most:
        limits = f"{least:g} or more" if most == _LARGEST else f"from {least:g} to {most:g}"
        raise ValueError(f"{name} must be a number, {limits}: {value!r}")
    return float(value)


def _exceptions(on: type[Exception] | Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    classes = (on,) if isinstance(on, type) else tuple(on)
    for each in classes:
        _check_exception(each)
    return classes


def _check_exception(each: object) -> None:
    # Cancellations and exits are no Exceptions: who tried again after one would never end.
    if not (isinstance(each, type) and issubclass(each, Exception)):
        raise TypeError(f"on must hold classes below Exception, not {each!r}")


T = TypeVar("T")

_STANDARD = Retry()


async def pause(seconds: float) -> None:
    """Wait on the running loop's own clock, which may be a virtual one."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, _end, over)
    try:
        await over
    finally:
        timer.cancel()  # nothing stays armed when the waiter was cancelled


async def with_retry(
    fn: Callable[[], Awaitable[T]] | Callable[[], T],
    *,
    policy: Retry = _STANDARD,
    sleep: Callable[[float], Awaitable[object]] = pause,
    random: Random | None = None,
) -> T:
    """Call `fn` until it gives something other than `Err`, at most `policy.attempts` times.

    An exception is tried again only if its class is in `policy.on`; any other goes up at once.
    The last `Err` is returned as it is, the last exception is raised.

    Args:
        fn: Called without arguments, may be sync or async; a sync one holds up the loop.
        policy: How often, how long to wait, after which exceptions.
        sleep: Waits the given seconds.
        random: The source of the policy's jitter.
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
