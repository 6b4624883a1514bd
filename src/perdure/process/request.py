"""Request and reply: the one exchange that must be safe, bounded in time, and fast.

The answer comes through a slot of its own, not through the caller's mailbox, so a late answer is
dropped and cannot be taken for another one. The server's death fails the call at once: the server
keeps its open requests, and its end fails them. `api.ask` sends a request and waits for it.
"""

import asyncio
from collections import deque
from typing import Any, Generic, TypeVar

from msgspec import Struct

from perdure.base.duration import spell
from perdure.base.errors import CallExit, CallTimeout
from perdure.base.pid import Pid
from perdure.process.waiter import Waiter

R = TypeVar("R")


class Request(Struct, Generic[R], eq=False):
    """A request to a server, and the slot for its answer.

    The server gets it from `process.requests()`, reads `body` and calls `reply`,
    at once or later, itself or in another process.
    """

    _server: Pid
    body: Any
    sender: Pid | None
    _waiter: Waiter
    # The open requests of the server, which this is one of; None while the server answers inside
    # the step of its caller, who has not begun to wait.
    _open_requests: "dict[Request[Any], None] | None"
    done: bool = False
    timer: asyncio.TimerHandle | None = None
    _value: Any = None
    _error: CallExit | None = None

    def __repr__(self) -> str:
        return f"<request {self.body!r} from {self.sender}>"

    def reply(self, value: R) -> bool:
        """Answer; return False if it was answered already, or its caller no longer waits."""
        if self.done:
            return False
        self._value = value
        self.done = True
        if self._open_requests is not None:
            self._close(self._open_requests)
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
        if self._open_requests is not None:
            self._close(self._open_requests)

    def _close(self, open_requests: "dict[Request[Any], None]") -> None:
        open_requests.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()
        self._waiter.wake()

    def track(self, open_requests: "dict[Request[Any], None]") -> None:
        """Join the open requests of the server, so that its death fails this one."""
        self._open_requests = open_requests
        open_requests[self] = None

    def withdraw(self) -> None:
        """End the call without an answer: the caller was interrupted."""
        if not self.done:
            self._finish()

    def inline_answer(self) -> R:
        """Return the answer of a request that was never tracked, or raise."""
        if self._error is not None:
            raise self._error
        return self._value

    def answer(self) -> R:
        """Return the answer to the caller, or raise; drops both body and answer."""
        if self._error is not None:
            raise self._error
        value, self._value = self._value, None
        self.body = None
        return value


# The number of different timeouts that have a queue; any other gets a timer for each call.
_MAX_QUEUES = 16

# A queue is cleaned of answered calls when it has grown to this length, and then to twice what
# was left.
_FIRST_CLEANING = 256


class Deadlines:
    """The timeouts of calls, cheap because nearly all of them never expire.

    Calls with the same timeout expire in the order in which they were made:
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
            if len(self._queues) >= _MAX_QUEUES:
                request.timer = self._loop.call_at(when, request.expire, limit)
                return
            queue = self._queues[limit] = deque()
            self._timers[limit] = self._loop.call_at(when, self._expire, limit)
        else:
            while queue and queue[0][1].done:
                queue.popleft()
            if len(queue) > self._cleaning:
                queue = self._clean(limit)
        queue.append((when, request))

    def _clean(self, limit: float) -> deque[tuple[float, Request[Any]]]:
        """Drop the answered calls from the queue of a timeout, and return the queue."""
        queue = deque(entry for entry in self._queues[limit] if not entry[1].done)
        self._queues[limit] = queue
        self._cleaning = max(_FIRST_CLEANING, 2 * len(queue))
        return queue

    def _expire(self, limit: float) -> None:
        queue, now = self._queues[limit], self._loop.time()
        while queue and (queue[0][1].done or queue[0][0] <= now):
            queue.popleft()[1].expire(limit)
        if queue:
            self._timers[limit] = self._loop.call_at(queue[0][0], self._expire, limit)
        else:
            del self._queues[limit], self._timers[limit]

    def close(self) -> None:
        """Cancel all timers: the runtime ends."""
        for handle in self._timers.values():
            handle.cancel()
        self._queues.clear()
        self._timers.clear()
