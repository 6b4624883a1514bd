"""Wakes a thread that waits: by another thread, or by a file descriptor that it watches too."""

import asyncio
import logging
import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, Protocol

from perdure.base import telemetry
from perdure.base.clock import SystemClock
from perdure.base.errors import StoreError
from perdure.jobs.model import Write
from perdure.store.rows import entry_row
from perdure.store.statements import Session
from perdure.store.verbs.effect import line_row
from perdure.store.verbs.write import is_last, is_plain


class Bell:
    """One thread waits, all others ring."""

    def __init__(self) -> None:
        self._hear, self._ring = os.pipe()
        os.set_blocking(self._hear, False)
        os.set_blocking(self._ring, False)
        self._poll = select.poll()
        self._poll.register(self._hear, select.POLLIN)
        self._rung = select.poll()
        self._rung.register(self._hear, select.POLLIN)

    def watch(self, descriptor: int) -> None:
        """Let a descriptor that has something to read end a wait, too."""
        self._poll.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""
        self._poll.unregister(descriptor)

    def ring(self) -> None:
        """End the wait of the other thread, now or as soon as it begins."""
        try:
            os.write(self._ring, b"!")
        except BlockingIOError:
            return  # it rings already

    def wait(self, seconds: float | None) -> None:
        """Wait until it rings, the watched descriptor has something, or the time is over."""
        self._poll.poll(None if seconds is None else seconds * 1000)
        self._quieten()

    def rest(self, seconds: float | None) -> None:
        """Wait until it rings or the time is over, whatever the watched descriptor has."""
        self._rung.poll(None if seconds is None else seconds * 1000)
        self._quieten()

    def _quieten(self) -> None:
        try:
            os.read(self._hear, 4096)
        except BlockingIOError:
            return  # not rung

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._hear)
        os.close(self._ring)


# What lanes do: requests, and how they are put together.

Call = Callable[[Session], Any]
Done = Callable[[BaseException | None], None]
RowKey = tuple[str, int | str]  # job and place of an entry; tenant and key of a line


class Request:
    """Something to be done in a transaction: a write, or a verb as a function."""

    __slots__ = (
        "announces",
        "apart",
        "call",
        "done",
        "error",
        "future",
        "is_plain",
        "lines",
        "loop",
        "result",
        "rows",
        "write",
    )

    def __init__(
        self,
        write: Write | None = None,
        call: Call | None = None,
        *,
        announces: bool = False,
        done: Done | None = None,
        awaited: bool = True,
        apart: bool = False,
    ) -> None:
        self.write = write
        # Spelled here, not in the thread: what cannot be stored fails before it touches others.
        self.rows = [entry_row(write, entry) for entry in write.entries] if write else []
        self.is_plain = write is not None and is_plain(write)
        self.lines: list[dict[str, Any]] = []  # of the ledger, if that is all
        if write is not None and self.is_plain:
            self.lines = [line_row(write, effect) for effect in write.effects]
        self.call = call
        self.apart = apart  # it takes locks in an order of its own: never together with others
        self.announces = announces  # something may fall due by it: others want to know
        self.loop = asyncio.get_running_loop()
        self.done = done  # called also if whoever awaits the future is cancelled
        # Most writes need no more than that.
        self.future: asyncio.Future[Any] | None = self.loop.create_future() if awaited else None
        self.result: Any = None
        self.error: BaseException | None = None


class Round(NamedTuple):
    """Requests that may be done in any order: none has been acknowledged yet."""

    plain: list[Request]  # writes of journal and ledger alone
    full: list[Request]  # other writes, after those
    calls: list[Request]  # the rest, last


def rounds(requests: Iterable[Request], *, repeat: bool = True) -> Iterator[Round]:
    """Put together what can be done statement by statement.

    What comes after the release of a job comes in another round, to meet its fence.
    Without `repeat`, a row that is written again does too: some databases cannot write it
    twice in one statement.
    """
    now = Round([], [], [])
    last: set[str] = set()
    seen: set[RowKey] = set()
    for request in requests:
        write = request.write
        if write is None:
            now.calls.append(request)
            continue
        keys = set[RowKey]() if repeat else row_keys(request)
        if write.job_id in last or keys & seen:
            yield now
            now = Round([], [], [])
            last.clear()
            seen.clear()
        seen |= keys
        (now.plain if request.is_plain else now.full).append(request)
        if is_last(write):
            last.add(write.job_id)
    yield now


def row_keys(request: Request) -> set[RowKey]:
    """Tell which rows of journal and ledger a write touches."""
    entries = {(row[0], row[1]) for row in request.rows}
    return entries | {(line["tenant"], line["key"]) for line in request.lines}


def writes_of(requests: Iterable[Request]) -> list[tuple[Write, Sequence[tuple[Any, ...]]]]:
    """Give the writes with their entries as rows."""
    return [(request.write, request.rows) for request in requests if request.write is not None]


def settle(requests: Sequence[Request]) -> None:
    """Wake those who wait: one call for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Request]] = {}
    for request in requests:
        loops.setdefault(request.loop, []).append(request)
    for loop, theirs in loops.items():
        try:
            loop.call_soon_threadsafe(resolve, theirs)
        except RuntimeError:  # that loop has ended, and with it those who waited
            continue


def resolve(requests: Sequence[Request]) -> None:
    """Tell those who wait what came of it; called on their loop."""
    for request in requests:
        future = request.future
        if request.done is not None:
            request.done(request.error)
        if future is None or future.done():  # cancelled in the meantime
            continue
        if request.error is None:
            future.set_result(request.result)
        else:
            future.set_exception(request.error)


# A thread with a connection of its own, which does whole transactions and nothing else.
#
# Whoever waits for one may be cancelled at any moment: the transaction happens or it does not,
# but it is never cut in two, and the loop never waits for a disk.
# What has gathered while one transaction was under way goes into the next one together,
# and each transaction wakes a waiting loop once.
#
# One exception: a single small write of which it is known that nothing else is under way may be
# done
# at once, by the loop itself. To wake a thread and to be woken by it costs as much again.

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
