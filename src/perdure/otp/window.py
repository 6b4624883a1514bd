"""The window of a stream: the items that run now, and the results that wait to be asked for.

    input --> [ running: at most max_concurrency ] --> results --> consumer

Nothing moves but when the consumer asks: it pulls the input, starts items and gives results.
An item that ends only notes its result and wakes the consumer.
"""

import asyncio
import types
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from perdure.base.duration import spell
from perdure.base.errors import NotOwner, Shutdown, TaskExit, TaskTimeout, safe_text
from perdure.base.result import Exited
from perdure.otp.collector import callers_of, consume_link, result_of, untie
from perdure.otp.feed import NOT_YET, Feed
from perdure.process.birth import PLAIN, Function, give_birth
from perdure.process.current import CURRENT, current, current_waiter
from perdure.process.death import kill
from perdure.process.event import ExitResult
from perdure.process.exits import spread
from perdure.process.process import Process
from perdure.process.signal import cancel, link
from perdure.process.waiter import Waiter

Progress = Callable[[int, int], object]
Launch = Callable[[Function, Any], Process]

_GRACE = 5.0  # for items whose consumer died to clean up


class Rules(NamedTuple):
    """The options of a stream, checked."""

    max_concurrency: int
    ordered: bool = True
    timeout: float | None = 5.0
    exit_on_timeout: bool = False
    zip_input_on_exit: bool = False
    fail_fast: bool = False
    progress: Progress | None = None
    launch: Launch | None = None  # starts an item elsewhere: under a supervisor
    outlives: bool = False  # items go on when the consumer dies


