"""The window of a stream: the items that run now, and the results that wait to be asked for.

    input --> [ running: at most max_concurrency ] --> results --> consumer

Nothing moves but when the consumer asks: it pulls the input, starts items and gives results.
An item that ends only notes its result and wakes the consumer.
"""

import asyncio
import types
from collections import deque
from collections.abc import AsyncIterable, Callable, Generator, Iterable
from contextvars import copy_context
from typing import Any, NamedTuple

from msgspec import Struct

from perdure.base.duration import spell
from perdure.base.errors import NotOwner, Shutdown, TaskExit, TaskTimeout, safe_text
from perdure.base.pid import Pid
from perdure.base.result import Exited
from perdure.otp.collector import callers_of, consume_link, result_of, untie
from perdure.otp.feed import NOT_YET, Feed, feed_of
from perdure.otp.lane import Lane
from perdure.process.birth import PLAIN, Function, give_birth, is_plain, make_coroutine
from perdure.process.current import current, current_waiter, own_process
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


class Item(Struct, eq=False):
    """One element of the input, the process that works on it, and its result."""

    window: "Window"
    callers: tuple[Pid, ...]
    args: tuple[Any]
    code: Any = None  # until it has begun
    context: Any = None
    process: Process | None = None  # while it runs
    result: Any = None
    late: bool = False

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
        "_calm",
        "_closed",
        "_feed",
        "_fn",
        "_input_ended",
        "_lane",
        "_ordinary",
        "_owner",
        "_plain",
        "_queue",
        "_reported",
        "_rules",
        "_running",
        "_started",
        "_timer",
        "_trouble",
        "_waiter",
        "callers",
        "finished",
        "waiting",
    )

    def __init__(
        self, fn: Function, items: Iterable[Any] | AsyncIterable[Any], rules: Rules
    ) -> None:
        owner = current("a stream")
        self._owner = owner
        self._fn = fn
        self._plain: Function | None = None  # `fn`, once it needs no more checks
        self._feed: Feed[Any] = feed_of(items, self.wake)
        self._rules = rules
        self._calm = rules.progress is None  # nothing to attend to but results
        self._ordinary = rules.launch is not None or rules.fail_fast
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
        self.waiting: deque[Item] = deque()  # pulled, and not begun
        self.finished = None if rules.ordered else self._queue
        self._lane = Lane(owner, fn, self)
        owner.tie().at_death(self._orphaned)

    # What the consumer does

    @types.coroutine
    def next(self) -> Generator[Any, None, Any]:  # noqa: C901 - the core loop, on one screen
        """Give the next result.

        Raises:
            StopAsyncIteration: There are no more.
        """
        if own_process(None) is not self._owner or self._waiter is not None:
            raise self._not_yours()
        queue = self._queue
        try:
            while not self._closed:
                if not self._input_ended:
                    self._fill()
                if not self._calm:
                    self._attend()
                if queue and queue[0].result is not None:
                    return queue.popleft().result
                if self._input_ended and not self._running and not self.waiting:
                    break
                yield from self._pause()
        except asyncio.CancelledError:
            raise  # only this wait was interrupted: the stream can be read on
        except BaseException:
            yield from self.close().__await__()
            raise
        yield from self.close().__await__()
        raise StopAsyncIteration

    def _attend(self) -> None:
        if self._trouble is not None:
            raise self._trouble
        if self._rules.progress is not None:
            self._tell_progress(self._rules.progress)

    def _pause(self) -> Generator[Any, None, None]:
        waiter = self._waiter = current_waiter()
        try:
            yield waiter.pause()
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Let the consumer look again, if it waits."""
        if self._waiter is not None:
            self._waiter.wake()

    def _not_yours(self) -> Exception:
        if own_process(None) is not self._owner:
            return NotOwner(f"this stream is read by {self._owner.pid}: another cannot join in")
        return RuntimeError("this stream is already being read by another task")

    def _fill(self) -> None:
        """Pull and start what there is room for."""
        take, waiting, queue = self._feed.take, self.waiting, self._queue
        idle, plain = not waiting, self._plain
        for _ in range(self._room()):
            try:
                value = take()
            except StopIteration:
                self._input_ended = True
                break
            if value is NOT_YET:
                break
            if self._ordinary:
                item = self._start_ordinary(value)
            else:
                code = self._first_code(value) if plain is None else plain(value)
                item = Item(self, self.callers, (value,), code, copy_context())
                waiting.append(item)
            self._started += 1
            if self.finished is not queue:
                queue.append(item)
        if idle and waiting:  # if something waited before, the lane knows
            self._lane.rouse()

    def _first_code(self, value: object) -> Any:
        """Make the coroutine of an item; what fits one item fits all, so check only the first."""
        code = make_coroutine(self._fn, (value,))
        if is_plain(self._fn):
            self._plain = self._fn
        return code

    def _room(self) -> int:
        """Count what may be pulled.

        What waits to be given counts too, or a slow consumer would collect results without end.
        Only while the first in order is missing, those behind it may run ahead.
        """
        queue, most = self._queue, self._rules.max_concurrency
        if not self._rules.ordered:
            return most - len(self._running) - len(self.waiting) - len(queue)
        if len(queue) >= most and queue[0].result is None:
            return most - len(self._running) - len(self.waiting)
        return most - len(queue)

    def _start_ordinary(self, value: object) -> Item:
        """Start an item that needs a process before it runs: for its supervisor, or its link."""
        owner, rules = self._owner, self._rules
        if rules.launch is not None:
            process = rules.launch(self._fn, value)
        else:
            process = give_birth(owner.runtime, owner, self._fn, (value,), PLAIN)
        process.collector = item = Item(self, self.callers, (value,))
        if rules.fail_fast:
            link(owner, process)
        self.began(item, process)
        return item

    def began(self, item: Item, process: Process) -> None:
        """Note that an item has a process of its own."""
        item.process = process
        self._running[item] = None
        if self._timer is None and self._rules.timeout is not None:
            self._arm(item, self._rules.timeout)

    def _tell_progress(self, progress: Progress) -> None:
        done = self._started - len(self._running) - len(self.waiting)
        now = (done, self._started)
        if now != self._reported:
            self._reported = now
            progress(*now)

    # What items do when they end

    def ended(self, item: Item) -> None:
        """Note that an item has its result, and no process any more."""
        del self._running[item]
        if self.finished is not None:
            self.finished.append(item)
        self.wake()

    def failed(self, item: Item, process: Process, how: Exited[Any]) -> Exited[Any]:
        """Say what is given for an item that failed."""
        reason = how.reason
        rules = self._rules
        if item.late:
            reason = TimeoutError(f"not done within {spell(rules.timeout)}")
            if rules.exit_on_timeout:
                self._calm = False
                self._trouble = TaskTimeout(reason, f"item {safe_text(item.args[0])} of a stream")
        elif self._takes_failure_of(process):
            self._calm = False
            self._trouble = TaskExit(reason, f"item {safe_text(item.args[0])} of a stream")
        return Exited((item.args[0], reason)) if rules.zip_input_on_exit else Exited(reason)

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
        self._forget_waiting()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        bonds = self._owner.bonds
        if bonds is not None and bonds.releases and self._orphaned in bonds.releases:
            bonds.releases.remove(self._orphaned)

    def _forget_waiting(self) -> None:
        for item in self.waiting:
            item.code.close()
        self.waiting.clear()
        self._lane.drop()

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
        self._forget_waiting()
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
