"""Threads for functions of users that block; nothing else runs in them.

They are daemons: one that never returns is left behind and does not keep the program from ending.
Its place is free then for another one. Whose function still runs in such a thread is known.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from inspect import isasyncgen, isawaitable, iscoroutinefunction
from queue import SimpleQueue
from typing import Any, NamedTuple, Self, TypeVar

from perdure.jobs.definition import is_async
from perdure.process.waiter import set_process

T = TypeVar("T")

# So many functions run at once in one program; more of them wait.
_THREADS = 32


class Whose(NamedTuple):
    """For which run of which step a function is called."""

    job: str
    step: str
    epoch: int


class _Call:
    """A function to be called, and who waits for what it gives."""

    __slots__ = ("ended", "function", "future", "left", "loop", "runs", "whose")

    def __init__(self, function: Callable[[], Any], whose: Whose | None) -> None:
        self.function = function
        self.whose = whose
        self.ended: Future[None] | None = None  # for who waits for its thread
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.runs = False
        self.left = False  # nobody waits for it any more

    def end(self) -> "Future[None]":
        """Give what is done when its thread has done with it."""
        if self.ended is None:
            self.ended = Future()
        return self.ended

    def do(self) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = self.function()
        except StopIteration as stop:  # which no future takes
            error = RuntimeError(f"the function raised {stop!r}")
        except BaseException as raised:  # noqa: BLE001 - who waits gets it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who waited
            self.loop.call_soon_threadsafe(self._settle, value, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


class Threads:
    """A number of threads, started when they are needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: SimpleQueue[_Call] = SimpleQueue()
        self._lock = threading.Lock()
        self._queued = 0
        self._idle = 0  # threads that take the next call, or are about to
        self._places = 0  # threads that were not left behind
        self._of_steps: set[_Call] = set()  # calls for steps that have not ended, left or not

    async def call(self, function: Callable[[], T], whose: Whose | None = None) -> T:
        """Call a function in a thread; if the caller is cancelled, it is left to itself there."""
        call = _Call(function, whose)
        with self._lock:
            self._queued += 1
            if whose is not None:
                self._of_steps.add(call)
            self._hire()
        self._queue.put(call)
        try:
            return await call.future
        except asyncio.CancelledError:
            self._leave(call)
            raise

    def _hire(self) -> None:
        if self._queued > self._idle and self._places < self._most:
            self._places += 1
            self._idle += 1
            threading.Thread(target=self._serve, name="perdure-step", daemon=True).start()

    def _leave(self, call: _Call) -> None:
        with self._lock:
            call.left = True
            if call.runs:
                self._places -= 1
                self._hire()

    def older(self, whose: Whose) -> list["Future[None]"]:
        """List the ends of calls in which earlier runs of a job still work on the same step."""
        with self._lock:
            return [call.end() for call in self._of_steps if _is_older(call, whose)]

    def _ended(self, call: _Call) -> None:
        self._of_steps.discard(call)
        if call.ended is not None:
            call.ended.set_result(None)

    def _serve(self) -> None:
        while True:
            call = self._queue.get()
            with self._lock:
                self._queued -= 1
                self._idle -= 1
                call.runs = not call.left
            if call.runs:
                call.do()
            with self._lock:
                self._ended(call)
                if call.runs and call.left:  # its place was given to another
                    return
                call.runs = False
                self._idle += 1
            del call  # else what it gave would be kept until there is another


def _is_older(call: _Call, whose: Whose) -> bool:
    return call.whose is not None and call.whose[:2] == whose[:2] and call.whose != whose


_THREADS_OF_STEPS = Threads(_THREADS)


async def call_in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function in a thread, with the context variables of the caller.

    What runs there is no part of the caller's process: its verbs belong to the loop.
    """
    return await call_for(None, function, *args, **kwargs)


async def call_for(
    whose: Whose | None, function: Callable[..., T], /, *args: Any, **kwargs: Any
) -> T:
    """Call a function likewise, for a step."""
    variables = contextvars.copy_context()
    variables.run(set_process, None)  # pyright: ignore[reportArgumentType]
    return await _THREADS_OF_STEPS.call(lambda: variables.run(function, *args, **kwargs), whose)


def older_calls(whose: Whose) -> list["Future[None]"]:
    """List the ends of calls in which earlier runs of a job still work on the same step."""
    return _THREADS_OF_STEPS.older(whose)


# The context of a step whose function runs in a thread: its methods still run on the loop.


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
