"""A step whose function runs in a thread: its port to the loop, and the threads themselves.

A synchronous function blocks its thread; an async one gets a loop of its own there, by which it can
be cancelled. What either asks of the engine is done on the worker's loop, in the context of the
step's process.

A thread cannot be stopped. When the attempt is ended from outside, its thread is left behind, its
place is given to another, and its attempt is over: what it asks for then raises `Unwound`. The
threads are daemons, so one that never returns does not keep the program from ending. It is known
which step a thread works for, so that the next run of the job does not start that step beside it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast

from perdure.engine.steps.effects import BegunEffect, CallFault, EffectOptions, EffectRequest
from perdure.engine.steps.step_context import StepContext, StepPort, StepProgress, UserQuestion
from perdure.jobs.budget import Amount
from perdure.jobs.definition import is_async
from perdure.jobs.effect import Effect, PackedResult, Place
from perdure.process.waiter import set_process

T = TypeVar("T")

# How many functions run at once in one program; more of them wait.
_THREADS = 32


class ThreadUse(NamedTuple):
    """For which run of which step a function is called."""

    job: str
    step: str
    epoch: int


async def call_in_step_thread(
    function: Callable[..., Any],
    context: tuple[StepPort, StepProgress],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    use: ThreadUse | None = None,
) -> Any:
    """Call the function of a step in a thread, with a context that reaches back to this loop."""
    port, progress = context
    if not is_async(function):
        seen = StepContext(ThreadPort(port, blocking=True), progress)
        return await _call(partial(function, seen, *args, **kwargs), use)
    seen = StepContext(ThreadPort(port, blocking=False), progress)
    own = _OwnLoop()
    try:
        return await _call(partial(own.run, partial(function, seen, *args, **kwargs)), use)
    except asyncio.CancelledError:
        own.cancel()
        raise


class ThreadPort:
    """The port of a context in a thread: hands everything to the loop that the step belongs to."""

    def __init__(self, port: StepPort, *, blocking: bool) -> None:
        self._port = port
        self.blocking = blocking
        self._loop = asyncio.get_running_loop()
        self._variables = copy_context()  # by which what runs on the loop belongs to its process

    @property
    def cancelled(self) -> asyncio.Event:
        return self._port.cancelled

    def time(self) -> float:
        return self._port.time()

    def progress(self) -> None:
        self._loop.call_soon_threadsafe(self._port.progress, context=self._variables.copy())

    async def save_checkpoint(self, data: bytes) -> bool:
        return await self._on_loop(self._port.save_checkpoint(data))

    def effect_asked(self, request: EffectRequest) -> None:
        self._port.effect_asked(request)

    async def effect_begin(self, request: EffectRequest, options: EffectOptions) -> BegunEffect:
        query = options.get("query")
        if query is not None and not is_async(query):  # it may block, and must not block the loop
            in_thread = partial(call_in_thread, query)
            options = cast("EffectOptions", {**options, "query": in_thread})
        return await self._on_loop(self._port.effect_begin(request, options))

    async def effect_done(self, begun: BegunEffect, packed: PackedResult) -> Effect:
        return await self._on_loop(self._port.effect_done(begun, packed))

    async def effect_failed(
        self, begun: BegunEffect, fault: CallFault | None, options: EffectOptions
    ) -> None:
        await self._on_loop(self._port.effect_failed(begun, fault, options))

    async def record_effect(
        self, kind: str, key: str, target: str, details: Mapping[str, Any]
    ) -> None:
        await self._on_loop(self._port.record_effect(kind, key, target, details))

    async def was_effect_recorded(self, kind: str, key: str) -> bool:
        return await self._on_loop(self._port.was_effect_recorded(kind, key))

    async def ask_person(self, place: Place, question: UserQuestion) -> bool:
        return await self._on_loop(self._port.ask_person(place, question))

    async def reserve(self, place: Place, amount: Amount) -> str:
        return await self._on_loop(self._port.reserve(place, amount))

    async def settle(self, reservation: str, actual: Amount) -> None:
        await self._on_loop(self._port.settle(reservation, actual))

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        variables = self._variables.copy()
        future = variables.run(asyncio.run_coroutine_threadsafe, work, self._loop)
        return future.result() if self.blocking else await asyncio.wrap_future(future)


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


# The threads


async def call_in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function in a thread, with the context variables of the caller.

    What runs there is no part of the caller's process: its verbs belong to the loop.
    """
    return await _call(partial(function, *args, **kwargs), None)


async def _call(function: Callable[[], T], use: ThreadUse | None) -> T:
    variables = copy_context()
    variables.run(set_process, None)  # pyright: ignore[reportArgumentType]
    return await _STEP_THREADS.call(lambda: variables.run(function), use)


def older_calls(use: ThreadUse) -> list["Future[None]"]:
    """List the ends of calls in which earlier runs of a job still work on the same step."""
    return _STEP_THREADS.older(use)


class StepThreads:
    """A number of threads, started when they are needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: SimpleQueue[_Call] = SimpleQueue()
        self._lock = threading.Lock()
        self._queued = 0
        self._idle = 0  # threads that take the next call, or are about to
        self._places = 0  # threads that were not left behind
        self._of_steps: set[_Call] = set()  # calls for steps that have not ended, left or not

    async def call(self, function: Callable[[], T], use: ThreadUse | None = None) -> T:
        """Call a function in a thread; if the caller is cancelled, it is left to itself there."""
        call = _Call(function, use)
        with self._lock:
            self._queued += 1
            if use is not None:
                self._of_steps.add(call)
            self._start_thread_if_needed()
        self._queue.put(call)
        try:
            return await call.future
        except asyncio.CancelledError:
            self._leave(call)
            raise

    def _start_thread_if_needed(self) -> None:
        if self._queued > self._idle and self._places < self._most:
            self._places += 1
            self._idle += 1
            threading.Thread(target=self._serve, name="perdure-step", daemon=True).start()

    def _leave(self, call: "_Call") -> None:
        with self._lock:
            call.left = True
            if call.runs:
                self._places -= 1
                self._start_thread_if_needed()

    def older(self, use: ThreadUse) -> list["Future[None]"]:
        """List the ends of calls in which earlier runs of a job still work on the same step."""
        with self._lock:
            return [call.end() for call in self._of_steps if call.is_older_than(use)]

    def _ended(self, call: "_Call") -> None:
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
            del call  # else its result would be kept until there is another


class _Call:
    """A function to be called, and who waits for its result."""

    __slots__ = ("ended", "function", "future", "left", "loop", "runs", "use")

    def __init__(self, function: Callable[[], Any], use: ThreadUse | None) -> None:
        self.function = function
        self.use = use
        self.ended: Future[None] | None = None  # for who waits for its thread
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.runs = False
        self.left = False  # nobody waits for it any more

    def is_older_than(self, use: ThreadUse) -> bool:
        """Whether it is of another run of the same step."""
        mine = self.use
        return mine is not None and mine[:2] == use[:2] and mine != use

    def end(self) -> "Future[None]":
        """Return a future that is done when its thread has done with it."""
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
        except BaseException as raised:  # noqa: BLE001 - whoever waits gets it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who waited
            self.loop.call_soon_threadsafe(self._set_result, value, error)

    def _set_result(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


_STEP_THREADS = StepThreads(_THREADS)
