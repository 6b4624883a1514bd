"""The process: one running coroutine function, with an identity, a mailbox and an end.

A process is driven by our own trampoline and not by an `asyncio.Task`: see `step`,
and the core loop in `scheduler`.
To asyncio it is a third-party task, by asyncio's own hooks (see `tasklike`),
so `asyncio.timeout`, task groups, anyio and httpx work inside it.
"""

import asyncio
import traceback
import types
from asyncio import CancelledError, InvalidStateError
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextvars import Context, copy_context
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar

from perdure.base.errors import ChannelClosed, MailboxFull, NotOwner
from perdure.base.pid import Pid
from perdure.base.settings import Overflow
from perdure.process.channel import NOTHING, Channel
from perdure.process.death import finish
from perdure.process.event import Event, ExitResult, LinkDown, Message
from perdure.process.relations import Bonds, Callback, Collector
from perdure.process.scheduler import STREAK, Scheduler
from perdure.process.waiter import (
    DEAD,
    ENDING,
    PARK,
    PARKED,
    READY,
    RUNNING,
    RUNNING_TASKS,
    WAITING,
    Waiter,
    own_process,
    set_process,
)

if TYPE_CHECKING:
    from perdure.process.request import Request
    from perdure.process.runtime import Runtime


# What asyncio asks of a task, for processes.
#
# asyncio allows tasks that are not `asyncio.Task`: while one runs, `current_task` gives it,
# and libraries cancel it, count cancellations and look at its coroutine.
# The methods here behave as those of `asyncio.Task`;
# `asyncio.timeout`, `TaskGroup` and anyio's cancel scopes rest on `cancel`, `cancelling`
# and `uncancel`.


