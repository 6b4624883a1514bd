"""The lane of a stream: where items run up to their first wait.

Most of what a process costs is its birth and its death.
An item that returns without ever having waited, and that left no trace
(no link, monitor, name, task or signal), cannot tell whether its process is taken apart after it.
So the lane keeps the process for the next item, and gives it a new identity:
a new pid, a new context, an empty mailbox. The old pid is dead from then on, as any other.

An item that waits, or fails, or leaves a trace, takes the process with it:
it goes on, and ends, as an ordinary process, and the lane gets another one.
"""

from collections import deque
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, Protocol

from perdure.base import telemetry
from perdure.base.pid import Pid
from perdure.base.result import Ok
from perdure.process.birth import SPAWN_EVENT, Function, tell_of_birth
from perdure.process.bonds import Collector
from perdure.process.current import set_process
from perdure.process.death import EXIT_EVENT
from perdure.process.event import ExitResult
from perdure.process.process import Process
from perdure.process.waiter import PARK

# So many items run before the time is looked at, as in a turn of the scheduler.
_ITEMS_PER_LOOK = 32


class Work(Collector, Protocol):
    """An item that has not begun."""

    args: tuple[Any, ...]
    code: Any
    context: Any
    result: Any


class Yard(Protocol):
    """Where the items of a lane come from, and go to."""

    waiting: deque[Any]  # what has not begun
    finished: deque[Any] | None  # where items go that are done; None: they need not go anywhere

    def wake(self) -> None:
        """Look at what is done."""
        ...

    def began(self, item: Any, process: Process) -> None:
        """Take in an item that goes on with a process of its own."""
        ...


class Lane:
    """Stands in the place of a coroutine: each of its steps runs items, one after another."""

    __slots__ = ("_function", "_idle", "_parent", "_process", "_yard")

    def __init__(self, parent: Process, function: Function, yard: Yard) -> None:
        self._parent = parent
        self._function = function
        self._yard = yard
        self._idle = Context()
        self._process: Process | None = None

    def rouse(self) -> None:
        """Run what waits, soon."""
        if self._process is not None:
            self._process.wake()
            return
        parent, this = self._parent, _as_coroutine(self)
        process = Process(parent.runtime, self._function, (), this, parent, parent.values)
        process.pid.target = None  # it is nobody yet
        process.context = self._idle
        self._process = process
        # First in the queue: what has been pulled begins before the consumer goes on.
        process.scheduler.ready.appendleft(process)
        if not process.scheduler.awake:
            process.scheduler.rouse()

    def drop(self) -> None:
        """Let go of the process: the two know each other."""
        self._process = None

    # What the kernel asks of a coroutine

    def send(self, handed: object) -> object:  # noqa: ARG002 - nobody can hand it anything
        """Run items until none is left, or one needs the process for itself."""
        process = self._process
        if process is None:  # dropped while it stood in the queue
            return PARK
        # With a seed every item is a step of its own, so that it can be put into any order.
        items = 1 if process.scheduler.seeded else _ITEMS_PER_LOOK
        now = process.runtime.now
        deadline = now() + process.runtime.settings.turn_time
        while self._yard.waiting:
            yielded = self._run(process, items)
            if yielded is not _ALL_DONE:
                return yielded
            if self._yard.waiting and (items == 1 or now() >= deadline):
                process.loop.call_soon(process.wake)
                break
        process.context = self._idle
        process.drive(_as_coroutine(self))
        process.collector = None
        self._yard.wake()
        return PARK

    def _run(self, process: Process, items: int) -> object:  # noqa: C901 - on one screen
        """Run so many items that are done at once; stop at one that is not, with what it yields.

        This is a birth and a death for each item, without their calls.
        """
        runtime, waiting, finished = process.runtime, self._yard.waiting, self._yard.finished
        host, now, processes = runtime.host_name, runtime.now, runtime.processes
        tell_birth = telemetry.has_handlers(SPAWN_EVENT)
        tell_death = telemetry.has_handlers(EXIT_EVENT)
        for _ in range(min(items, len(waiting))):
            item: Work = waiting.popleft()
            process.pid = pid = Pid(host, process)
            process.args = item.args
            process.born = now()
            process.collector = item
            process.context = context = item.context
            context.run(set_process, process)
            processes[pid] = process
            process.coro = code = item.code
            if tell_birth:
                tell_of_birth(process)
            try:
                yielded = context.run(code.send, None)
            except StopIteration as stop:
                if process.bonds is not None or tell_death or process.is_marked():
                    self._give_up(process, item)
                    raise  # it ends like any other
                item.result = Ok(stop.value)
            except BaseException as error:
                self._give_up(process, item)
                if _end_by(process, error):
                    raise StopIteration from None
                raise
            else:
                self._give_up(process, item)
                return yielded
            process.shed()
            if finished is not None:
                finished.append(item)
        return _ALL_DONE

    def _give_up(self, process: Process, item: Work) -> None:
        """Leave the process to an item; the others get another one."""
        self._process = None
        process.drive(item.code)
        item.code = item.context = None
        self._yard.began(item, process)
        if self._yard.waiting:
            self.rouse()
        self._yard.wake()

    def throw(self, error: BaseException) -> object:
        """Be interrupted, which cannot happen: nobody knows the process between two items."""
        raise error

    def close(self) -> None:
        """Have nothing to clean up."""


_ALL_DONE = object()


def _as_coroutine(lane: Any) -> Coroutine[Any, Any, Any]:
    """Give as much of a coroutine as the kernel needs."""
    return lane


def _end_by(process: Process, error: BaseException) -> bool:
    """Set how it ends, without our own frame in the traceback: people look for their code.

    Only for errors: what else leads out of a process, the kernel must judge.
    """
    if isinstance(error, Exception) and process.outcome is None:
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace is not None else None
        process.outcome = ExitResult(None, error)
        return True
    return False
