"""The process: one running coroutine function, with an identity, a mailbox and an end.

A process is driven by our own trampoline and not by an `asyncio.Task`: `step` runs its coroutine
up to the next wait, and the core loop in `scheduler` does the same without the calls.
What the coroutine yields says how it waits:

- `PARK`: it waits in the kernel, for a message or a reply, until somebody calls `wake`.
- a future of asyncio: it waits as a task would, and continues in the callback of that future.
- None: it gives everybody else one turn of the loop, as in `asyncio.sleep(0)`.

To asyncio a process is a third-party task, by asyncio's own hooks: while it runs, `current_task`
returns it, and libraries cancel it, count its cancellations and look at its coroutine. The methods
of the last section behave as those of `asyncio.Task`, so `asyncio.timeout`, task groups, anyio and
httpx work inside a process.

How it ends is decided once, in `outcome`. A signal sets it before the code notices, and then it is
final: a kill that the code catches is still a kill. What happens at the end is in `lifecycle`.

A process does not import its runtime, which knows all about processes. `ProcessRuntime`, at the
end of this file, is what the kernel uses of it.
"""

import asyncio
import traceback
import types
from asyncio import CancelledError, InvalidStateError
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextvars import Context, copy_context
from itertools import chain, islice
from signal import Signals
from types import CoroutineType, FrameType
from typing import Any, NamedTuple, Protocol, TextIO, TypeVar

from perdure.base.clock import Clock
from perdure.base.errors import (
    ChannelClosed,
    MailboxFull,
    NoProcess,
    NotInProcess,
    NotOwner,
    Shutdown,
)
from perdure.base.pid import MonitorRef, Pid
from perdure.base.settings import Overflow, Settings
from perdure.process.channel import EMPTY, Channel
from perdure.process.event import Event, ExitResult, LinkDown, Message
from perdure.process.exit_reason import Upgrade
from perdure.process.names import Names
from perdure.process.request import Deadlines, Request
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

T = TypeVar("T")
Function = Callable[..., Coroutine[Any, Any, Any]]
Callback = Callable[[Any], object]


class MailboxBound(NamedTuple):
    """How many messages may wait in one channel, and what happens to a message beyond that."""

    limit: int | None
    overflow: Overflow


