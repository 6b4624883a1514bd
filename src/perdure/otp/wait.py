"""To wait for tasks: for one, for several, for the first of them, up to a limit."""

import asyncio
import types
from collections.abc import Generator, Sequence
from typing import Any, Protocol

from perdure.process.current import current_waiter
from perdure.process.waiter import Waiter


class Awaited(Protocol):
    """A task, as far as a wait needs."""

    @property
    def ended(self) -> bool:
        """Whether it has a result."""
        ...

    @property
    def failed(self) -> bool:
        """Whether it has ended without a value."""
        ...

    def begin_wait(self, wait: "Wait") -> None:
        """Tell this wait of the end."""

    def end_wait(self, *, interrupted: bool) -> None:
        """Tell nobody any more."""


class Wait:
    """One wait: so many ends are missing, or one failure, if that is enough."""

    __slots__ = ("_hasty", "_missing", "_waiter", "expired", "over")

    def __init__(self, waiter: Waiter, missing: int, *, hasty: bool) -> None:
        self._waiter = waiter
        self._missing = missing
        self._hasty = hasty
        self.over = missing <= 0
        self.expired = False

    def ended(self, *, failed: bool) -> None:
        """Count one end."""
        self._missing -= 1
        if self._missing <= 0 or (failed and self._hasty):
            self.over = True
            self._waiter.wake()

    def expire(self) -> None:
        """Stop waiting: the time is up."""
        self.expired = True
        self._waiter.wake()


@types.coroutine
def waited(
    tasks: Sequence[Awaited], count: int, limit: float | None, *, hasty: bool = False
) -> Generator[Any, None, bool]:
    """Wait until `count` of the tasks have ended, or with `hasty` one has failed.

    Returns:
        Whether that came before the time was up.
    """
    waiter = current_waiter()
    running = [task for task in tasks if not task.ended]
    wait = Wait(waiter, count - (len(tasks) - len(running)), hasty=hasty)
    if hasty and any(task.failed for task in tasks):
        wait.over = True
    if wait.over or limit == 0:
        return wait.over
    timer = _timer(limit, wait)
    for task in running:
        task.begin_wait(wait)
    finished = False
    try:
        yield from _pause(wait, waiter)
        finished = True
    finally:
        if timer is not None:
            timer.cancel()
        for task in running:
            task.end_wait(interrupted=not finished)
    return wait.over


def _pause(wait: Wait, waiter: Waiter) -> Generator[Any, None, None]:
    while not wait.over and not wait.expired:
        yield waiter.pause()


def _timer(limit: float | None, wait: Wait) -> asyncio.TimerHandle | None:
    return None if limit is None else asyncio.get_running_loop().call_later(limit, wait.expire)
