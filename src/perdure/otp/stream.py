"""Streams: run a function on every item of an input concurrently, each in a process.

    async with async_stream(urls, fetch, max_concurrency=16, timeout=5) as results:
        async for result in results:
            match result:
                case Ok(page): ...
                case Exited(reason): ...

    input --> [ running: at most max_concurrency ] --> results --> consumer

Nothing moves unless the consumer asks: it pulls the input, starts items and takes results.
An item that ends only notes its result and wakes the consumer.

In the order of this file, `async_stream` and `AsyncStream` are what users see, `Window` is the
state of one run, `InlineItems` runs items up to their first wait without a process for each, and
`PlainFeed` and `AsyncFeed` are the input.
"""

import asyncio
import types
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from msgspec import Struct

from perdure.base import telemetry
from perdure.base.duration import Duration, seconds, spell
from perdure.base.errors import NotOwner, ProcError, Shutdown, TaskExit, TaskTimeout, safe_text
from perdure.base.machine import cores
from perdure.base.pid import Pid
from perdure.base.result import Exited, Ok
from perdure.otp.task import callers_of, consume_link, result_of
from perdure.process.event import ExitResult
from perdure.process.exit_reason import linked_reason
from perdure.process.lifecycle import (
    EXIT_EVENT,
    PLAIN,
    SPAWN_EVENT,
    cancel,
    check_function,
    emit_spawn_event,
    is_plain,
    kill,
    make_coroutine,
    spawn_process,
)
from perdure.process.process import Collector, Function, Process, SpawnOptions, current
from perdure.process.relations import link, unlink
from perdure.process.waiter import NO_WAITER, PARK, Waiter, current_waiter, own_process, set_process

A = TypeVar("A")
T = TypeVar("T")

Progress = Callable[[int, int], object]
Launch = Callable[[Function, Any], Process]
OnTimeout: TypeAlias = Literal["kill_task", "exit"]
Work: TypeAlias = Callable[[A], Coroutine[Any, Any, T]]

_GRACE = 5.0  # for items whose consumer died to clean up


class StreamOptions(NamedTuple):
    """The options of a stream, checked."""

    max_concurrency: int
    ordered: bool = True
    timeout: float | None = 5.0
    exit_on_timeout: bool = False
    zip_input_on_exit: bool = False
    fail_fast: bool = False
    progress: Progress | None = None
    launch: Launch | None = None  # starts an item under a supervisor instead
    outlives: bool = False  # items continue when the consumer dies


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
    """Run `fn` on every item, each in a process of its own, and return a stream of the results.

    The stream can be read once. Nothing starts before the first result is requested.
    Then up to `max_concurrency` items are pulled and started,
    and one more for each result that is requested: a slow consumer slows the input down.

    Args:
        items: Any iterable, sync or async.
        fn: An `async def` function of one item.
        max_concurrency: How many run at once; the number of cores by default.
        ordered: Return results in the order of the items; otherwise as they complete.
        timeout: How long one item may take, from its start; None = no limit.
        on_timeout: What happens to an item that takes longer: `"kill_task"`, it is killed and
            its result is `Exited(TimeoutError)`; `"exit"`, the stream ends with a `TaskTimeout`.
        zip_input_on_exit: Return `Exited((item, reason))` for a failure, not `Exited(reason)`.
        fail_fast: End the stream at the first failure, with a `TaskExit`;
            a consumer that is busy elsewhere then dies by the link.
        progress: Called in the consumer with the number of items that are done
            and the number that were started.
        host: Where the items run; the running loop by default.

    Raises:
        ValueError: An option is out of its range; nothing was started.
        TypeError: An option, or the input, has the wrong type.
        SpawnError: `fn` is not an `async def` function.
    """
    options = check_options(
        max_concurrency=max_concurrency,
        ordered=ordered,
        timeout=timeout,
        on_timeout=on_timeout,
        zip_input_on_exit=zip_input_on_exit,
        fail_fast=fail_fast,
        progress=progress,
    )
    if host is not None:
        options = options._replace(launch=partial(_launch_on, host))
    return AsyncStream(items, fn, options)