class TaskLike(Waiter):
    """The asyncio side of a process."""

    __slots__ = (
        "__weakref__",
        "_cancel_message",
        "_cancels",
        "bonds",
        "coro",
        "future",
        "loop",
        "must_cancel",
        "send",
        "state",
    )

    # All fields are set by `Process`, in one place: three constructors would cost as much again.
    loop: asyncio.AbstractEventLoop
    coro: Coroutine[Any, Any, Any]
    send: Callable[[None], Any] | None  # that of `coro`, bound once, from the first step on
    state: int
    must_cancel: bool
    future: asyncio.Future[Any] | None  # what it waits for, when WAITING
    bonds: Bonds | None
    _cancels: int
    _cancel_message: object
    pid: Pid
    context: Context
    outcome: ExitResult | None

    def tie(self) -> Bonds:
        """Give the ties to others, to add one."""
        if self.bonds is None:
            self.bonds = Bonds()
        return self.bonds

    def drive(self, coro: Coroutine[Any, Any, Any]) -> None:
        """Run this code from the next step on."""
        self.coro = coro
        self.send = None

    def step(self, error: BaseException | None = None) -> None:
        """Run on, or with an error raised; the process knows how."""
        raise NotImplementedError

    def step_alone(self, error: BaseException | None = None) -> None:
        """Take a step in a callback of the loop, and not in a turn of the scheduler."""
        RUNNING_TASKS[self.loop] = self
        try:
            self.step(error)
        finally:
            RUNNING_TASKS.pop(self.loop, None)

    # Waiting for asyncio

    def wait_for(self, yielded: Any) -> None:
        """Wait for what the coroutine yielded, as `asyncio.Task` does."""
        self.state = WAITING
        if yielded is None:  # a bare yield, as in `asyncio.sleep(0)`: one turn of the loop
            self.loop.call_soon(self.resume, None)
        elif getattr(yielded, "_asyncio_future_blocking", False) and (
            yielded.get_loop() is self.loop
        ):
            yielded._asyncio_future_blocking = False  # noqa: SLF001 - the protocol of futures
            self.future = yielded
            yielded.add_done_callback(self.resume)
            if self.must_cancel and yielded.cancel(msg=self._cancel_message):
                self.must_cancel = False
        else:
            wrong = RuntimeError(f"{self!r} awaited something that cannot wake it: {yielded!r}")
            self.loop.call_soon(self.refuse, wrong)

    def refuse(self, wrong: RuntimeError) -> None:
        """Raise where the code waits for what will never come."""
        if self.state == WAITING:
            self.state = READY
            self.step_alone(wrong)

    def resume(self, done: "asyncio.Future[Any] | None") -> None:
        """Go on after a future: in the callback itself, as asyncio does, not a turn later."""
        if self.state == WAITING and self.future is done:
            self.future = None
            self.state = READY
            self.step_alone()

    # Cancellation, as asyncio means it: a request that the code may catch

    def cancel(self, msg: object = None) -> bool:
        """Ask for a CancelledError at the next opportunity."""
        if self.state >= ENDING:
            return False
        self._cancels += 1
        if self.future is not None and self.future.cancel(msg=msg):
            return True  # its callback brings the CancelledError
        self.must_cancel = True
        self._cancel_message = msg
        self.wake()
        return True

    def cancelling(self) -> int:
        """Count the requests that nobody has taken back."""
        return self._cancels

    def uncancel(self) -> int:
        """Take one request back."""
        if self._cancels > 0:
            self._cancels -= 1
            if self._cancels == 0:
                self.must_cancel = False
        return self._cancels

    def cancelled_error(self) -> CancelledError:
        """Make the error that is thrown now."""
        self.must_cancel = False
        message, self._cancel_message = self._cancel_message, None
        return CancelledError() if message is None else CancelledError(message)

    # What anyio looks at
    @property
    def _must_cancel(self) -> bool:
        return self.must_cancel

    @property
    def _fut_waiter(self) -> "asyncio.Future[Any] | None":
        return self.future

    # The end

    def done(self) -> bool:
        """Tell whether it is dead."""
        return self.state == DEAD

    def cancelled(self) -> bool:
        """Tell whether it was cancelled; a process ends with a reason instead."""
        return False

    def result(self) -> Any:
        """Give the value, or raise the reason."""
        if self.outcome is None or self.state != DEAD:
            raise InvalidStateError("the process has not ended")
        if self.outcome.error is not None:
            raise self.outcome.error
        return self.outcome.value

    def exception(self) -> BaseException | None:
        """Give the reason."""
        if self.outcome is None or self.state != DEAD:
            raise InvalidStateError("the process has not ended")
        return self.outcome.error

    def add_done_callback(self, fn: Callback, /, *, context: Context | None = None) -> None:
        """Call `fn` with this process when it is dead, after all notices are sent."""
        if self.state == DEAD:
            self.loop.call_soon(fn, self, context=context)
            return
        self.tie().add_callback(fn, context)

    def remove_done_callback(self, fn: Callback, /) -> int:
        """Forget all entries of `fn`."""
        return 0 if self.bonds is None else self.bonds.drop_callback(fn)

    # For tools

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Give the loop that it lives on."""
        return self.loop

    def get_coro(self) -> Coroutine[Any, Any, Any]:
        """Give the coroutine."""
        return self.coro

    def get_context(self) -> Context:
        """Give the context that its code runs in."""
        return self.context

    def get_name(self) -> str:
        """Give the name that tools show: the pid, unless another was set."""
        return self.bonds.label if self.bonds and self.bonds.label else str(self.pid)

    def set_name(self, value: object) -> None:
        """Set the name that tools show."""
        self.tie().label = str(value)

    def get_stack(self, *, limit: int | None = None) -> list[FrameType]:
        """Give the frames of the coroutine and of what it awaits, outermost first."""
        frames = stack_of(self.coro)
        return frames if limit is None else frames[-limit:] if limit > 0 else []

    def print_stack(self, *, limit: int | None = None, file: TextIO | None = None) -> None:
        """Print where the process stands."""
        summary = traceback.StackSummary.extract(
            (frame, frame.f_lineno) for frame in self.get_stack(limit=limit)
        )
        traceback.print_list(summary, file=file)


def stack_of(awaitable: object) -> list[FrameType]:
    """Follow a suspended coroutine down to what it waits in."""
    frames: list[FrameType] = []
    while awaitable is not None:
        if isinstance(awaitable, CoroutineType):
            frame, awaitable = awaitable.cr_frame, awaitable.cr_await
        else:
            frame = getattr(awaitable, "gi_frame", None) or getattr(awaitable, "ag_frame", None)
            awaitable = getattr(awaitable, "gi_yieldfrom", None) or getattr(
                awaitable, "ag_await", None
            )
        if frame is not None:
            frames.append(frame)
    return frames


# The mailbox: everything that a process receives, sorted into its channels.
#
# A message goes to the listener of its topic if there is one, else to the inbox.
# While the process has not asked for its inbox, the inbox only keeps messages for later:
# a listener that comes late still gets those of its topic.

T = TypeVar("T")


class Inlet(Channel[T]):
    """A channel that only its own process reads, and into which a put never waits."""

    __slots__ = ("_streak", "asked", "owner")

    def __init__(self, owner: "Mailbox") -> None:
        super().__init__()
        self.owner = owner
        self._streak = STREAK
        self.asked = False  # whether the process itself has ever asked for it

    def put(self, value: T) -> None:
        """Add a value, and wake the reader."""
        if self._items:  # whoever waits has been woken for what is there already
            self._items.append(value)
            return
        if self._items is NOTHING:
            self._items = deque()
        self._items.append(value)
        if self.owner.reading is self:
            self.owner.wake()
        else:
            self._wake_next()

    @types.coroutine
    def receive(self) -> Generator[Any, Any, T]:
        """Take the next value; wait for it if there is none.

        This is `Channel.receive` without its calls, for the case that is hot:
        the process itself reads (if it is RUNNING, no other code can be), and nobody else of it.
        """
        owner = self.owner
        if owner.state != RUNNING or self._receivers or self.closed:
            self.check_reader()
            return (yield from self._receive())
        if self._items:
            self._streak -= 1
            if self._streak:
                return self._items.popleft()
            self._streak = STREAK
            yield from owner.scheduler.breathe()
            return (yield from self._receive())  # a task may have emptied it meanwhile
        while True:
            owner.reading = self
            try:
                yield PARK
            finally:
                owner.reading = None
                if self._receivers:  # a task of this process came to read too
                    self._wake_next()
            if self._items:
                return self._items.popleft()
            if self.closed:
                raise ChannelClosed

    def close(self) -> None:
        super().close()
        if self.owner.reading is self:
            self.owner.wake()

    def drop_oldest(self, kind: type) -> None:
        """Make room by forgetting the value of a kind that waits longest."""
        for place, value in enumerate(self._items):
            if isinstance(value, kind):
                del self._items[place]
                return

    def remove(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Take out the values that are unwanted, in order."""
        removed = [value for value in self._items if unwanted(value)]
        if removed:
            self._items = deque(value for value in self._items if not unwanted(value))
        return removed

    def check_reader(self) -> None:
        if own_process(None) is not self.owner:
            raise NotOwner(f"this channel belongs to {self.owner.pid}: only that process reads it")


