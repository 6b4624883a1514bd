"""Request and reply: the one exchange that must be safe, bounded in time, and fast.

The answer comes through a slot of its own, not through the caller's mailbox,
so a late answer is dropped and cannot be taken for another one.
The server's death fails the call at once.
"""

import asyncio
import types
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from perdure.base.duration import Duration, seconds, spell
from perdure.base.errors import CallExit, CallTimeout, NoProcess, ProcError
from perdure.base.pid import Pid
from perdure.process.relations import reach
from perdure.process.waiter import Waiter, current, current_waiter

if TYPE_CHECKING:
    from perdure.process.process import Process

R = TypeVar("R")


class Request(Struct, Generic[R], eq=False):
    """A question to a server, and the place for its answer.

    The server gets it from `process.requests()`, reads `body` and calls `reply`,
    at once or later, itself or by another process.
    """

    _server: Pid
    body: Any
    sender: Pid | None
    _waiter: Waiter
    # Where the server keeps it until it is answered; None while the caller runs and has not
    # begun to wait.
    _open: "dict[Request[Any], None] | None"
    done: bool = False
    timer: asyncio.TimerHandle | None = None
    _value: Any = None
    _error: CallExit | None = None

    def __repr__(self) -> str:
        return f"<request {self.body!r} from {self.sender}>"

    def reply(self, value: R) -> bool:
        """Answer; only the first answer counts, and none after the caller has given up."""
        if self.done:
            return False
        self._value = value
        self.done = True
        if self._open is not None:
            self._close(self._open)
        return True

    def fail(self, reason: BaseException | None) -> None:
        """End the call without an answer: the server died."""
        if not self.done:
            self._error = CallExit(reason, f"the call to {self._server}")
            self._finish()

    def expire(self, limit: float) -> None:
        """End the call without an answer: the time is up."""
        if not self.done:
            what = f"the call to {self._server}"
            self._error = CallTimeout(TimeoutError(f"no reply within {spell(limit)}"), what)
            self._finish()

    def _finish(self) -> None:
        self.done = True
        if self._open is not None:
            self._close(self._open)

    def _close(self, calls: "dict[Request[Any], None]") -> None:
        calls.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()
        self._waiter.wake()

    def keep(self, calls: "dict[Request[Any], None]") -> None:
        """Stand among the open calls of the server, whose death ends it."""
        self._open = calls
        calls[self] = None

    def give_up(self) -> None:
        """Take the question back: the caller itself was interrupted."""
        if not self.done:
            self._finish()

    def reply_given(self) -> tuple[R] | None:
        """Give the reply, alone in a tuple; None if the request ended without one."""
        return (self._value,) if self.done and self._error is None else None

    def answer_at_once(self) -> R:
        """Give the answer of a request that was never kept: it is gone with its caller."""
        if self._error is not None:
            raise self._error
        return self._value

    def answer(self) -> R:
        """Give the answer to the caller, or raise."""
        if self._error is not None:
            raise self._error
        value, self._value = self._value, None
        self.body = None  # it is answered: nothing of it is needed any more
        return value


@types.coroutine
def ask(
    server: "Process | None", pid: Pid, body: object, timeout: Duration = 5.0
) -> Generator[Any, None, Any]:
    """Send a request to a server and wait for the answer."""
    limit = seconds(timeout)
    caller = current("call")
    if server is None:
        raise CallExit(NoProcess(pid), f"the call to {pid}")
    if server is caller:
        raise CallExit(ProcError("a process cannot call itself"), f"the call to {pid}")
    if server.loop is not caller.loop and (server := reach(pid, caller.runtime)) is None:
        raise CallExit(NoProcess(pid), f"the call to {pid}")
    waiter = current_waiter()
    calls = server.tie().open_calls()
    request: Request[Any] = Request(server.pid, body, caller.pid, waiter, calls)
    calls[request] = None
    server.ask(request)
    if limit is not None:
        caller.runtime.deadlines.add(limit, request)
    try:
        while not request.done:
            yield waiter.pause()
    finally:
        request.give_up()
    return request.answer()


# So many lengths of time-outs have a queue; with more of them, a timer for each call is cheaper.
_QUEUES = 16

# A queue of time-outs is cleaned of answered calls when it has grown to this, and then doubled.
_FIRST_CLEANING = 256


class Deadlines:
    """The time-outs of calls, cheap because nearly all of them never come.

    Calls with the same time-out expire in the order in which they were made:
    a queue for each length, and one timer of the loop for each queue.
    """

    __slots__ = ("_cleaning", "_loop", "_queues", "_timers")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._cleaning = _FIRST_CLEANING
        self._queues: dict[float, deque[tuple[float, Request[Any]]]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def add(self, limit: float, request: Request[Any]) -> None:
        """Let the request expire after `limit` seconds."""
        queue = self._queues.get(limit)
        when = self._loop.time() + limit
        if queue is None:
            if len(self._queues) >= _QUEUES:
                request.timer = self._loop.call_at(when, request.expire, limit)
                return
            queue = self._queues[limit] = deque()
            self._timers[limit] = self._loop.call_at(when, self._look, limit)
        else:
            while queue and queue[0][1].done:
                queue.popleft()
            if len(queue) > self._cleaning:
                queue = self._clean(limit)
        queue.append((when, request))

    def _clean(self, limit: float) -> deque[tuple[float, Request[Any]]]:
        """Drop answered calls that wait behind one that is not."""
        queue = deque(entry for entry in self._queues[limit] if not entry[1].done)
        self._queues[limit] = queue
        self._cleaning = max(_FIRST_CLEANING, 2 * len(queue))
        return queue

    def _look(self, limit: float) -> None:
        queue, now = self._queues[limit], self._loop.time()
        while queue and (queue[0][1].done or queue[0][0] <= now):
            queue.popleft()[1].expire(limit)
        if queue:
            self._timers[limit] = self._loop.call_at(queue[0][0], self._look, limit)
        else:
            del self._queues[limit], self._timers[limit]

    def close(self) -> None:
        """Disarm all timers: the runtime ends."""
        for handle in self._timers.values():
            handle.cancel()
        self._queues.clear()
        self._timers.clear()
