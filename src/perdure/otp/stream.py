"""Streams: run a function on every element of an input, so many at once, each in a process.

async with async_stream(urls, fetch, max_concurrency=16, timeout=5) as results:
    async for result in results:
        match result:
            case Ok(page): ...
            case Exited(reason): ...
"""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

from perdure.base.duration import Duration, seconds
from perdure.base.machine import cores
from perdure.base.result import Exited, Ok
from perdure.otp.feed import check_items
from perdure.otp.window import Progress, Rules, Window
from perdure.process.birth import Function, Options, check_function, give_birth
from perdure.process.current import current
from perdure.process.process import Process

A = TypeVar("A")
T = TypeVar("T")

OnTimeout: TypeAlias = Literal["kill_task", "exit"]
Work: TypeAlias = Callable[[A], Coroutine[Any, Any, T]]


def async_stream(  # noqa: PLR0913 - the options that Elixir has, and two
    items: Iterable[A] | AsyncIterable[A],
    fn: Work[A, T],
    *,
    max_concurrency: int | None = None,
    ordered: bool = True,
    timeout: Duration = 5.0,
    on_timeout: OnTimeout = "kill_task",
    zip_input_on_exit: bool = False,
    fail_fast: bool = False,
    progress: Progress | None = None,
    host: str | None = None,
) -> "AsyncStream[T]":
    """Run `fn` on every item, each in a process of its own, and stream the results.

    Nothing starts before the first result is asked for.
    Then up to `max_concurrency` items are pulled and started,
    and one more for each result that is asked for: a slow consumer slows the input down.

    Args:
        items: Any iterable, sync or async.
        fn: An `async def` function of one item.
        max_concurrency: How many run at once; the number of cores by default.
        ordered: Give results in the order of the items; else as they come.
        timeout: How long one item may take, from its start; None = no limit.
        on_timeout: What becomes of an item that takes longer: `"kill_task"`, it is killed and
            gives `Exited(TimeoutError)`; `"exit"`, the stream ends with a `TaskTimeout`.
        zip_input_on_exit: Give `Exited((item, reason))` for a failure instead of `Exited(reason)`.
        fail_fast: End the stream at the first failure, with a `TaskExit`;
            a consumer that is busy elsewhere then dies of it, as of any linked process.
        progress: Called in the consumer with the number of items that are done
            and the number that were started.
        host: Where the items run; the running loop by default.

    Raises:
        ValueError: An option is out of its range; nothing was started.
        TypeError: An option, or the input, has the wrong type.
        SpawnError: `fn` is no `async def` function.
    """
    rules = check_rules(
        max_concurrency=max_concurrency,
        ordered=ordered,
        timeout=timeout,
        on_timeout=on_timeout,
        zip_input_on_exit=zip_input_on_exit,
        fail_fast=fail_fast,
        progress=progress,
    )
    if host is not None:
        rules = rules._replace(launch=partial(_launch_on, host))
    return AsyncStream(items, fn, rules)


def _launch_on(host: str, fn: Function, value: object) -> Process:
    owner = current("async_stream")
    return give_birth(owner.runtime, owner, fn, (value,), Options(host))


class AsyncStream(Generic[T]):
    """The results of a stream: an async iterator and an async context manager, read once.

    It belongs to the process that reads it first.
    """

    __slots__ = ("__weakref__", "_fn", "_items", "_rules", "_used", "_window")

    def __init__(self, items: Iterable[A] | AsyncIterable[A], fn: Work[A, T], rules: Rules) -> None:
        """Check; `async_stream` is what users call."""
        self._window: Window | None = None
        self._used = False
        check_items(items)
        check_function(fn, "async_stream")
        self._items: Iterable[Any] | AsyncIterable[Any] | None = items
        self._fn = fn
        self._rules = rules

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Ok[T] | Exited[Any]]:
        window = self._window
        if window is None:
            window = self._open()
        return window.next()

    def _open(self) -> Window:
        items, self._items = self._items, None
        self._window = window = Window(self._fn, () if items is None else items, self._rules)
        return window

    async def aclose(self) -> None:
        """End the stream: what runs is killed and waited for."""
        self._items = None
        if self._window is not None:
            await self._window.close()

    async def __aenter__(self) -> Self:
        current("async_stream")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # `async for … break` drops the stream without a word.
        window = self._window
        if window is not None:
            with suppress(RuntimeError):  # no loop runs in this thread: too late
                asyncio.get_running_loop()
                window.abandoned()

    # Ready-made loops

    async def to_list(self) -> list[Ok[T] | Exited[Any]]:
        """Give all results."""
        async with self:
            return [result async for result in self]

    async def take(self, count: int) -> list[Ok[T] | Exited[Any]]:
        """Give the first results, and end the stream.

        Raises:
            ValueError: The count is negative.
        """
        if count < 0:
            raise ValueError(f"cannot take {count} results")
        taken: list[Ok[T] | Exited[Any]] = []
        async with self:
            while len(taken) < count:
                try:
                    taken.append(await anext(self))
                except StopAsyncIteration:
                    break
        return taken

    async def run(self) -> None:
        """Run everything for its effects alone."""
        async with self:
            async for _ in self:
                pass


def check_rules(
    *,
    max_concurrency: Any = None,
    on_timeout: Any = "kill_task",
    timeout: Duration = 5.0,
    progress: Any = None,
    **flags: Any,
) -> Rules:
    """Check the options of a stream.

    Raises:
        ValueError: An option is out of its range.
        TypeError: An option has the wrong type, or there is no such option.
    """
    if max_concurrency is None:
        max_concurrency = cores()
    if not isinstance(max_concurrency, int) or isinstance(max_concurrency, bool):
        raise TypeError(f"max_concurrency is a number of items, not {max_concurrency!r}")
    if max_concurrency < 1:
        raise ValueError(f"max_concurrency is at least 1, not {max_concurrency}")
    if on_timeout not in ("kill_task", "exit"):
        raise ValueError(f"on_timeout is kill_task or exit, not {on_timeout!r}")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress is a function of (done, started), not {progress!r}")
    _check_flags(flags)
    return Rules(
        max_concurrency,
        timeout=seconds(timeout),
        exit_on_timeout=on_timeout == "exit",
        progress=progress,
        **flags,
    )


def _check_flags(flags: dict[str, Any]) -> None:
    for name, value in flags.items():
        if name not in ("ordered", "zip_input_on_exit", "fail_fast"):
            raise TypeError(f"a stream has no option {name!r}")
        if not isinstance(value, bool):
            raise TypeError(f"{name} is True or False, not {value!r}")
