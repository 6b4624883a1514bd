"""A step whose function runs in a thread: its port to the loop.

A synchronous function blocks its thread; an async one gets a loop of its own there, by which it can
be cancelled. What either asks of the engine is done on the worker's loop, in the context of the
step's process.

A thread cannot be stopped. When the attempt is ended from outside, its thread is left behind,
another thread may take its place, and its attempt is over: its requests raise `Unwound`. The
threads are daemons, so one that never returns does not keep the program from ending. Each thread is
recorded with its step, so that the next run of the job does not start that step beside it.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from perdure.engine.people.ask import Approved, NotApproved
from perdure.engine.steps.effects import BegunEffect, CallFault, EffectOptions, EffectRequest
from perdure.engine.steps.step_context import (
    ProgressReport,
    StepPort,
    StepProgress,
    UserQuestion,
    context_for,
)
from perdure.jobs.budget import Amount, ModelUsage
from perdure.jobs.definition import Step, is_async
from perdure.jobs.effect import Effect, PackedResult, Place
from perdure.process.threads import ThreadPool
from perdure.process.waiter import set_process

T = TypeVar("T")

# Functions of steps have their own threads, since they may wait for offloaded calls. This is how
# many run at once in one program; further ones wait.
_STEP_THREADS = ThreadPool("perdure-step", 32)


class ThreadUse(NamedTuple):
    """The run and the step for which a function is called."""

    job: str
    step: str
    epoch: int


async def call_in_step_thread(
    step: Step[..., Any],
    context: tuple[StepPort, StepProgress],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    use: ThreadUse | None = None,
) -> Any:
    """Call the function of a step in a thread; its context hands requests to this loop."""
    port, progress = context
    seen = context_for(step, ThreadPort(port, blocking=not step.is_async), progress)
    function = partial(step.invoke, seen, args, kwargs)
    if not step.is_async:
        return await _call(function, use)
    own = _OwnLoop()
    try:
        return await _call(partial(own.run, function), use)
    except asyncio.CancelledError:
        own.cancel()
        raise


class ThreadPort:
    """The port of a context in a thread: hands everything to the loop that the step belongs to."""

    def __init__(self, port: StepPort, *, blocking: bool) -> None:
        self._port = port
        self.blocking = blocking
        self._loop = asyncio.get_running_loop()
        self._variables = copy_context()  # so that what runs on the loop belongs to its process
        self._emitted: deque[tuple[str, bytes]] = deque()
        self._is_woken = False  # the loop will look at what was emitted

    @property
    def cancelled(self) -> asyncio.Event:
        return self._port.cancelled

    def time(self) -> float:
        return self._port.time()

    def heartbeat(self) -> None:
        self._loop.call_soon_threadsafe(self._port.heartbeat, context=self._variables.copy())

    def report(self, report: ProgressReport) -> None:
        variables = self._variables.copy()
        self._loop.call_soon_threadsafe(self._port.report, report, context=variables)

    def emit(self, topic: str, data: bytes) -> None:
        self._emitted.append((topic, data))
        # Waking the loop for each piece would be expensive. The flag is cleared before the loop
        # looks, so that what comes meanwhile wakes it again.
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._emit_all, context=self._variables.copy())

    def _emit_all(self) -> None:
        self._is_woken = False
        while self._emitted:
            self._port.emit(*self._emitted.popleft())

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

    async def ask_person(self, place: Place, question: UserQuestion) -> Approved | NotApproved:
        return await self._on_loop(self._port.ask_person(place, question))

    async def reserve(self, place: Place, amount: Amount) -> str:
        return await self._on_loop(self._port.reserve(place, amount))

    async def settle(
        self, reservation: str, actual: Amount, usage: ModelUsage | None = None
    ) -> None:
        await self._on_loop(self._port.settle(reservation, actual, usage))

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        variables = self._variables.copy()
        future = variables.run(asyncio.run_coroutine_threadsafe, work, self._loop)
        return future.result() if self.blocking else await asyncio.wrap_future(future)


class _OwnLoop:
    """An async function in a thread, on its own loop, through which it can be cancelled."""

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

    What runs there is not part of the caller's process: process verbs work only on the loop.
    """
    return await _call(partial(function, *args, **kwargs), None)


async def _call(function: Callable[[], T], use: ThreadUse | None) -> T:
    variables = copy_context()
    variables.run(set_process, None)
    return await _STEP_THREADS.call(partial(variables.run, function), use)


def older_calls(use: ThreadUse) -> list["Future[None]"]:
    """Return futures of the calls in which earlier runs of a job still work on the same step."""
    return _STEP_THREADS.unfinished(lambda other: other[:2] == use[:2] and other != use)


def is_any_at_work() -> bool:
    """Whether a thread of this program works on a step that somebody waits for."""
    return _STEP_THREADS.is_busy
