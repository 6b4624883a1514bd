"""Where a stream takes its input from: any iterable, sync or async, one value when asked."""

import asyncio
import types
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from typing import Any, Generic, TypeAlias, TypeVar

from perdure.process.current import current_waiter
from perdure.process.waiter import NOBODY

A = TypeVar("A")

NOT_YET: Any = object()
"""What a feed gives when its next value is still to come."""


class PlainFeed(Generic[A]):
    """Takes values from an iterable."""

    __slots__ = ("take",)

    def __init__(self, items: Iterable[A]) -> None:
        self.take: Callable[[], A] = iter(items).__next__  # without a call around it

    async def close(self) -> None:
        """Let go: a generator that nobody else holds runs its cleanup now."""
        nothing: Iterator[A] = iter(())
        self.take = nothing.__next__


class AsyncFeed(Generic[A]):
    """Takes values from an async iterable.

    One task of the consumer's process runs the input from its first value to its cleanup:
    results that are ready are given while the next input is still awaited,
    and cancel scopes in the input are entered and left by the same task.
    """

    __slots__ = ("_asked", "_ended", "_error", "_items", "_task", "_value", "_wake", "_wanted")

    def __init__(self, items: AsyncIterable[A], wake: Callable[[], None]) -> None:
        self._items: AsyncIterator[A] = aiter(items)
        self._value: Any = NOT_YET
        self._error: BaseException | None = None
        self._ended = False
        self._wanted = False
        self._wake = wake  # tells the consumer of a value
        self._asked = NOBODY  # the task's, told of a wish
        self._task: asyncio.Task[None] | None = None

    def take(self) -> A:
        """Give the value that is there, or wish for one."""
        if self._value is not NOT_YET:
            value, self._value = self._value, NOT_YET
            return value
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._ended:
            raise StopIteration
        self._wanted = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._asked is not NOBODY:
            self._asked.wake()
        return NOT_YET

    async def _run(self) -> None:
        try:
            await self._pump()
        except BaseException as error:
            if self._ended:  # by our own cancel
                raise
            self._error = error  # the consumer gets it
        finally:
            await _close(self._items)
            self._ended = True
            self._wake()

    async def _pump(self) -> None:
        async for value in self._items:
            self._value = value
            self._wanted = False
            self._wake()
            await self._wish()

    @types.coroutine
    def _wish(self) -> Generator[Any, None, None]:
        self._asked = waiter = current_waiter()
        try:
            while not self._wanted:
                yield waiter.pause()
        finally:
            self._asked = NOBODY

    async def close(self) -> None:
        """Stop the input, and wait for its cleanup."""
        self._ended = True
        task, self._task = self._task, None
        if task is None:
            await _close(self._items)
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _close(items: AsyncIterator[Any]) -> None:
    """Close a generator; other iterators have nothing to close."""
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


Feed: TypeAlias = PlainFeed[A] | AsyncFeed[A]
"""The input of a stream: `take` gives the next value, or `NOT_YET`, or raises StopIteration."""


def feed_of(items: Iterable[A] | AsyncIterable[A], wake: Callable[[], None]) -> Feed[A]:
    """Open an input; `wake` tells that a value has come which was not there yet."""
    if isinstance(items, AsyncIterable):
        return AsyncFeed(items, wake)
    return PlainFeed(items)


def check_items(items: object) -> None:
    """Refuse what cannot be iterated, without starting to.

    Raises:
        TypeError: It is neither iterable nor async iterable.
    """
    if not hasattr(items, "__aiter__") and not hasattr(items, "__iter__"):
        raise TypeError(f"a stream reads from an iterable, sync or async; not from {items!r}")
