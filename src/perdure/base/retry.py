"""Call again what failed, after the pauses of a policy."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar, cast

from perdure.base.backoff import Retry
from perdure.base.result import Err

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