class Process(Waiter):
    """One process. Users hold its `Pid`; only the kernel holds this."""

    __slots__ = (
        "__weakref__",
        "_cancel_message",
        "_cancels",
        "_direct_inbox",
        "_events",
        "_inbox",
        "_listeners",
        "_requests",
        "args",
        "bound",
        "collector",
        "context",
        "coro",
        "function",
        "future",
        "loop",
        "must_cancel",
        "outcome",
        "parent",
        "pid",
        "reading",
        "relations",
        "runtime",
        "scheduler",
        "send",
        "spawned_at",
        "state",
        "trap_links",
        "values",
    )

    def __init__(
        self,
        runtime: "ProcessRuntime",
        function: Callable[..., Any],
        args: tuple[Any, ...],
        coro: Coroutine[Any, Any, Any],
        parent: "Process | None",
        values: Mapping[str, Any],
    ) -> None:
        # What it is.
        self.runtime = runtime
        self.loop: asyncio.AbstractEventLoop = runtime.loop
        self.scheduler: Scheduler = runtime.scheduler
        self.pid = Pid(runtime.host_name, self)
        self.parent: Pid | None = parent.pid if parent is not None else None
        self.function = function
        self.args = args
        self.values = values  # what `process.context()` returns
        self.spawned_at: float = runtime.now()
        self.trap_links = False
        self.relations: Relations | None = None  # made with the first one
        self.collector: Collector | None = None
        # How it runs.
        self.coro = coro
        self.send: Callable[[None], Any] | None = None  # that of `coro`, from the first step on
        self.state: int = READY
        self.future: asyncio.Future[Any] | None = None  # what it waits for, when WAITING
        self.outcome: ExitResult | None = None  # how it ends, as soon as that is decided
        # Requests to cancel it, as asyncio counts them.
        self.must_cancel = False
        self._cancels = 0
        self._cancel_message: object = None
        # Its mailbox. Each channel is made when it is first needed.
        self.bound: MailboxBound = runtime.mailbox_bound
        self._inbox: MailboxChannel[Message] | None = None
        self._events: MailboxChannel[Event] | None = None
        self._requests: MailboxChannel[Request[Any]] | None = None
        self._listeners: dict[str, TopicChannel] | None = None
        # The inbox, if every message goes there: there is no listener, and no limit.
        self._direct_inbox: MailboxChannel[Message] | None = None
        self.reading: MailboxChannel[Any] | None = None  # in which the process itself waits
        self.context: Context = copy_context()
        self.context.run(set_process, self)

    def __repr__(self) -> str:
        return f"<process {self.pid} {getattr(self.function, '__qualname__', self.function)}>"

    def get_relations(self) -> "Relations":
        """Return the relations of this process to others, creating them on first use."""
        if self.relations is None:
            self.relations = Relations()
        return self.relations

    def at_exit(self, cleanup: Callable[[], None]) -> None:
        """Call a function just before the process counts as dead, and before any notification."""
        relations = self.get_relations()
        if relations.cleanups is None:
            relations.cleanups = []
        relations.cleanups.append(cleanup)

    # Steps

    def enqueue(self) -> None:
        """Join the scheduler's queue; the state is READY already."""
        self.scheduler.ready.append(self)
        if not self.scheduler.turn_scheduled:
            self.scheduler.schedule_turn()

    def step(self, error: BaseException | None = None) -> None:
        """Run the coroutine up to its next wait, or with an error raised where it waits.

        The caller has put the process into `RUNNING_TASKS`.
        The scheduler has the plain case of this in its core loop, without the calls.
        """
        if self.state != READY:
            return  # it was abandoned while it was queued
        self.state = RUNNING
        try:
            if error is None and not self.must_cancel:
                yielded = self.context.run(self.send or self.coro.send, None)
            else:
                error = error or self._take_cancelled_error()
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
            self.scheduler.finish(self, error.value, None)
        else:
            self.scheduler.finish(self, None, error)
        error = None  # its traceback refers to this frame: otherwise a cycle for each death

    def _step_alone(self, error: BaseException | None = None) -> None:
        """Take a step in a callback of the loop, outside of a turn of the scheduler."""
        RUNNING_TASKS[self.loop] = self
        try:
            self.step(error)
        finally:
            RUNNING_TASKS.pop(self.loop, None)

    def set_code(self, coro: Coroutine[Any, Any, Any]) -> None:
        """Run this coroutine from the next step on."""
        self.coro = coro
        self.send = None

    # Waits

    def pause(self) -> object:
        return PARK

    def wake(self) -> None:
        if self.state == PARKED:
            self.state = READY
            scheduler = self.scheduler  # `enqueue` without the call: this is the hot path
            scheduler.ready.append(self)
            if not scheduler.turn_scheduled:
                scheduler.schedule_turn()

    def pause_for(self, yielded: Any) -> None:
        """Wait for what the coroutine yielded, until somebody calls `wake` or a future is done."""
        if yielded is PARK:
            self.state = PARKED
            if self.must_cancel:  # it cancelled itself while it ran
                self.wake()
            return
        self.state = WAITING
        if yielded is None:  # a bare yield, as in `asyncio.sleep(0)`: one turn of the loop
            self.loop.call_soon(self._resume, None)
        elif getattr(yielded, "_asyncio_future_blocking", False) and (
            yielded.get_loop() is self.loop
        ):
            yielded._asyncio_future_blocking = False  # noqa: SLF001 - the protocol of futures
            self.future = yielded
            yielded.add_done_callback(self._resume)
            if self.must_cancel and yielded.cancel(msg=self._cancel_message):
                self.must_cancel = False
        else:
            wrong = RuntimeError(f"{self!r} awaited something that cannot wake it: {yielded!r}")
            self.loop.call_soon(self._raise_in_wait, wrong)

    def _raise_in_wait(self, wrong: RuntimeError) -> None:
        if self.state == WAITING:
            self.state = READY
            self._step_alone(wrong)

    def _resume(self, done: "asyncio.Future[Any] | None") -> None:
        """Continue after a future: in the callback itself, as asyncio does, not a turn later."""
        if self.state == WAITING and self.future is done:
            self.future = None
            self.state = READY
            self._step_alone()

    def runs_now(self) -> bool:
        """Whether the process itself runs, and not a task inside it."""
        return self.state == RUNNING

    # Exit signals

    def exit_signal(self, sender: Pid, reason: BaseException) -> None:
        """Receive an exit signal; whether links are trapped is checked now, once."""
        if self.trap_links:
            self.notify(LinkDown(sender, reason))
        else:
            self.force_exit(ExitResult(None, reason))

    def force_exit(self, outcome: ExitResult) -> None:
        """Decide how the process ends, and interrupt it once; its cleanup may take its time."""
        if self.state == PARKED and self.outcome is None:
            # `interrupt` without its calls: whole chains of processes die here.
            self.outcome = outcome
            self._cancels += 1
            self.must_cancel = True
            self.state = READY
            self.enqueue()
        elif self.outcome is None and self.state != DEAD:
            self.outcome = outcome
            self.interrupt()

    def interrupt(self) -> None:
        """Raise a CancelledError where the code waits."""
        self.cancel()

    def was_signalled(self) -> bool:
        """Whether an exit signal or a cancellation has reached it."""
        return self.outcome is not None or self.must_cancel or self._cancels > 0

    def recycle(self) -> None:
        """Reset its identity, so that a stream can reuse the object for a new process."""
        self.pid.target = None
        del self.runtime.processes[self.pid]
        self._direct_inbox = self._inbox = self._events = self._listeners = self._requests = None
        self.trap_links = False
        self.bound = self.runtime.mailbox_bound

    # The mailbox: what others do
    #
    # A message goes to the listener of its topic if there is one, else to the inbox.
    # While the process has not asked for its inbox, the inbox only keeps messages for later:
    # a listener that is added late still gets those of its topic.

    def deliver(self, message: Message) -> bool:
        """Put a message into the mailbox; False if it was dropped."""
        inbox = self._direct_inbox
        if inbox is None:
            return self._route(message)
        items = inbox._items  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        if items:  # the reader has been woken for what is there already
            items.append(message)
        elif items is EMPTY or self.reading is not inbox:
            inbox.put(message)
        else:  # it waits for exactly this: the hot path, without the calls of `put` and `wake`
            items.append(message)
            if self.state == PARKED:
                self.state = READY
                scheduler = self.scheduler
                scheduler.ready.append(self)
                if not scheduler.turn_scheduled:
                    scheduler.schedule_turn()
        return True

    def _route(self, message: Message) -> bool:
        channel: MailboxChannel[Any] | None = None
        value: Any = message
        if self._listeners is not None:
            listener = self._listeners.get(message.topic)
            if listener is not None:
                channel = listener
                value = message if listener.whole_messages else message.payload
        if channel is None:
            channel = self._inbox
            if channel is None:
                channel = self._inbox = MailboxChannel(self)
                self._choose_direct_inbox()
        limit = self.bound.limit
        if limit is not None and len(channel) >= limit:
            return self._overflow(channel, value)
        channel.put(value)
        return True

    def _overflow(self, channel: "MailboxChannel[Any]", value: object) -> bool:
        full = MailboxFull(self.pid, len(channel))
        match self.bound.overflow:
            case Overflow.REJECT:
                raise full
            case Overflow.DROP_NEWEST:
                return False
            case Overflow.DROP_OLDEST:
                # Where everything shares one queue, only a message may be dropped.
                channel.drop_oldest(Message if channel is self._events else object)
                channel.put(value)
                return True
            case Overflow.EXIT:
                self.force_exit(ExitResult(None, full))
                return False

    def notify(self, event: Event) -> None:
        """Add an event; events are never refused, since each is sent only once."""
        if self._events is None:
            self._events = MailboxChannel(self)
        self._events.put(event)

    def add_request(self, request: Request[Any]) -> None:
        """Add a request; there are never more than processes that can call."""
        self.requests().put(request)

    # The mailbox: what the process itself does

    def inbox(self) -> "MailboxChannel[Message]":
        """Return the channel of all messages that have no listener."""
        if self._inbox is None:
            self._inbox = MailboxChannel(self)
            self._choose_direct_inbox()
        self._inbox.requested = True
        return self._inbox

    def events(self) -> "MailboxChannel[Event]":
        """Return the channel of events."""
        if self._events is None:
            self._events = MailboxChannel(self)
        self._events.requested = True
        return self._events

    def requests(self) -> "MailboxChannel[Request[Any]]":
        """Return the channel of requests that others made by `call`."""
        if self._requests is None:
            self._requests = MailboxChannel(self)
        return self._requests

    def reads_events(self) -> bool:
        """Whether the process has asked for its events; if not, a CANCEL does not stop it."""
        return self._events is not None and self._events.requested

    def listen(self, topic: str, *, whole_messages: bool) -> "TopicChannel":
        """Return the channel of one topic, made at the first call."""
        if self._listeners is None:
            self._listeners = {}
        listener = self._listeners.get(topic)
        if listener is None:
            listener = TopicChannel(self, topic, whole_messages=whole_messages)
            self._listeners[topic] = listener
            self._choose_direct_inbox()
            self._hand_over_kept(listener)
        elif listener.whole_messages is not whole_messages:
            raise ValueError(
                f"topic {topic!r} already has a listener with message={listener.whole_messages}; "
                "unlisten it first",
            )
        return listener

    def _hand_over_kept(self, listener: "TopicChannel") -> None:
        if self._inbox is not None and not self._inbox.requested:
            for message in self._inbox.remove(lambda kept: kept.topic == listener.topic):
                listener.put(message if listener.whole_messages else message.payload)

    def unlisten(self, channel: object) -> None:
        """Close a listener; from now on its topic goes to the inbox again."""
        listeners = self._listeners or {}
        if not isinstance(channel, TopicChannel) or listeners.get(channel.topic) is not channel:
            raise NotOwner("unlisten takes a channel that this process got from listen()")
        del listeners[channel.topic]
        self._choose_direct_inbox()
        channel.close()

    def merge_channels(self, merged: "MailboxChannel[Any] | None" = None) -> "MailboxChannel[Any]":
        """Receive messages, events and requests through one channel, in order of arrival."""
        merged = merged or MailboxChannel(self)
        merged.requested = True
        for channel in (self._events, self._requests, self._inbox):
            for value in channel.remove(lambda _: True) if channel is not None else ():
                merged.put(value)
        self._inbox = self._events = self._requests = merged
        self._choose_direct_inbox()
        return merged

    def has_merged_channels(self) -> bool:
        """Whether everything comes through one channel."""
        return self._events is not None and self._events is self._inbox

    def set_bound(self, bound: MailboxBound) -> None:
        """Set how many messages may wait."""
        self.bound = bound
        self._choose_direct_inbox()

    def _choose_direct_inbox(self) -> None:
        plain = not self._listeners and self.bound.limit is None
        self._direct_inbox = self._inbox if plain else None

    def remove_events(self, unwanted: Callable[[Event], bool]) -> None:
        """Remove the unwanted events."""
        if self._events is not None:
            self._events.remove(unwanted)

    def mailbox_length(self) -> int:
        """Return how many messages, events and requests wait to be received."""
        channels = {self._inbox, self._events, self._requests, *(self._listeners or {}).values()}
        return sum(len(channel) for channel in channels if channel is not None)

    def peek_mailbox(self, most: int) -> list[object]:
        """Return the first of what waits to be received: messages, then requests, then events."""
        listeners = (self._listeners or {}).values()
        channels = dict.fromkeys((self._inbox, *listeners, self._requests, self._events))
        first = (each.first(most) for each in channels if each is not None)
        return list(islice(chain.from_iterable(first), most))

    def close_mailbox(self) -> None:
        """Drop everything that waits: the process is dead."""
        self._direct_inbox = self._inbox = self._events = self._listeners = self._requests = None
        self.reading = None

    # The interface of an asyncio task: cancellation, which the code may catch

    def cancel(self, msg: object = None) -> bool:
        """Request a CancelledError at the next opportunity; return False if that is too late."""
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
        """Return the number of cancellation requests that were not taken back."""
        return self._cancels

    def uncancel(self) -> int:
        """Take back one cancellation request, and return how many are left."""
        if self._cancels > 0:
            self._cancels -= 1
            if self._cancels == 0:
                self.must_cancel = False
        return self._cancels

    def _take_cancelled_error(self) -> CancelledError:
        self.must_cancel = False
        message, self._cancel_message = self._cancel_message, None
        return CancelledError() if message is None else CancelledError(message)

    # The two private fields that anyio reads

    @property
    def _must_cancel(self) -> bool:
        return self.must_cancel

    @property
    def _fut_waiter(self) -> "asyncio.Future[Any] | None":
        return self.future

    # The interface of an asyncio task: the end

    def done(self) -> bool:
        """Whether it is dead."""
        return self.state == DEAD

    def cancelled(self) -> bool:
        """Return False: a process ends with a reason instead."""
        return False

    def result(self) -> Any:
        """Return the value of a dead process, or raise its exit reason."""
        error = self.exception()
        if error is not None:
            raise error
        assert self.outcome is not None
        return self.outcome.value

    def exception(self) -> BaseException | None:
        """Return the exit reason of a dead process."""
        if self.outcome is None or self.state != DEAD:
            raise InvalidStateError("the process has not ended")
        return self.outcome.error

    def add_done_callback(self, fn: Callback, /, *, context: Context | None = None) -> None:
        """Call `fn` with this process when it is dead, after all notifications are sent."""
        if self.state == DEAD:
            self.loop.call_soon(fn, self, context=context)
            return
        relations = self.get_relations()
        if relations.callbacks is None:
            relations.callbacks = []
        relations.callbacks.append((fn, context))

    def remove_done_callback(self, fn: Callback, /) -> int:
        """Remove all entries of `fn`, and return how many there were."""
        relations = self.relations
        if relations is None or relations.callbacks is None:
            return 0
        before = relations.callbacks
        relations.callbacks = [entry for entry in before if entry[0] != fn]
        return len(before) - len(relations.callbacks)

    # The interface of an asyncio task: for tools

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that it lives on."""
        return self.loop

    def get_coro(self) -> Coroutine[Any, Any, Any]:
        """Return the coroutine."""
        return self.coro

    def get_context(self) -> Context:
        """Return the context that its code runs in."""
        return self.context

    def get_name(self) -> str:
        """Return the name that tools show: the pid, unless another was set."""
        relations = self.relations
        return relations.task_name if relations and relations.task_name else str(self.pid)

    def set_name(self, value: object) -> None:
        """Set the name that tools show."""
        self.get_relations().task_name = str(value)

    def get_stack(self, *, limit: int | None = None) -> list[FrameType]:
        """Return the frames of the coroutine and of what it awaits, outermost first."""
        frames = _stack_of(self.coro)
        return frames if limit is None else frames[-limit:] if limit > 0 else []

    def print_stack(self, *, limit: int | None = None, file: TextIO | None = None) -> None:
        """Print where the process waits."""
        summary = traceback.StackSummary.extract(
            (frame, frame.f_lineno) for frame in self.get_stack(limit=limit)
        )
        traceback.print_list(summary, file=file)


def _stack_of(awaitable: object) -> list[FrameType]:
    """Return the frames from a suspended coroutine down to where it waits."""
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


def current(verb: str = "this") -> Process:
    """Return the running process.

    Raises:
        NotInProcess: The code runs outside of any process.
        NoProcess: The process was abandoned, or has ended and left this code behind.
    """
    process: Process | None = own_process(None)
    if process is None:
        raise NotInProcess(verb)
    if process.pid.target is None:
        raise NoProcess(process.pid, verb)
    return process


class RemoteProcess(Process):
    """A process that runs elsewhere, as code on this loop sees it: `hosts.node` has the proxy.

    Whether the process reads its events, or refuses to end, is known only where it runs.
    So these two requests are sent to it, where a local process can be inspected.
    """

    __slots__ = ()

    def kill(self, detail: object) -> None:
        """End it by force."""
        raise NotImplementedError

    def stop_gracefully(self, timeout: float, sender: Pid | None, why: str | None) -> None:
        """End it by CANCEL, and kill it after the timeout."""
        raise NotImplementedError


# The channels of a mailbox


class MailboxChannel(Channel[T]):
    """A channel that only its own process reads, and into which a put never waits."""

    __slots__ = ("_streak", "owner", "requested")

    def __init__(self, owner: Process) -> None:
        super().__init__()
        self.owner = owner
        self._streak = STREAK
        self.requested = False  # whether the process itself has ever asked for it

    def put(self, value: T) -> None:
        """Add a value, and wake the reader."""
        if self._items:  # the reader has been woken for what is there already
            self._items.append(value)
            return
        if self._items is EMPTY:
            self._items = deque()
        self._items.append(value)
        if self.owner.reading is self:
            self.owner.wake()
        else:
            self._wake_next()

    @types.coroutine
    def receive(self) -> Generator[Any, Any, T]:
        """Take the next value; wait for it if there is none.

        This is `Channel.receive` without its calls, for the case that is hot: the process itself
        reads (if it is RUNNING, no other code can be), and no task of it stands in line.
        """
        owner = self.owner
        if owner.state != RUNNING or self._receivers or self.closed:
            self._check_reader()
            return (yield from self._receive())
        if self._items:
            self._streak -= 1
            if self._streak:
                return self._items.popleft()
            self._streak = STREAK
            yield from owner.scheduler.yield_if_due()
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
        """Make room by dropping the oldest value of a kind."""
        for place, value in enumerate(self._items):
            if isinstance(value, kind):
                del self._items[place]
                return

    def first(self, most: int) -> list[T]:
        """Return the first values, and leave them there."""
        return list(islice(self._items, most))

    def remove(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove the unwanted values, and return them in order."""
        removed = [value for value in self._items if unwanted(value)]
        if removed:
            self._items = deque(value for value in self._items if not unwanted(value))
        return removed

    def _check_reader(self) -> None:
        if own_process(None) is not self.owner:
            raise NotOwner(f"this channel belongs to {self.owner.pid}: only that process reads it")


