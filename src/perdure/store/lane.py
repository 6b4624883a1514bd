"""A thread with a connection of its own, which does whole transactions and nothing else.

Whoever waits for one may be cancelled at any moment: the transaction happens or it does not,
but it is never cut in two, and the loop never waits for a disk.
What has gathered while one transaction was under way goes into the next one together,
and each transaction wakes a waiting loop once.
"""

import asyncio
import os
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from perdure.base.errors import StoreError
from perdure.jobs.model import Write
from perdure.store.bell import Bell
from perdure.store.request import Call, Done, Request, settle

# As many requests as one transaction may hold, so that no waiter's commit is put off for long.
_MOST = 1000
# While one request follows another, nobody looks for what other connections did.
_SHORT = 0.002


class Connection(Protocol):
    """A database connection, used by one thread alone."""

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

    def __init__(self, name: str, connection: Connection) -> None:
        self._connection = connection
        self._queue: SimpleQueue[Request | None] = SimpleQueue()  # None: look up
        self._bell = Bell()
        self._asleep = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._pid = os.getpid()
        self._is_open = False
        self._closing: Request | None = None

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
            raise

    async def stop(self) -> None:
        """Finish what was asked for, and disconnect."""
        if self._is_open:
            self._is_open = False
            self._closing = Request()
            self._queue.put(None)
            self._bell.ring()
            try:
                await self._closing.future
            finally:
                self._end()

    def _end(self) -> None:
        self._is_open = False
        self._queue.put(None)
        self._bell.ring()
        self._thread.join()
        self._bell.close()  # by the one who rings it, never before

    def write(self, write: Write, *, announces: bool = False) -> asyncio.Future[None]:
        """Put a write in the queue."""
        return self._put(Request(write, announces=announces))

    def write_soon(self, write: Write, done: Done) -> None:
        """Put a write in the queue; `done` is called on the loop when it is durable, or failed."""
        self._enqueue(Request(write, done=done))

    def do(self, call: Call, *, announces: bool = False) -> asyncio.Future[Any]:
        """Put a verb in the queue."""
        return self._put(Request(call=call, announces=announces))

    def _put(self, request: Request) -> asyncio.Future[Any]:
        self._enqueue(request)
        assert request.future is not None
        return request.future

    def _enqueue(self, request: Request) -> None:
        if not self._is_open:
            raise StoreError("the store is not open")
        if self._pid != os.getpid():
            raise StoreError("the store was opened before a fork: open it again in the new process")
        self._queue.put(request)
        if self._asleep:
            self._bell.ring()

    def _serve(self) -> None:
        opening = self._queue.get()
        assert opening is not None
        try:
            touched = self._connection.connect()
        except BaseException as error:  # noqa: BLE001  the one who opens gets it
            opening.error = error
            self._is_open = False
            settle([opening])
            return
        if touched is not None:
            self._bell.watch(touched)
        settle([opening])
        while requests := self._gather():
            try:
                self._connection.execute(requests)
            except BaseException as error:  # noqa: BLE001  those who wait get it; the lane goes on
                for request in requests:
                    request.error = error
            settle(requests)
            self._connection.afterwards()
            del requests  # else the last ones would be kept until there are others
        self._connection.disconnect()
        # Told from here, since to say good-bye may need the very loop that waits for it.
        if self._closing is not None:
            settle([self._closing])

    def _gather(self) -> list[Request]:
        """Wait for requests; none at all is the end."""
        queue, requests = self._queue, list[Request]()
        while not requests and (self._is_open or not queue.empty()):
            requests = [] if (first := self._next()) is None else [first]
            for _ in range(min(queue.qsize(), _MOST)):
                if (another := queue.get_nowait()) is not None:
                    requests.append(another)
        return requests

    def _next(self) -> Request | None:
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
            pause = self._connection.idle()
            self._bell.wait(pause)
        self._asleep = False
