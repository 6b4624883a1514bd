"""The mailbox: everything that a process receives, sorted into its channels.

A message goes to the listener of its topic if there is one, else to the inbox.
While the process has not asked for its inbox, the inbox only keeps messages for later:
a listener that comes late still gets those of its topic.
"""

import types
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from perdure.base.errors import ChannelClosed, MailboxFull, NotOwner
from perdure.base.settings import Overflow
from perdure.process.channel import NOTHING, Channel
from perdure.process.current import own_process
from perdure.process.event import Event, ExitResult, Message
from perdure.process.scheduler import STREAK, Scheduler
from perdure.process.tasklike import PARKED, READY, RUNNING, TaskLike
from perdure.process.waiter import PARK

if TYPE_CHECKING:
    from perdure.process.request import Request

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
