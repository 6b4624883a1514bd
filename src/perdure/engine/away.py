"""The context of a step whose function runs in a thread: its methods still run on the loop."""

import asyncio
import contextlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
)
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from inspect import isasyncgen, isawaitable, iscoroutinefunction
from typing import Any, Self

from perdure.engine.threads import Whose, call_for, call_in_thread
from perdure.jobs.option import is_async


class _Away:
    """A context, seen from a thread."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._variables = copy_context()  # by which what runs on the loop belongs to its process

    def _start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> "Future[Any]":
        async def call() -> Any:
            result = function(*args, **kwargs)
            return await result if isawaitable(result) else result

        variables = self._variables.copy()
        return variables.run(asyncio.run_coroutine_threadsafe, call(), self._loop)


class BlockingContext(_Away):
    """A context as a sync function sees it: what must be awaited elsewhere blocks here."""

    def effect(self, kind: str, call: Any, *, target: str, **options: Any) -> Any:
        """Make an effect whose call runs in this thread; see `StepContext.effect`."""
        effects = self._context.effects
        _in_thread(options)
        place = effects.place(kind, target)
        begun = self._start(effects.begin, place, options).result()
        if begun.settled:
            return effects.result(begun)
        try:
            value = call(begun.effect.key)
        except BaseException as error:
            self._start(effects.failed, begun, error, options).result()
            raise
        return self._start(effects.done, begun, value).result()

    def spend(self, **amount: Any) -> "BlockingSpending":
        """Set an amount aside now; see `StepContext.spend`."""
        return BlockingSpending(self._start, self._start(self._context.spend, **amount).result())

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = self._start(found, *args, **kwargs).result()
            return self._iterate(result) if isasyncgen(result) else result

        return call

    def _iterate(self, source: AsyncIterator[Any]) -> Iterator[Any]:
        """Go through what is an `async for` elsewhere by a plain `for`."""
        while True:
            try:
                item = self._start(anext, source).result()
            except StopAsyncIteration:
                return
            yield item


class BlockingSpending:
    """An amount that was set aside, as a sync function sees it: `with ctx.spend(usd=1):`."""

    def __init__(self, start: Callable[..., "Future[Any]"], spending: Any) -> None:
        self._start = start
        self._spending = spending

    def settle(self, **actual: Any) -> None:
        """Say what was really spent; see `Spending.settle`."""
        self._start(self._spending.settle, **actual).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._start(self._spending.__aexit__, *error).result()


class LoopSpending:
    """An amount to be set aside, as an async function on another loop sees it."""

    def __init__(self, wait: Callable[..., Awaitable[Any]], spending: Any) -> None:
        self._wait = wait
        self._spending = spending

    async def settle(self, **actual: Any) -> None:
        """Say what was really spent; see `Spending.settle`."""
        await self._wait(self._spending.settle, **actual)

    async def __aenter__(self) -> Self:
        await self._wait(self._spending.__aenter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._wait(self._spending.__aexit__, *error)

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()


class LoopContext(_Away):
    """A context as an async function on another loop sees it."""

    async def effect(self, kind: str, call: Any, *, target: str, **options: Any) -> Any:
        """Make an effect whose call runs on this loop; see `StepContext.effect`."""
        effects = self._context.effects
        _in_thread(options)
        place = effects.place(kind, target)
        begun = await self._await(effects.begin, place, options)
        if begun.settled:
            return effects.result(begun)
        try:
            value = call(begun.effect.key)
            value = await value if isawaitable(value) else value
        except BaseException as error:
            await self._await(effects.failed, begun, error, options)
            raise
        return await self._await(effects.done, begun, value)

    def spend(self, **amount: Any) -> LoopSpending:
        """Set an amount aside; see `StepContext.spend`."""
        return LoopSpending(self._await, self._context.spend(**amount))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        if iscoroutinefunction(found):
            return partial(self._await, found)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            return self._iterate(result) if isasyncgen(result) else result

        return call

    def _await(self, found: Callable[..., Any], *args: Any, **kwargs: Any) -> Awaitable[Any]:
        return asyncio.wrap_future(self._start(found, *args, **kwargs))

    async def _iterate(self, source: AsyncIterator[Any]) -> AsyncIterator[Any]:
        while True:
            try:
                item = await self._await(anext, source)
            except StopAsyncIteration:
                return
            yield item


def _in_thread(options: dict[str, Any]) -> None:
    """Let a question to the receiver not hold up the loop."""
    query = options.get("query")
    if query is not None and not is_async(query):
        options["query"] = partial(call_in_thread, query)


class _OwnLoop:
    """An async function in a thread, with a loop of its own, by which it can be cancelled."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def run(self, start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(self._main(start))

    async def _main(self, start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self._task = asyncio.current_task()
        if self._cancelled:
            raise asyncio.CancelledError
        return await start()

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # that loop has just ended
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)


async def call_away(
    function: Callable[..., Any],
    context: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    whose: Whose | None = None,
) -> Any:
    """Call a function in a thread; an async one gets a loop of its own there.

    A sync one cannot be stopped: it is left behind if the caller is cancelled.
    """
    if not is_async(function):
        return await call_for(whose, function, BlockingContext(context), *args, **kwargs)
    own = _OwnLoop()
    start = partial(function, LoopContext(context), *args, **kwargs)
    try:
        return await call_for(whose, own.run, start)
    except asyncio.CancelledError:
        own.cancel()
        raise