class Bound(NamedTuple):
    """How many messages may wait in one channel, and what becomes of one more."""

    limit: int | None
    overflow: Overflow


class Mailbox(TaskLike):
    """The receiving side of a process."""

    __slots__ = (
        "_direct",
        "_events",
        "_inbox",
        "_listeners",
        "_requests",
        "bound",
        "reading",
    )

    scheduler: Scheduler
    bound: Bound
    reading: Inlet[Any] | None  # the inlet in which the process itself waits, and in no other
    # The inbox, if every message goes there: there is no listener, and no limit.
    _direct: Inlet[Message] | None
    # Each channel is made when it is first needed.
    _inbox: Inlet[Message] | None
    _events: Inlet[Event] | None
    _listeners: "dict[str, Listener] | None"
    _requests: "Inlet[Request[Any]] | None"

    def condemn(self, outcome: ExitResult) -> None:
        """End; the process knows how."""
        raise NotImplementedError

    # What others do

    def deliver(self, message: Message) -> bool:
        """Take a message in; tell whether it was taken."""
        inlet = self._direct
        if inlet is None:
            return self._sort_in(message)
        items = inlet._items  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        if items:  # whoever waits has been woken for what is there already
            items.append(message)
        elif items is NOTHING or self.reading is not inlet:
            inlet.put(message)
        else:  # it waits for exactly this: the hot path, without the calls of `put` and `wake`
            items.append(message)
            if self.state == PARKED:
                self.state = READY
                scheduler = self.scheduler
                scheduler.ready.append(self)
                if not scheduler.awake:
                    scheduler.rouse()
        return True

    def _sort_in(self, message: Message) -> bool:
        inlet: Inlet[Any] | None = None
        value: Any = message
        if self._listeners is not None:
            listener = self._listeners.get(message.topic)
            if listener is not None:
                inlet = listener
                value = message if listener.whole else message.payload
        if inlet is None:
            inlet = self._inbox
            if inlet is None:
                inlet = self._inbox = Inlet(self)
                self._direct_or_not()
        limit = self.bound.limit
        if limit is not None and len(inlet) >= limit:
            return self._overflow(inlet, value, self.bound.overflow)
        inlet.put(value)
        return True

    def set_bound(self, bound: Bound) -> None:
        """Set how many messages may wait."""
        self.bound = bound
        self._direct_or_not()

    def _direct_or_not(self) -> None:
        plain = not self._listeners and self.bound.limit is None
        self._direct = self._inbox if plain else None

    def notify(self, event: Event) -> None:
        """Add an event; events are never refused, since each is a fact that is told once."""
        if self._events is None:
            self._events = Inlet(self)
        self._events.put(event)

    def ask(self, request: "Request[Any]") -> None:
        """Add a request; its number is bounded by that of the processes that can call."""
        self.requests().put(request)

    def _overflow(self, inlet: Inlet[Any], value: object, rule: Overflow) -> bool:
        full = MailboxFull(self.pid, len(inlet))
        match rule:
            case Overflow.REJECT:
                raise full
            case Overflow.DROP_NEWEST:
                return False
            case Overflow.DROP_OLDEST:
                # Where everything is in one queue, only a message may go.
                inlet.drop_oldest(Message if inlet is self._events else object)
                inlet.put(value)
                return True
            case Overflow.EXIT:
                self.condemn(ExitResult(None, full))
                return False

    # What the process itself does

    def inbox(self) -> Inlet[Message]:
        """Give the channel of all messages that have no listener."""
        if self._inbox is None:
            self._inbox = Inlet(self)
            self._direct_or_not()
        self._inbox.asked = True
        return self._inbox

    def events(self) -> Inlet[Event]:
        """Give the channel of events."""
        if self._events is None:
            self._events = Inlet(self)
        self._events.asked = True
        return self._events

    def asked_for_events(self) -> bool:
        """Tell whether the process reads its events; if not, a CANCEL is no way to stop it."""
        return self._events is not None and self._events.asked

    def requests(self) -> "Inlet[Request[Any]]":
        """Give the channel of requests that were made by `call`."""
        if self._requests is None:
            self._requests = Inlet(self)
        return self._requests

    def unify(self, one: Inlet[Any] | None = None) -> Inlet[Any]:
        """Let messages, events and requests come through one channel, in order of arrival."""
        one = one or Inlet(self)
        one.asked = True
        for inlet in (self._events, self._requests, self._inbox):
            for value in inlet.remove(lambda _: True) if inlet is not None else ():
                one.put(value)
        self._inbox = self._events = self._requests = one
        self._direct_or_not()
        return one

    def is_unified(self) -> bool:
        """Tell whether everything comes through one channel."""
        return self._events is not None and self._events is self._inbox

    def listen(self, topic: str, *, whole: bool) -> "Listener":
        """Give the channel of one topic, made at the first call."""
        if self._listeners is None:
            self._listeners = {}
        listener = self._listeners.get(topic)
        if listener is None:
            listener = self._listeners[topic] = Listener(self, topic, whole=whole)
            self._direct_or_not()
            self._hand_kept(listener)
        elif listener.whole is not whole:
            raise ValueError(
                f"topic {topic!r} already has a listener with message={listener.whole}; "
                "unlisten it first",
            )
        return listener

    def unlisten(self, channel: object) -> None:
        """Close a listener; from now on its topic goes to the inbox again."""
        listeners = self._listeners or {}
        if not isinstance(channel, Listener) or listeners.get(channel.topic) is not channel:
            raise NotOwner("unlisten takes a channel that this process got from listen()")
        del listeners[channel.topic]
        self._direct_or_not()
        channel.close()

    def _hand_kept(self, listener: "Listener") -> None:
        if self._inbox is not None and not self._inbox.asked:
            for message in self._inbox.remove(lambda kept: kept.topic == listener.topic):
                listener.put(message if listener.whole else message.payload)

    def flush(self, unwanted: Callable[[Event], bool]) -> None:
        """Forget the events that are unwanted."""
        if self._events is not None:
            self._events.remove(unwanted)

    def mailbox_length(self) -> int:
        """Count what waits to be received."""
        inlets = {self._inbox, self._events, self._requests, *(self._listeners or {}).values()}
        return sum(len(inlet) for inlet in inlets if inlet is not None)

    def close_mailbox(self) -> None:
        """Forget everything: the process is dead."""
        self._direct = self._inbox = self._events = self._listeners = self._requests = None
        self.reading = None