def _launch_on(host: str, fn: Function, value: object) -> Process:
    owner = current("async_stream")
    return spawn_process(owner.runtime, owner, fn, (value,), SpawnOptions(host))


class AsyncStream(Generic[T]):
    """The results of a stream: an async iterator and an async context manager.

    It can be read once: after a `break` reading may continue, but a stream that has ended, or was
    closed, raises when it is read again. It belongs to the process that reads it first.
    """

    __slots__ = ("__weakref__", "_closed", "_fn", "_items", "_options", "_window")

    def __init__(
        self, items: Iterable[A] | AsyncIterable[A], fn: Work[A, T], options: StreamOptions
    ) -> None:
        """Check the arguments; `async_stream` is what users call."""
        self._window: Window | None = None
        self._closed = False
        check_items(items)
        check_function(fn, "async_stream")
        self._items: Iterable[Any] | AsyncIterable[Any] = items
        self._fn = fn
        self._options = options

    def __aiter__(self) -> Self:
        self._check_open()
        return self

    def __anext__(self) -> Awaitable[Ok[T] | Exited[Any]]:
        window = self._window
        if window is None:
            self._check_open()
            self._window = window = Window(self._fn, self._items, self._options)
            self._items = ()  # the window holds them: a generator is closed with it
        return window.next()

    def _check_open(self) -> None:
        if self._closed or (self._window is not None and self._window.closed):
            raise ProcError(
                "this stream has ended, and a stream can be read only once: make another one"
            )

    async def aclose(self) -> None:
        """Close the stream: kill the running items and wait until they have ended."""
        self._closed = True
        self._items = ()
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
        # `async for … break` drops the stream without closing it.
        window = self._window
        if window is not None:
            with suppress(RuntimeError):  # no loop runs in this thread: too late
                asyncio.get_running_loop()
                window.abandoned()

    # Convenience methods

    async def to_list(self) -> list[Ok[T] | Exited[Any]]:
        """Return all results."""
        async with self:
            return [result async for result in self]

    async def take(self, count: int) -> list[Ok[T] | Exited[Any]]:
        """Return the first `count` results, and close the stream.

        Raises:
            ValueError: The count is negative.
        """
        if count < 0:
            raise ValueError(f"cannot take {count} results")
        self._check_open()
        taken: list[Ok[T] | Exited[Any]] = []
        async with self:
            while len(taken) < count:
                try:
                    taken.append(await anext(self))
                except StopAsyncIteration:
                    break
        return taken

    async def run(self) -> None:
        """Run everything for its side effects only."""
        async with self:
            async for _ in self:
                pass


