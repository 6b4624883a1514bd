"""Ways to look at a running program without changing it."""

import asyncio
from typing import Any, TypeVar

from perdure import process
from perdure.process import Channel, Pid, select
from tests.process.tiny import give, others_rest

T = TypeVar("T")


async def drain(channel: Channel[T]) -> list[T]:
    """Take what waits in a channel now."""
    values: list[T] = []
    while True:
        found = await select(channel, default=True)
        if found.default or not found.ok:
            return values
        values.append(found.value)


async def dead() -> Pid:
    """Give the pid of a process that has ended."""
    pid = process.spawn(give)
    await others_rest()
    assert not process.alive(pid)
    return pid


def now() -> float:
    """Give the loop's time."""
    return asyncio.get_running_loop().time()


def live_timers() -> int:
    """Count the timers of the loop that are armed."""
    scheduled: Any = getattr(asyncio.get_running_loop(), "_scheduled", None)
    return sum(not handle.cancelled() for handle in scheduled)
