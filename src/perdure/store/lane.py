"""A thread with a connection of its own, which does whole transactions and nothing else.

Whoever waits for one may be cancelled at any moment: the transaction happens or it does not,
but it is never cut in two, and the loop never waits for a disk.
What has gathered while one transaction was under way goes into the next one together,
and each transaction wakes a waiting loop once.

One exception: a single small write of which it is known that nothing else is under way may be done
at once, by the loop itself. To wake a thread and to be woken by it costs as much again.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from perdure.base import telemetry
from perdure.base.clock import SystemClock
from perdure.base.errors import StoreError
from perdure.jobs.model import Write
from perdure.store.bell import Bell
from perdure.store.request import Call, Done, Request, resolve, settle

_log = logging.getLogger("perdure.store")

BATCH: Final = ("perdure", "store", "batch")
CLOCK = SystemClock()

# How long whoever closes a store waits for what is under way. A server may let a commit wait for
# ever, and to cancel it would be wrong: then the thread is left alone with it.
_STOP_PATIENCE = 10.0
# As many requests as one transaction may hold, so that no waiter's commit is put off for long.
_MOST = 1000
# While one request follows another, nobody looks for what other connections did.
_SHORT = 0.002
# While the loop writes by itself, it looks around so often, and the thread rests.
_REST = 0.02
# Who awaits one write after the other lets the loop turn after so many.
_IN_A_ROW = 16
# A disk that took so long once holds up the thread for a while, and not the loop.
_STALL, _STALL_OVER = 0.02, 1.0


class Connection(Protocol):
    """A database connection, used by one thread at a time."""

    def connect(self) -> int | None:
        """Connect; gives a descriptor that has something to read when `idle` should be called."""
        ...

    def disconnect(self) -> None: ...

    def execute(self, requests: Sequence[Request]) -> None:
        """Do them all, and give each its result or its error."""
        ...

    def afterwards(self) -> None:
        """Do what nobody waits for. Never raises."""
        ...

    def idle(self) -> float | None:
        """Called while nothing is to do; gives the seconds after which to be called again."""
        ...


class Lane:
    """The thread, and the queue in front of it."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        at_once: Callable[[Request], bool] = lambda _: False,
        *,
        heeded: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make it; nothing is opened yet.

        Args:
            name: Of the thread.
            connection: Used by whoever holds the turn: the thread, or the loop.
            at_once: Does a request without any wait for others, if it can.
            heeded: Tells whether anybody here wants to know what others do to the database.
        """
        self._connection = connection
        self._try_at_once = at_once
        self._heeded = heeded
        self._turn = threading.Lock()
        self._at_once = 0  # how many requests the loop has done by itself …
        self._at_once_seen = 0  # … and the thread has seen
        self._in_a_row = 0  # … for those who await it, which the loop does not notice
        self._look_at = 0.0
        self._trust_at = 0.0  # the disk has stalled: not before then
        # What loops have asked for in this turn of theirs; the thread is woken when it is over.
        self._turns: dict[asyncio.AbstractEventLoop, list[Request]] = {}
        self._queue: SimpleQueue[list[Request]] = SimpleQueue()  # an empty one: look up
        self._bell = Bell()
        self._asleep = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._pid = os.getpid()
        self._is_open = False
        self._closing: Request | None = None
        self.busy_since: float | None = None  # by the monotonic clock: something is under way

    async def start(self) -> None:
        """Connect.

        Raises:
            StoreError: One of its kinds: it cannot.
        """
        self._is_open = True
        opening = self._put(Request())
        self._thread.start()
        try:
            await opening
        except BaseException:
            self._end()
            self._leave_thread(is_over=opening.done() and not opening.cancelled())
            raise

    async def stop(self) -> None:
        """Finish what was asked for, and disconnect; if that takes too long, leave it to itself."""
        if not self._is_open:
            return
        self._closing = closing = Request()
        for loop in tuple(self._turns):
            self._hand_over(loop)
        self._end()
        assert closing.future is not None
        is_over = False
        try:
            async with asyncio.timeout(_STOP_PATIENCE):
                await closing.future
            is_over = True
        except TimeoutError:
            _log.warning(
                "%s is left alone with a transaction that still waits for the database: "
                "it happens or it does not, and nobody was told that it did",
                self._thread.name,
            )
        finally:
            self._leave_thread(is_over=is_over)

    def _end(self) -> None:
        self._is_open = False
        self._queue.put([])
        self._bell.ring()

    def _leave_thread(self, *, is_over: bool) -> None:
        """Let go of the thread: the loop never waits for one that may be in a transaction."""
        if is_over:
            self._thread.join()
            self._bell.close()  # by the one who rings it, never before

    def write(
        self,
        write: Write,
        *,
        announces: bool = False,
        alone: bool = False,
        done: Done | None = None,
    ) -> asyncio.Future[None]:
        """Put a write in the queue; if nothing else is under way, it may be durable already.

        `done` is called as by `write_soon`, also if whoever awaits the write is cancelled.
        """
        request = Request(write, announces=announces, done=done)
        if not alone or not self._does_at_once(request):
            return self._put(request)
        assert request.future is not None
        self._in_a_row += 1
        if self._in_a_row % _IN_A_ROW:
            resolve([request])
        else:
            request.loop.call_soon(resolve, [request])
        return request.future

    def write_soon(self, write: Write, done: Done, *, alone: bool = False) -> bool:
        """Put a write in the queue; `done` is called on the loop when it is durable, or failed.

        Returns:
            True if it is durable already, as nothing else was under way: then `done` is not called.
        """
        request = Request(write, done=done, awaited=False)
        if alone and self._does_at_once(request):
            return True
        self._enqueue(request)
        return False

    def _does_at_once(self, request: Request) -> bool:
        since = request.loop.time()
        if since < self._trust_at or self._turns or not self._queue.empty():
            return False
        if not self._is_open or self._pid != os.getpid():
            return False
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if not self._try_at_once(request):
                return False
            self._at_once += 1
            now = request.loop.time()
            if telemetry.has_handlers(BATCH):
                self.tell([request], now - since)
            if now - since > _STALL:
                self._trust_at = now + _STALL_OVER
            if now >= self._look_at:
                self._look_at = now + _REST
                self._connection.idle()
            return True
        finally:
            self._turn.release()

    def look_up(self) -> None:
        """Let the thread see that somebody heeds what others do."""
        if self._is_open:
            self._bell.ring()

    def do(
        self, call: Call, *, announces: bool = False, apart: bool = False
    ) -> asyncio.Future[Any]:
        """Put a verb in the queue; `apart`: in a transaction of its own, after all before it."""
        return self._put(Request(call=call, announces=announces, apart=apart))

    def _put(self, request: Request) -> asyncio.Future[Any]:
        self._enqueue(request)
        assert request.future is not None
        return request.future

    def _enqueue(self, request: Request) -> None:
        if not self._is_open:
            raise StoreError("the store is not open")
        if self._pid != os.getpid():
            raise StoreError("the store was opened before a fork: open it again in the new process")
        turn = self._turns.get(request.loop)
        if turn is None:
            self._turns[request.loop] = [request]
            request.loop.call_soon(self._hand_over, request.loop)
        else:
            turn.append(request)

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the thread what a turn has brought: woken for each, it would fight for the GIL."""
        requests = self._turns.pop(loop, None)
        if requests:
            self._queue.put(requests)
            if self._asleep:
                self._bell.ring()

    def _serve(self) -> None:
        (opening,) = self._queue.get()
        self.busy_since = CLOCK.monotonic()
        try:
            touched = self._connection.connect()
        except BaseException as error:  # noqa: BLE001  the one who opens gets it
            opening.error = error
            self._is_open = False
            settle([opening])
            return
        self.busy_since = None
        if touched is not None:
            self._bell.watch(touched)
        settle([opening])
        while requests := self._gather():
            try:
                with self._turn:
                    self.busy_since = CLOCK.monotonic()
                    self._execute(requests)
            except BaseException as error:  # noqa: BLE001  those who wait get it; the lane goes on
                for request in requests:
                    request.error = error
            self.busy_since = None
            settle(requests)
            with self._turn:
                self._connection.afterwards()
            del requests  # else the last ones would be kept until there are others
        with self._turn:
            self.busy_since = CLOCK.monotonic()
            self._connection.disconnect()
            self.busy_since = None
        # Told from here, since to say good-bye may need the very loop that waits for it.
        if self._closing is not None:
            settle([self._closing])

    def _execute(self, requests: Sequence[Request]) -> None:
        if not telemetry.has_handlers(BATCH):
            self._connection.execute(requests)
            return
        since = CLOCK.monotonic()
        self._connection.execute(requests)
        self.tell(requests, CLOCK.monotonic() - since)

    def tell(self, requests: Sequence[Request], duration: float) -> None:
        """Tell those who listen what was done in one go."""
        failed = sum(request.error is not None for request in requests)
        measured = {"requests": len(requests), "failed": failed, "duration": duration}
        telemetry.execute(BATCH, measured, {"lane": self._thread.name})

    def _gather(self) -> list[Request]:
        """Wait for requests; none at all is the end."""
        queue, requests = self._queue, list[Request]()
        while not requests and (self._is_open or not queue.empty()):
            requests = self._next()
            while len(requests) < _MOST and not queue.empty():
                requests += queue.get_nowait()
        return requests

    def _next(self) -> list[Request]:
        try:
            return self._queue.get(timeout=_SHORT)
        except Empty:
            self._sleep()
            return self._queue.get()

    def _sleep(self) -> None:
        """Wait for long, and meanwhile for what others do to the database."""
        # Said before the queue is looked at, so that nobody puts something in between unheard.
        self._asleep = True
        while self._queue.empty():
            if self._at_once_seen != self._at_once:
                # What was touched, the loop has touched by itself; and the turn is left to it:
                # whoever looks for others meanwhile would only be in its way.
                self._at_once_seen = self._at_once
                self._bell.rest(_REST)
            elif not self._heeded():  # else each commit of a busy worker would cost us a look
                self._bell.rest(None)
            else:
                with self._turn:
                    pause = self._connection.idle()
                self._bell.wait(pause)
        self._asleep = False