class TopicChannel(MailboxChannel[Any]):
    """The channel of one topic."""

    __slots__ = ("topic", "whole_messages")

    def __init__(self, owner: Process, topic: str, *, whole_messages: bool) -> None:
        super().__init__(owner)
        self.topic = topic
        self.whole_messages = whole_messages


# Relations to others


class Collector(Protocol):
    """Takes the outcome of a process before anybody else: a task, a stream."""

    callers: tuple[Pid, ...]  # whose request the process works on, nearest first

    def collect(self, process: Process, outcome: ExitResult) -> None:
        """Take the outcome; the process is dead, and its links are not notified yet."""
        ...


class Supervision(Protocol):
    """A process as the child of a supervisor.

    It is the only notification of an end that a supervisor gets: a monitor beside the link would
    report each failure twice, and a link alone does not report a normal end.
    """

    supervisor: Process  # linked to it, but notified of the end by `ended`, not by LINK_DOWN

    def ended(self, process: Process, outcome: ExitResult) -> None:
        """Note the end; the process is dead, and its monitors and links are not notified yet."""
        ...

    def describe(self) -> str:
        """Return its supervisor and its role there, for reports."""
        ...


class Relations:
    """The relations of one process; made with the first one, since most processes have few.

    Each container is made with its first member, for the same reason. They are dicts where sets
    would do: at death, relations are handled in the order in which they were made, so that a run
    is repeatable.
    """

    __slots__ = (
        "callbacks",
        "cancel_timer",
        "cleanups",
        "kill_timer",
        "links",
        "monitored_by",
        "monitors",
        "names",
        "open_requests",
        "supervision",
        "task_name",
        "tasks",
        "unawaited",
        "upgrade",
    )

    def __init__(self) -> None:
        self.links: dict[Process, None] | None = None
        self.monitored_by: dict[MonitorRef, Process] | None = None
        self.monitors: dict[MonitorRef, Pid] | None = None  # whom it monitors
        self.open_requests: dict[Request[Any], None] | None = None  # that wait for its answer
        self.tasks: dict[asyncio.Task[Any], None] | None = None  # asyncio tasks that it started
        self.names: list[str] | None = None
        self.cleanups: list[Callable[[], None]] | None = None  # called at its death, before EXIT
        self.callbacks: list[tuple[Callback, Context | None]] | None = None  # done-callbacks
        self.cancel_timer: asyncio.TimerHandle | None = None  # kills at the earliest deadline
        self.kill_timer: asyncio.TimerHandle | None = None  # repeats a kill
        self.task_name: str | None = None  # a name for tools
        self.supervision: Supervision | None = None  # by whom it is supervised
        self.upgrade: Upgrade | None = None  # the code to continue with
        self.unawaited: dict[Any, None] | None = None  # its tasks whose result was not collected

    # Removing what is not there is no error: the other side may have removed it just before.

    def add_link(self, peer: Process) -> None:
        """Add a link to a peer."""
        if self.links is None:
            self.links = {}
        self.links[peer] = None

    def remove_link(self, peer: Process) -> None:
        """Remove the link to a peer."""
        if self.links is not None:
            self.links.pop(peer, None)

    def add_monitored_by(self, ref: MonitorRef, watcher: Process) -> None:
        """Note who monitors this process."""
        if self.monitored_by is None:
            self.monitored_by = {}
        self.monitored_by[ref] = watcher

    def remove_monitored_by(self, ref: MonitorRef) -> None:
        """Forget one who monitors this process."""
        if self.monitored_by is not None:
            self.monitored_by.pop(ref, None)

    def add_monitor(self, ref: MonitorRef, pid: Pid) -> None:
        """Note whom this process monitors."""
        if self.monitors is None:
            self.monitors = {}
        self.monitors[ref] = pid

    def remove_monitor(self, ref: MonitorRef) -> None:
        """Forget one whom this process monitors."""
        if self.monitors is not None:
            self.monitors.pop(ref, None)

    def get_open_requests(self) -> "dict[Request[Any], None]":
        """Return the requests that wait for an answer, to add one."""
        if self.open_requests is None:
            self.open_requests = {}
        return self.open_requests

    def add_task(self, task: "asyncio.Task[Any]") -> None:
        """Own an asyncio task."""
        if self.tasks is None:
            self.tasks = {}
        self.tasks[task] = None

    def remove_task(self, task: "asyncio.Task[Any]") -> None:
        """No longer own an asyncio task."""
        if self.tasks is not None:
            self.tasks.pop(task, None)

    def add_name(self, name: str) -> None:
        """Note a name of this process."""
        if self.names is None:
            self.names = []
        self.names.append(name)

    def remove_name(self, name: str) -> None:
        """Forget a name of this process."""
        if self.names is not None:
            self.names.remove(name)