class Listener(Inlet[Any]):
    """The channel of one topic."""

    __slots__ = ("topic", "whole")

    def __init__(self, owner: Mailbox, topic: str, *, whole: bool) -> None:
        super().__init__(owner)
        self.topic = topic
        self.whole = whole


class Process(Mailbox):
    """One process. Users hold its `Pid`; only the kernel holds this."""

    __slots__ = (
        "args",
        "born",
        "collector",
        "context",
        "function",
        "outcome",
        "parent",
        "pid",
        "runtime",
        "scheduler",
        "trap_links",
        "values",
    )

    def __init__(
        self,
        runtime: "Runtime",
        function: Callable[..., Any],
        args: tuple[Any, ...],
        coro: Coroutine[Any, Any, Any],
        parent: "Process | None",
        values: Mapping[str, Any],
    ) -> None:
        self.loop = runtime.loop
        self.coro = coro
        self.send = None
        self.state = READY
        self.must_cancel = False
        self.future = None
        self.bonds = None
        self._cancels = 0
        self._cancel_message = None
        self.bound = runtime.bound
        self._direct = self._inbox = self._events = self._listeners = self._requests = None
        self.reading = None
        self.runtime = runtime
        self.scheduler: Scheduler = runtime.scheduler
        self.function = function
        self.args = args
        self.values = values
        self.parent: Pid | None = parent.pid if parent is not None else None
        self.pid = Pid(runtime.host_name, self)
        self.born = runtime.now()
        self.trap_links = False
        self.collector: Collector | None = None
        # How it ends. Set by a signal before the code notices, and then final, whatever the
        # code does: a kill that is caught is still a kill.
        self.outcome: ExitResult | None = None
        self.context: Context = copy_context()
        self.context.run(set_process, self)

    def __repr__(self) -> str:
        return f"<process {self.pid} {getattr(self.function, '__qualname__', self.function)}>"

    def step(self, error: BaseException | None = None) -> None:
        """Run the coroutine up to its next wait, or with an error raised where it waits.

        Whoever calls this notes the process in `RUNNING_TASKS` before.
        The scheduler has the plain case of this in its core loop, without the calls.
        """
        if self.state != READY:
            return  # it was abandoned while it stood in the queue
        self.state = RUNNING
        try:
            if error is None and not self.must_cancel:
                yielded = self.context.run(self.send or self.coro.send, None)
            else:
                error = error or self.cancelled_error()
                yielded = self.context.run(self.coro.throw, error)
        except BaseException as raised:  # noqa: BLE001 - it returned, or raised: it is over
            error = raised
        else:
            if yielded is PARK and not self.must_cancel:  # it waits in the kernel
                self.state = PARKED
            else:
                self.pause_for(yielded)
            return
        if isinstance(error, StopIteration):  # it returned
            finish(self, error.value, None)
        else:
            finish(self, None, error)
        error = None  # its traceback knows this frame: without this, a cycle for each death

    def pause_for(self, yielded: object) -> None:
        """Wait for what the coroutine yielded, until somebody calls `wake` or a future is done."""
        if yielded is PARK:
            self.state = PARKED
            if self.must_cancel:  # cancelled by itself, while it ran
                self.wake()
        else:  # it waits for asyncio
            self.wait_for(yielded)

    def start(self) -> None:
        """Stand in the queue for the first step."""
        self.scheduler.ready.append(self)
        if not self.scheduler.awake:
            self.scheduler.rouse()

    def pause(self) -> object:
        return PARK

    def wake(self) -> None:
        if self.state == PARKED:
            self.state = READY
            scheduler = self.scheduler  # as in `start`, without the call: this is the hot path
            scheduler.ready.append(self)
            if not scheduler.awake:
                scheduler.rouse()

    # Signals

    def exit_signal(self, sender: Pid, reason: BaseException) -> None:
        """Take in an exit signal by hand; whether it is trapped is judged now, once."""
        if self.trap_links:
            self.notify(LinkDown(sender, reason))
        else:
            self.condemn(ExitResult(None, reason))

    def condemn(self, outcome: ExitResult) -> None:
        """Decide how the process ends, and interrupt it once: its cleanup may take its time."""
        if self.state == PARKED and self.outcome is None:
            # `interrupt` without its calls: whole chains of processes die here.
            self.outcome = outcome
            self._cancels += 1
            self.must_cancel = True
            self.state = READY
            self.start()
        elif self.outcome is None and self.state != DEAD:
            self.outcome = outcome
            self.interrupt()

    def shed(self) -> None:
        """Take off its identity, to be born again: the pid is dead, the mailbox empty."""
        self.pid.target = None
        del self.runtime.processes[self.pid]
        self._direct = self._inbox = self._events = self._listeners = self._requests = None
        self.trap_links = False
        self.bound = self.runtime.bound

    def is_marked(self) -> bool:
        """Tell whether a signal or a cancel has reached it."""
        return self.outcome is not None or self.must_cancel or self._cancels > 0

    def runs_now(self) -> bool:
        """Tell whether it is the process itself that runs, and not a task in it."""
        return self.state == RUNNING

    def interrupt(self) -> None:
        """Raise a CancelledError where the code waits."""
        self.cancel()
