"""Threads for functions that block: `offload`, and the one thread pool behind it and sync steps.

A thread cannot be stopped. So when the caller is cancelled while it waits, the call is *left
behind*: its result is dropped, and its place in the pool is given to another thread at once, so
that calls which hang for ever cannot fill the pool. The threads are daemons: one that never
returns does not keep the program from ending either.

A pool belongs to the program and not to a runtime, since a thread that was left behind outlives
the runtime that started it, and must still be listed (`unfinished`).
Idle threads are kept for the next call for a while, since starting one costs more than most calls.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from perdure.process.process import current

P = ParamSpec("P")
T = TypeVar("T")

# How many offloaded calls run at once in one program; more of them wait.
_MAX_OFFLOADED = 64

_IDLE_TIME = 10.0  # seconds after which an idle thread ends


async def offload(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function that blocks in a thread, and wait for its result.

    It sees the context variables of the caller, and may use `process.send`.
    If the wait is interrupted, the thread continues alone, since a thread cannot be stopped;
    its result is dropped.
    """
    current("offload")
    variables = copy_context()
    return await _OFFLOADED.call(lambda: variables.run(fn, *args, **kwargs))


class ThreadPool:
    """A bounded number of threads, started when they are needed."""

    def __init__(self, name: str, max_threads: int) -> None:
        """Start with no thread.

        Args:
            name: The name of each thread, for tools.
            max_threads: How many calls run at once, without those left behind.
        """
        self._name = name
        self._max_threads = max_threads
        self._queue: SimpleQueue[_Call] = SimpleQueue()
        self._lock = threading.Lock()
        self._queued = 0  # calls that no thread has taken
        self._idle = 0  # threads that take the next call, or are about to
        self._threads = 0  # without those that were left behind
        self._owned: set[_Call] = set()  # calls with an owner that have not ended, left or not

    async def call(self, function: Callable[[], T], owner: object = None) -> T:
        """Call a function in a thread, and return its result.

        Args:
            function: What to call; context variables are the caller's business.
            owner: What the call is for, if `unfinished` is to find it.
        """
        call = _Call(function, owner)
        with self._lock:
            self._queued += 1
            if owner is not None:
                self._owned.add(call)
            self._start_thread_if_needed()
        self._queue.put(call)
        try:
            return await call.result
        except asyncio.CancelledError:
            self._leave_behind(call)
            raise

    @property
    def is_busy(self) -> bool:
        """Whether a call is queued or runs that was not left behind."""
        with self._lock:
            return self._queued > 0 or self._threads > self._idle

    def unfinished(self, is_wanted: Callable[[Any], bool]) -> list["Future[None]"]:
        """Return a future for each call with a matching owner, done when its thread is."""
        with self._lock:
            return [call.get_end() for call in self._owned if is_wanted(call.owner)]

    def _start_thread_if_needed(self) -> None:
        if self._queued > self._idle and self._threads < self._max_threads:
            self._threads += 1
            self._idle += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _leave_behind(self, call: "_Call") -> None:
        with self._lock:
            call.left_behind = True
            if call.runs:
                self._threads -= 1
                self._start_thread_if_needed()

    def _work(self) -> None:
        while (call := self._next_call()) is not None:
            if call.runs:
                call.run()
            if not self._finish_call(call):
                return
            del call  # otherwise its result would be kept until the next one

    def _next_call(self) -> "_Call | None":
        """Wait for a call and return it; None if the thread was idle too long and should end."""
        while True:
            try:
                call = self._queue.get(timeout=_IDLE_TIME)
            except Empty:
                with self._lock:
                    if self._queued >= self._idle:  # one was promised to this thread just now
                        continue
                    self._idle -= 1
                    self._threads -= 1
                    return None
            with self._lock:
                self._queued -= 1
                self._idle -= 1
                call.runs = not call.left_behind
            return call

    def _finish_call(self, call: "_Call") -> bool:
        """Note that a call has ended; return False if its thread was replaced and should end."""
        with self._lock:
            self._owned.discard(call)
            if call.end is not None:
                call.end.set_result(None)
            if call.runs and call.left_behind:
                return False
            call.runs = False
            self._idle += 1
            return True


class _Call:
    """A function to call, and the future of its result."""

    __slots__ = ("end", "function", "left_behind", "loop", "owner", "result", "runs")

    def __init__(self, function: Callable[[], Any], owner: object) -> None:
        self.function = function
        self.owner = owner
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[Any] = self.loop.create_future()
        self.end: Future[None] | None = None  # made when something waits for its thread
        self.runs = False
        self.left_behind = False  # nobody waits for it any more

    def get_end(self) -> "Future[None]":
        """Return a future that is done when the thread has finished the call."""
        if self.end is None:
            self.end = Future()
        return self.end

    def run(self) -> None:
        """Call the function, in the thread, and hand its result to the loop."""
        value: Any = None
        error: BaseException | None = None
        try:
            value = self.function()
        except StopIteration as stop:  # which no future can hold
            error = RuntimeError(f"the function raised {stop!r}")
        except BaseException as raised:  # noqa: BLE001 - raised where the result is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._set_result, value, error)

    def _set_result(self, value: Any, error: BaseException | None) -> None:
        if self.result.done():
            return  # the wait was interrupted
        if error is None:
            self.result.set_result(value)
        else:
            self.result.set_exception(error)


_OFFLOADED = ThreadPool("perdure-offload", _MAX_OFFLOADED)


def is_offloading() -> bool:
    """Whether an offloaded call is under way in this program."""
    return _OFFLOADED.is_busy