def check_options(
    *,
    max_concurrency: Any = None,
    on_timeout: Any = "kill_task",
    timeout: Duration = 5.0,
    progress: Any = None,
    **flags: Any,
) -> StreamOptions:
    """Return the options of a stream, checked.

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
    return StreamOptions(
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


def check_items(items: object) -> None:
    """Raise unless the input is iterable, without iterating.

    Raises:
        TypeError: It is neither iterable nor async iterable.
    """
    if not hasattr(items, "__aiter__") and not hasattr(items, "__iter__"):
        raise TypeError(f"a stream reads from an iterable, sync or async; not from {items!r}")


# The window: the items that run now, and the results that wait to be requested.


class Item(Struct, eq=False):
    """One element of the input, the process that works on it, and its result."""

    window: "Window"
    callers: tuple[Pid, ...]
    args: tuple[Any]
    code: Any = None  # until it has started
    context: Any = None
    process: Process | None = None  # while it runs
    result: Any = None
    late: bool = False

    def collect(self, process: Process, outcome: ExitResult) -> None:
        """Note the result; called by the death of the process."""
        result = result_of(outcome)
        window = self.window
        if type(result) is Exited:
            result = window.failed(self, process, result)
        self.result = result
        self.process = None
        window.ended(self)


class Window:
    """The state of one run of a stream."""

    __slots__ = (
        "_calm",
        "_feed",
        "_fn",
        "_inline",
        "_input_ended",
        "_options",
        "_ordinary",
        "_owner",
        "_plain",
        "_queue",
        "_reported",
        "_running",
        "_started",
        "_timer",
        "_trouble",
        "_waiter",
        "callers",
        "closed",
        "finished",
        "waiting",
    )

    def __init__(
        self, fn: Function, items: Iterable[Any] | AsyncIterable[Any], options: StreamOptions
    ) -> None:
        owner = current("a stream")
        self._owner = owner
        self._fn = fn
        self._plain: Function | None = None  # `fn`, once it needs no more checks
        self._feed: Feed[Any] = feed_of(items, self.wake)
        self._options = options
        self._calm = options.progress is None  # nothing to handle but results
        self._ordinary = options.launch is not None or options.fail_fast
        self._running: dict[Item, None] = {}  # in the order of their start
        # What is to be returned: if ordered, all started items; otherwise those that have ended.
        self._queue: deque[Item] = deque()
        self._input_ended = False
        self._started = 0
        self._reported = (0, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._trouble: BaseException | None = None  # ends the stream at the next opportunity
        self._waiter: Waiter | None = None
        self.closed = False
        self.callers = (owner.pid, *callers_of(owner))
        self.waiting: deque[Item] = deque()  # pulled, and not started
        self.finished = None if options.ordered else self._queue
        self._inline = InlineItems(owner, fn, self)
        owner.at_exit(self._orphaned)

    # What the consumer does

    @types.coroutine
    def next(self) -> Generator[Any, None, Any]:  # noqa: C901 - the core loop, on one screen
        """Return the next result.

        Raises:
            StopAsyncIteration: There are no more.
        """
        if own_process(None) is not self._owner or self._waiter is not None:
            raise self._not_yours()
        queue = self._queue
        try:
            while not self.closed:
                if not self._input_ended:
                    self._fill()
                if not self._calm:
                    self._attend()
                if queue and queue[0].result is not None:
                    return queue.popleft().result
                if self._input_ended and not self._running and not self.waiting:
                    break
                yield from self._pause()
        except asyncio.CancelledError:
            raise  # only this wait was interrupted: the stream can be read further
        except BaseException:
            yield from self.close().__await__()
            raise
        yield from self.close().__await__()
        raise StopAsyncIteration

    def _attend(self) -> None:
        if self._trouble is not None:
            raise self._trouble
        if self._options.progress is not None:
            self._tell_progress(self._options.progress)

    def _pause(self) -> Generator[Any, None, None]:
        waiter = self._waiter = current_waiter()
        try:
            yield waiter.pause()
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Wake the consumer, if it waits."""
        if self._waiter is not None:
            self._waiter.wake()

    def _not_yours(self) -> Exception:
        if own_process(None) is not self._owner:
            return NotOwner(
                f"this stream is read by {self._owner.pid}: no other process can read it"
            )
        return RuntimeError("this stream is already being read by another task")

    def _fill(self) -> None:
        """Pull and start as many items as there is room for."""
        take, waiting, queue = self._feed.take, self.waiting, self._queue
        idle, plain = not waiting, self._plain
        for _ in range(self._room()):
            try:
                value = take()
            except StopIteration:
                self._input_ended = True
                break
            if value is NOT_YET:
                break
            if self._ordinary:
                item = self._start_ordinary(value)
            else:
                code = self._first_code(value) if plain is None else plain(value)
                item = Item(self, self.callers, (value,), code, copy_context())
                waiting.append(item)
            self._started += 1
            if self.finished is not queue:
                queue.append(item)
        if idle and waiting:  # if something waited before, it is being run
            self._inline.rouse()

    def _first_code(self, value: object) -> Any:
        """Return the coroutine of an item; `fn` is checked only with the first one."""
        code = make_coroutine(self._fn, (value,))
        if is_plain(self._fn):
            self._plain = self._fn
        return code

    def _room(self) -> int:
        """Return how many items may be pulled.

        Results that are not yet requested count too, or they would pile up with a slow consumer.
        Only while the next result in order is missing may the items behind it run ahead.
        """
        queue, most = self._queue, self._options.max_concurrency
        if not self._options.ordered:
            return most - len(self._running) - len(self.waiting) - len(queue)
        if len(queue) >= most and queue[0].result is None:
            return most - len(self._running) - len(self.waiting)
        return most - len(queue)

    def _start_ordinary(self, value: object) -> Item:
        """Start an item that needs a process before it runs, for its supervisor or its link."""
        owner, options = self._owner, self._options
        if options.launch is not None:
            process = options.launch(self._fn, value)
        else:
            process = spawn_process(owner.runtime, owner, self._fn, (value,), PLAIN)
        process.collector = item = Item(self, self.callers, (value,))
        if options.fail_fast:
            link(owner, process)
        self.began(item, process)
        return item

    def began(self, item: Any, process: Process) -> None:
        """Note that an item has a process of its own."""
        item.process = process
        self._running[item] = None
        if self._timer is None and self._options.timeout is not None:
            self._arm(item, self._options.timeout)

    def _tell_progress(self, progress: Progress) -> None:
        done = self._started - len(self._running) - len(self.waiting)
        now = (done, self._started)
        if now != self._reported:
            self._reported = now
            progress(*now)

    # What items do when they end

    def ended(self, item: Item) -> None:
        """Note that an item has its result, and no process any more."""
        del self._running[item]
        if self.finished is not None:
            self.finished.append(item)
        self.wake()

    def failed(self, item: Item, process: Process, how: Exited[Any]) -> Exited[Any]:
        """Return the result of an item that failed."""
        reason = how.reason
        options = self._options
        if item.late:
            reason = TimeoutError(f"not done within {spell(options.timeout)}")
            if options.exit_on_timeout:
                self._calm = False
                self._trouble = TaskTimeout(reason, f"item {safe_text(item.args[0])} of a stream")
        elif self._takes_failure_of(process):
            self._calm = False
            self._trouble = TaskExit(reason, f"item {safe_text(item.args[0])} of a stream")
        return Exited((item.args[0], reason)) if options.zip_input_on_exit else Exited(reason)

    def _takes_failure_of(self, process: Process) -> bool:
        """Whether the consumer waits for this result, so that it does not die by the link."""
        waits = self._options.fail_fast and self._waiter is not None and not self.closed
        return waits and consume_link(self._owner.pid.target, process)

    # Time

    def _arm(self, oldest: Item, limit: float) -> None:
        """Set the timer for the item that was started first; the others expire after it."""
        process = oldest.process
        assert process is not None
        left = max(0.0, process.spawned_at + limit - process.runtime.now())
        self._timer = process.loop.call_later(left, self._look, limit)

    def _look(self, limit: float) -> None:
        """End the items that have run for too long."""
        self._timer = None
        now = self._owner.runtime.now()
        for item in tuple(self._running):
            process = item.process
            if item.late or process is None:
                continue
            if process.spawned_at + limit > now:
                self._arm(item, limit)
                return
            item.late = True
            self._cut(process)
            kill(process, f"not done within {spell(limit)}")

    # The end

    async def close(self) -> None:
        """Kill the running items, and wait until they have ended."""
        if self.closed:
            return
        self.closed = True
        self.kill_all()
        self._release()
        try:
            await self._gone()
        finally:
            self._queue.clear()
            await self._feed.close()

    def kill_all(self) -> None:
        """Kill the running items."""
        for item in tuple(self._running):
            if item.process is not None:
                self._cut(item.process)
                kill(item.process, "its stream was closed")

    def _cut(self, process: Process) -> None:
        """Unlink an item that we kill, so that the consumer does not die with it."""
        if self._options.fail_fast:
            unlink(self._owner, process.pid, flush=True)

    def _release(self) -> None:
        self._forget_waiting()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        relations = self._owner.relations
        if relations is not None and relations.cleanups and self._orphaned in relations.cleanups:
            relations.cleanups.remove(self._orphaned)

    def _forget_waiting(self) -> None:
        for item in self.waiting:
            item.code.close()
        self.waiting.clear()
        self._inline.drop()

    @types.coroutine
    def _gone(self) -> Generator[Any, None, None]:
        waiter = self._waiter = current_waiter()
        try:
            while self._running:
                yield waiter.pause()
        finally:
            self._waiter = None

    def _orphaned(self) -> None:
        """End when the consumer dies: running items may clean up for a while."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._forget_waiting()
        if self._options.outlives:
            return
        outcome = self._owner.outcome
        error = None if outcome is None else outcome.error
        pid = self._owner.pid
        reason = (
            Shutdown("its stream's consumer ended") if error is None else linked_reason(pid, error)
        )
        for item in tuple(self._running):
            if item.process is not None:
                cancel(item.process, pid, _GRACE, "its stream's consumer ended")
                item.process.force_exit(ExitResult(None, reason))

    def abandoned(self) -> None:
        """Kill the running items: the stream was garbage-collected, so no result can be requested.

        If that is because the consumer dies, `_orphaned` handles it instead.
        """
        alive = self._owner.pid.target is not None and self._owner.outcome is None
        if alive and not self.closed:
            self.closed = True
            self.kill_all()
            self._release()


# Items up to their first wait.
#
# Most of the cost of a process is its start and its end. An item that returns without ever having
# waited, and that left no trace (no link, monitor, name, task or signal), cannot tell whether its
# process is torn down after it. So one process runs such items, one after another, and gets a new
# identity for each: a new pid, a new context, an empty mailbox. The old pid is dead from then on,
# as any other.
#
# An item that waits, fails or leaves a trace keeps the process: it continues, and ends,
# as an ordinary process, and the next items get another one.

# Items to run between reads of the clock, as in a turn of the scheduler.
_ITEMS_PER_LOOK = 32


class InlineWork(Collector, Protocol):
    """An item that has not started."""

    args: tuple[Any, ...]
    code: Any
    context: Any
    result: Any


class InlineItems:
    """Takes the place of a coroutine: each of its steps runs items, one after another."""

    __slots__ = ("_function", "_idle", "_parent", "_process", "_window")

    def __init__(self, parent: Process, function: Function, window: "Window") -> None:
        self._parent = parent
        self._function = function
        self._window = window
        self._idle = Context()
        self._process: Process | None = None

    def rouse(self) -> None:
        """Schedule a run of the waiting items."""
        if self._process is not None:
            self._process.wake()
            return
        parent, this = self._parent, _as_coroutine(self)
        process = Process(parent.runtime, self._function, (), this, parent, parent.values)
        process.pid.target = None  # it has no identity yet
        process.context = self._idle
        self._process = process
        # At the front of the queue: pulled items start before the consumer continues.
        process.scheduler.ready.appendleft(process)
        if not process.scheduler.turn_scheduled:
            process.scheduler.schedule_turn()

    def drop(self) -> None:
        """Drop the process, to break the reference cycle with it."""
        self._process = None

    # The interface of a coroutine that the kernel uses

    def send(self, handed: object) -> object:  # noqa: ARG002 - nobody can hand it anything
        """Run items until none is left, or one needs the process for itself."""
        process = self._process
        if process is None:  # dropped while it was queued
            return PARK
        # With a seed every item is a step of its own, so that it can be put into any order.
        items = 1 if process.scheduler.shuffled else _ITEMS_PER_LOOK
        now = process.runtime.now
        deadline = now() + process.runtime.settings.turn_time
        while self._window.waiting:
            yielded = self._run(process, items)
            if yielded is not _ALL_DONE:
                return yielded
            if self._window.waiting and (items == 1 or now() >= deadline):
                process.loop.call_soon(process.wake)
                break
        process.context = self._idle
        process.set_code(_as_coroutine(self))
        process.collector = None
        self._window.wake()
        return PARK

    def _run(self, process: Process, items: int) -> object:  # noqa: C901 - on one screen
        """Run up to this many items inline; stop at one that waits, and return what it yields.

        This is a start and an end of a process for each item, without their calls.
        """
        runtime, waiting, finished = process.runtime, self._window.waiting, self._window.finished
        host, now, processes = runtime.host_name, runtime.now, runtime.processes
        emits_spawn = telemetry.has_handlers(SPAWN_EVENT)
        tell_death = telemetry.has_handlers(EXIT_EVENT)
        for _ in range(min(items, len(waiting))):
            item: InlineWork = waiting.popleft()
            process.pid = pid = Pid(host, process)
            process.args = item.args
            process.spawned_at = now()
            process.collector = item
            process.context = context = item.context
            context.run(set_process, process)
            processes[pid] = process
            process.coro = code = item.code
            if emits_spawn:
                emit_spawn_event(process)
            try:
                yielded = context.run(code.send, None)
            except StopIteration as stop:
                if process.relations is not None or tell_death or process.was_signalled():
                    self._give_up(process, item)
                    raise  # it ends like any other
                item.result = Ok(stop.value)
            except BaseException as error:
                self._give_up(process, item)
                if _end_by(process, error):
                    raise StopIteration from None
                raise
            else:
                self._give_up(process, item)
                return yielded
            process.recycle()
            if finished is not None:
                finished.append(item)
        return _ALL_DONE

    def _give_up(self, process: Process, item: InlineWork) -> None:
        """Hand the process over to an item; the others get another one."""
        self._process = None
        process.set_code(item.code)
        item.code = item.context = None
        self._window.began(item, process)
        if self._window.waiting:
            self.rouse()
        self._window.wake()

    def throw(self, error: BaseException) -> object:
        """Raise the error; cannot happen, since the process has no identity between two items."""
        raise error

    def close(self) -> None:
        """Do nothing: there is nothing to clean up."""


_ALL_DONE = object()


def _as_coroutine(items: Any) -> Coroutine[Any, Any, Any]:
    """Return the items, typed as the coroutine that the kernel expects."""
    return items


def _end_by(process: Process, error: BaseException) -> bool:
    """Set the outcome of a failed item, without our own frame; return whether it was set.

    Only for errors: any other exception is left to the kernel.
    """
    if isinstance(error, Exception) and process.outcome is None:
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace is not None else None
        process.outcome = ExitResult(None, error)
        return True
    return False


# The input: any iterable, sync or async, one value at a time.

NOT_YET: Any = object()
"""What a feed returns when its next value is not available yet."""


class PlainFeed(Generic[A]):
    """Takes values from an iterable."""

    __slots__ = ("take",)

    def __init__(self, items: Iterable[A]) -> None:
        self.take: Callable[[], A] = iter(items).__next__  # without a call around it

    async def close(self) -> None:
        """Drop the iterator: a generator without other references runs its cleanup now."""
        nothing: Iterator[A] = iter(())
        self.take = nothing.__next__


class AsyncFeed(Generic[A]):
    """Takes values from an async iterable.

    One task of the consumer's process runs the input from its first value to its cleanup:
    results that are ready are returned while the next input is still awaited,
    and cancel scopes in the input are entered and left by the same task.
    """

    __slots__ = ("_asked", "_ended", "_error", "_items", "_task", "_value", "_wake", "_wanted")

    def __init__(self, items: AsyncIterable[A], wake: Callable[[], None]) -> None:
        self._items: AsyncIterator[A] = aiter(items)
        self._value: Any = NOT_YET
        self._error: BaseException | None = None
        self._ended = False
        self._wanted = False
        self._wake = wake  # notifies the consumer of a value
        self._asked = NO_WAITER  # the task's waiter, woken when a value is wanted
        self._task: asyncio.Task[None] | None = None

    def take(self) -> A:
        """Return the available value, or request one."""
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
        elif self._asked is not NO_WAITER:
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
            await self._until_wanted()

    @types.coroutine
    def _until_wanted(self) -> Generator[Any, None, None]:
        self._asked = waiter = current_waiter()
        try:
            while not self._wanted:
                yield waiter.pause()
        finally:
            self._asked = NO_WAITER

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
"""The input of a stream: `take` returns the next value or `NOT_YET`, or raises StopIteration."""


def feed_of(items: Iterable[A] | AsyncIterable[A], wake: Callable[[], None]) -> Feed[A]:
    """Return the feed of an input; it calls `wake` when a missing value has arrived."""
    if isinstance(items, AsyncIterable):
        return AsyncFeed(items, wake)
    return PlainFeed(items)
