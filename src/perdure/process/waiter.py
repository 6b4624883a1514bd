"""Who waits: one small interface for processes and for plain asyncio tasks.

A wait in the kernel is always the same loop:
look at the state; if it is not yet so, `yield waiter.pause()` and look again.
Whoever changes the state calls `wake`.
Nothing is handed over with the wake-up, so nothing is lost when the waiter is cancelled instead,
and a wake-up too many does no harm.
"""

import asyncio
from typing import Any


class Park:
    """What a process yields to its scheduler to be left alone until somebody wakes it."""

    __slots__ = ()


PARK = Park()


class Waiter:
    """Something that can pause itself and be woken."""

    __slots__ = ()

    def pause(self) -> object:
        """Give what must be yielded to pause."""
        raise NotImplementedError

    def wake(self) -> None:
        """Make it look at the state again, soon."""
        raise NotImplementedError


NOBODY = Waiter()


class TaskWaiter(Waiter):
    """An asyncio task that waits: it pauses on a future of its own."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] | None = None

    def pause(self) -> object:
        future: Any = self.loop.create_future()
        # The mark by which a task knows a future that was yielded by an await.
        future._asyncio_future_blocking = True  # noqa: SLF001
        self.future = future
        return future

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)