class Item:
    """One element of the input, the process that works on it, and its result."""

    __slots__ = ("callers", "late", "process", "result", "value", "window")

    def __init__(self, window: "Window", value: object) -> None:
        self.window = window
        self.callers = window.callers
        self.value = value
        self.process: Process | None = None
        self.result: Any = None
        self.late = False

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
        "_closed",
        "_feed",
        "_fn",
        "_input_ended",
        "_owner",
        "_queue",
        "_reported",
        "_rules",
        "_running",
        "_started",
        "_timer",
        "_trouble",
        "_waiter",
        "callers",
    )

    def __init__(self, fn: Function, feed: Feed[Any], rules: Rules) -> None:
        owner = current("a stream")
        self._owner = owner
        self._fn = fn
        self._feed = feed
        self._rules = rules
        self._running: dict[Item, None] = {}  # in the order of their start
        # What is to be given: ordered, all that was started; else what has ended.
        self._queue: deque[Item] = deque()
        self._input_ended = False
        self._started = 0
        self._reported = (0, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._trouble: BaseException | None = None  # ends the stream at the next opportunity
        self._waiter: Waiter | None = None
        self._closed = False
        self.callers = (owner.pid, *callers_of(owner))
        owner.tie().at_death(self._orphaned)

    # What the consumer does

    @types.coroutine
    def next(self) -> Generator[Any, None, Any]:
        """Give the next result.

        Raises:
            StopAsyncIteration: There are no more.
        """
        if CURRENT.get(None) is not self._owner:
            raise NotOwner(f"this stream is read by {self._owner.pid}: another cannot join in")
        if self._closed:
            raise StopAsyncIteration
        if self._waiter is not None:
            raise RuntimeError("this stream is already being read by another task")
        try:
            item = yield from self._next_item()
        except asyncio.CancelledError:
            raise  # only this wait was interrupted: the stream can be read on
        except BaseException:
            yield from self.close().__await__()
            raise
        if item is None:
            yield from self.close().__await__()
            raise StopAsyncIteration
        return item.result

    def _next_item(self) -> Generator[Any, None, Item | None]:
        waiter = self._waiter = current_waiter()
        queue = self._queue
        try:
            while True:
                if self._trouble is not None:
                    raise self._trouble
                if not self._input_ended and self._has_room():
                    self._fill(waiter)
                if self._rules.progress is not None:
                    self._tell_progress(self._rules.progress)
                if queue and queue[0].result is not None:
                    return queue.popleft()
                if self._input_ended and not self._running and not queue:
                    return None
                yield waiter.pause()
        finally:
            self._waiter = None

    def _has_room(self) -> bool:
        """Tell whether the next input may be pulled.

        What waits to be given counts too, or a slow consumer would collect results without end.
        Only while the first in order is missing, those behind it may run ahead.
        """
        rules, queue = self._rules, self._queue
        if not rules.ordered:
            return len(self._running) + len(queue) < rules.max_concurrency
        if len(queue) < rules.max_concurrency:
            return True
        return queue[0].result is None and len(self._running) < rules.max_concurrency

    def _fill(self, waiter: Waiter) -> None:
        while self._has_room():
            try:
                value = self._feed.take(waiter)
            except StopIteration:
                self._input_ended = True
                return
            if value is NOT_YET:
                return
            self._start(Item(self, value))

    def _start(self, item: Item) -> None:
        owner, rules = self._owner, self._rules
        if rules.launch is None:
            process = give_birth(owner.runtime, owner, self._fn, (item.value,), PLAIN)
        else:
            process = rules.launch(self._fn, item.value)
        if rules.fail_fast:
            link(owner, process)
        process.collector = item
        item.process = process
        self._started += 1
        self._running[item] = None
        if self._rules.ordered:
            self._queue.append(item)
        if self._timer is None and self._rules.timeout is not None:
            self._arm(item, self._rules.timeout)

    def _tell_progress(self, progress: Progress) -> None:
        now = (self._started - len(self._running), self._started)
        if now != self._reported:
            self._reported = now
            progress(*now)

    # What items do when they end

    def ended(self, item: Item) -> None:
        """Note that an item has its result."""
        del self._running[item]
        if not self._rules.ordered:
            self._queue.append(item)
        if self._waiter is not None:
            self._waiter.wake()

    def failed(self, item: Item, process: Process, how: Exited[Any]) -> Exited[Any]:
        """Say what is given for an item that failed."""
        reason = how.reason
        rules = self._rules
        if item.late:
            reason = TimeoutError(f"not done within {spell(rules.timeout)}")
            if rules.exit_on_timeout:
                self._trouble = TaskTimeout(reason, f"item {safe_text(item.value)} of a stream")
        elif self._takes_failure_of(process):
            self._trouble = TaskExit(reason, f"item {safe_text(item.value)} of a stream")
        return Exited((item.value, reason)) if rules.zip_input_on_exit else Exited(reason)

    def _takes_failure_of(self, process: Process) -> bool:
        """Tell whether the consumer waits for just this, so that it does not die of the link."""
        waits = self._rules.fail_fast and self._waiter is not None and not self._closed
        return waits and consume_link(self._owner.pid.target, process)

    # Time

    def _arm(self, oldest: Item, limit: float) -> None:
        """Wait for the item that was started first; the others come after it."""
        process = oldest.process
        assert process is not None
        left = max(0.0, process.born + limit - process.runtime.now())
        self._timer = process.loop.call_later(left, self._look, limit)

    def _look(self, limit: float) -> None:
        """End what has run for too long."""
        self._timer = None
        now = self._owner.runtime.now()
        for item in tuple(self._running):
            process = item.process
            if item.late or process is None:
                continue
            if process.born + limit > now:
                self._arm(item, limit)
                return
            item.late = True
            self._cut(process)
            kill(process, f"not done within {spell(limit)}")

    # The end

    async def close(self) -> None:
        """Kill what runs, and wait until it is gone."""
        if self._closed:
            return
        self._closed = True
        self.kill_all()
        self._release()
        try:
            await self._gone()
        finally:
            self._queue.clear()
            await self._feed.close()

    def kill_all(self) -> None:
        """Kill what runs."""
        for item in tuple(self._running):
            if item.process is not None:
                self._cut(item.process)
                kill(item.process, "its stream was closed")

    def _cut(self, process: Process) -> None:
        """Untie an item that we kill from the consumer, who must not die of that."""
        if self._rules.fail_fast:
            untie(self._owner, process.pid)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        bonds = self._owner.bonds
        if bonds is not None and bonds.releases and self._orphaned in bonds.releases:
            bonds.releases.remove(self._orphaned)

    @types.coroutine
    def _gone(self) -> Generator[Any, None, None]:
        waiter = self._waiter = current_waiter()
        try:
            while self._running:
                yield waiter.pause()
        finally:
            self._waiter = None

    def _orphaned(self) -> None:
        """End with the consumer: what runs may clean up for a while; called by its death."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._rules.outlives:
            return
        outcome = self._owner.outcome
        error = None if outcome is None else outcome.error
        pid = self._owner.pid
        reason = Shutdown("its stream's consumer ended") if error is None else spread(pid, error)
        for item in tuple(self._running):
            if item.process is not None:
                cancel(item.process, pid, _GRACE, "its stream's consumer ended")
                item.process.condemn(ExitResult(None, reason))

    def abandoned(self) -> None:
        """Kill what runs: nobody holds the stream any more, so nobody can ask for a result.

        If that is because the consumer dies, its death decides instead.
        """
        alive = self._owner.pid.target is not None and self._owner.outcome is None
        if alive and not self._closed:
            self._closed = True
            self.kill_all()
            self._release()