# What the kernel uses of a runtime


class SpawnOptions(NamedTuple):
    """How a process is started."""

    host: str | None = None
    name: str | None = None
    values: Mapping[str, Any] | None = None
    link: bool = False
    monitor: bool = False


class SpawnTarget(NamedTuple):
    """A function that can be spawned by an id, and the defaults of such a spawn."""

    function: Function
    host: str | None = None
    args: tuple[Any, ...] = ()


class Host(Protocol):
    """A place for processes that do not run on this loop."""

    def spawn(
        self,
        runtime: "ProcessRuntime",
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: SpawnOptions,
    ) -> Process:
        """Start a process there, and return its proxy here."""
        ...


class NodePort(Protocol):
    """The boundary of a runtime to other loops; `hosts.node` implements it."""

    proxies: dict[Pid, Any]

    def proxy_of(self, pid: Pid) -> Process | None:
        """Return the proxy of a process that runs elsewhere; None if it is dead."""
        ...


class ProcessRuntime(Protocol):
    """What processes and the functions on them use of `runtime.LoopRuntime`."""

    settings: Settings
    clock: Clock
    now: Callable[[], float]  # by which the age of a process is measured
    loop: asyncio.AbstractEventLoop
    scheduler: Scheduler
    deadlines: Deadlines
    mailbox_bound: MailboxBound
    host_name: str
    process_class: type[Process]
    processes: dict[Pid, Process]
    names: Names[Process]
    spawn_ids: dict[str, SpawnTarget]
    hosts: dict[str, Host]
    node: NodePort | None  # its boundary to other loops, if there are any
    root: Process | None
    stop_reason: Shutdown
    exit_waiters: list[asyncio.Future[None]]

    def host_of(self, name: str) -> Host | None:
        """Return a running host; None for the running loop itself."""
        ...

    def own(self, kind: Callable[[], T]) -> T:
        """Return the runtime's single object of a class from a higher layer."""
        ...

    def end_watch(self) -> None:
        """Name no process that holds up its loop: somebody else does, who knows more."""
        ...

    def wake_exit_waiters(self) -> None:
        """Wake everybody who waits for processes to end."""
        ...

    def interrupted(self, number: Signals) -> None:
        """Shut down gracefully, because the user or the system asks for it."""
        ...
