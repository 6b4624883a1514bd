"""Threads for functions of users that block; nothing else runs in them.

They are daemons: one that never returns is left behind and does not keep the program from ending.
Its place is free then for another one. Whose function still runs in such a thread is known.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from perdure.process.current import set_process

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
