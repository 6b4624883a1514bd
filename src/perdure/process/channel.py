"""Channels, values from one process to another in order, and `select`.

A channel is also a *case* of `select`: anything with `poll`, `join` and `leave` is.
The rule that keeps order: receivers stand in a line, only the first for whom there is something
may take, and whoever changes anything wakes that one.
"""

import types
from collections import deque
from collections.abc import Collection, Generator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from perdure.base.errors import ChannelClosed
from perdure.process.waiter import NOBODY, Waiter, current_waiter, own_process

T = TypeVar("T")

# An empty deque weighs 760 bytes, a list 56, and most channels have neither values nor a line:
# each is made when it is needed.
NOTHING: Any = ()


class Selected(NamedTuple):
    """What `select` chose.

    `ok` is False if the channel is closed and empty; then `value` is None.
    """

    channel: "Channel[Any] | None"
    value: Any
    ok: bool

    @property
    def default(self) -> bool:
        """True when nothing was ready and `default=True` was given."""
        return self.channel is None


class Case(Protocol):
    """One of the things that a `select` waits for."""

    def poll(self, waiter: Waiter | None) -> Selected | None:
        """Do it now if it is possible for this waiter, else do nothing."""
        ...

    def join(self, waiter: Waiter) -> None:
        """Stand in line."""
        ...

    def leave(self, waiter: Waiter) -> None:
        """Leave the line, and pass on what is there for the next."""
        ...


class Channel(Generic[T]):
    """A line of values with a capacity.

    With capacity 0 a send waits for its receiver; otherwise it waits only while the channel is
    full.
    `receive` and `async for` take values in order; several receivers are served in the order
    in which they came.
    """

    __slots__ = (
        "__weakref__",
        "_certain",
        "_items",
        "_receivers",
        "_senders",
        "capacity",
        "closed",
    )

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = max(0, capacity)
        self.closed = False
        self._items: deque[T] = NOTHING
        self._receivers: list[Waiter] = NOTHING
        self._certain = 0  # those of them that wait for nothing else
        self._senders: list[SendCase[T]] = NOTHING

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._items)} values"
        return f"<{type(self).__name__} {state}>"

    # Receiving

    @types.coroutine
    def receive(self) -> Generator[Any, None, T]:
        """Take the next value; wait for it if there is none.

        Raises:
            ChannelClosed: the channel is closed and empty.
        """
        return (yield from self._receive())

    def _receive(self) -> Generator[Any, None, T]:
        if self._turn_of(None):
            return self._take(None)
        waiter = current_waiter()
        self.join(waiter)
        self._certain += 1
        try:
            while True:
                yield waiter.pause()
                if self._turn_of(waiter):
                    return self._take(waiter)
        finally:
            self._certain -= 1
            self.leave(waiter)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except ChannelClosed:
            raise StopAsyncIteration from None

    def _has_for(self, waiter: Waiter | None) -> bool:
        """Tell whether there is anything for a receiver; its own offer is nothing for it."""
        if self._items or self.closed:
            return True
        return any(offer.waiter is not waiter for offer in self._senders)

    def _turn_of(self, waiter: Waiter | None) -> bool:
        """Tell whether a receiver may take now: nobody before it in the line can."""
        for other in self._receivers:
            if other is waiter:
                break
            if self._has_for(other):
                return False
        return self._has_for(waiter)

    def _take(self, waiter: Waiter | None) -> T:
        if self._items:
            value = self._items.popleft()
            if self._senders and len(self._items) < self.capacity:
                self._items.append(self._senders[0].accept())  # it waited longest for the place
            return value
        for offer in self._senders:
            if offer.waiter is not waiter:
                return offer.accept()
        raise ChannelClosed

    def _wake_next(self) -> None:
        """Wake the first in the line for whom there is something."""
        for waiter in self._receivers:
            if self._has_for(waiter):
                waiter.wake()
                return

    # Sending

    @types.coroutine
    def send(self, value: T) -> Generator[Any, None, None]:
        """Send a value; wait for room, or for the receiver if the capacity is 0.

        Raises:
            ChannelClosed: the channel is closed, or is closed while this waits.
        """
        yield from wait_for_first((SendCase(self, value),))

    def close(self) -> None:
        """Close it: nothing more can be sent, what is in it can still be received."""
        self.closed = True
        offers, self._senders = self._senders, NOTHING
        for offer in offers:
            offer.waiter.wake()
        for waiter in tuple(self._receivers):
            waiter.wake()

    def accepts(self, value: T) -> bool:
        """Take a value over if that is possible at once; those who wait to send come first."""
        if self.closed:
            raise ChannelClosed("cannot send: the channel is closed")
        # A receiver that waits for this channel alone will take one, so it is room for one.
        if self._senders or len(self._items) >= self.capacity + self._certain:
            return False
        if self._items is NOTHING:
            self._items = deque()
        self._items.append(value)
        self._wake_next()
        return True

    def add_offer(self, offer: "SendCase[T]") -> None:
        """Let a sender wait."""
        if self._senders is NOTHING:
            self._senders = []
        self._senders.append(offer)
        self._wake_next()  # a select may stand in the line, which takes when it runs

    def drop_offer(self, offer: "SendCase[T]") -> None:
        """Forget a sender that waits no more."""
        if offer in self._senders:
            self._senders.remove(offer)

    # As a case of `select`

    def case_receive(self) -> Self:
        """Give the case "receive from this channel"; the channel itself means the same."""
        return self

    def case_send(self, value: T) -> "SendCase[T]":
        """Give the case "send this value"."""
        return SendCase(self, value)

    def check_reader(self) -> None:
        """Refuse whoever may not receive here; anybody may from a plain channel."""

    def poll(self, waiter: Waiter | None) -> Selected | None:
        if not self._turn_of(waiter):
            return None
        try:
            return Selected(self, self._take(waiter), True)
        except ChannelClosed:
            return Selected(self, None, False)

    def join(self, waiter: Waiter) -> None:
        if self._receivers is NOTHING:
            self._receivers = []
        self._receivers.append(waiter)

    def leave(self, waiter: Waiter) -> None:
        if waiter in self._receivers:
            self._receivers.remove(waiter)
        if self._receivers:
            self._wake_next()


class SendCase(Generic[T]):
    """The case "send this value", and the offer that waits in the channel's line."""

    __slots__ = ("channel", "siblings", "taken", "value", "waiter")

    def __init__(self, channel: Channel[T], value: T) -> None:
        self.channel = channel
        self.value = value
        self.taken = False
        self.waiter: Waiter = NOBODY
        # The offers of the same select: when one is taken, the others are void at once,
        # since the select itself may run only after a second receiver has looked.
        self.siblings: Collection[SendCase[Any]] = ()

    def poll(self, waiter: Waiter | None) -> Selected | None:  # noqa: ARG002 - same for each
        return self.selected() if self.channel.accepts(self.value) else None

    def join(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.taken = False
        self.channel.add_offer(self)

    def leave(self, waiter: Waiter) -> None:  # noqa: ARG002
        self.channel.drop_offer(self)

    def accept(self) -> T:
        """Take the offered value: the receiver calls this."""
        self.taken = True
        for offer in self.siblings or (self,):
            offer.leave(offer.waiter)
        self.waiter.wake()
        return self.value

    def selected(self) -> Selected:
        return Selected(self.channel, self.value, True)


def wait_for_first(cases: Sequence[Case]) -> Generator[Any, None, Selected]:
    """Wait until the first of the cases, in written order, can be done; do it and only it."""
    if (selected := first_ready(cases, None)) is not None:
        return selected
    waiter = current_waiter()
    offers: list[SendCase[Any]] = [case for case in cases if isinstance(case, SendCase)]
    for offer in offers:
        offer.siblings = offers
    for case in cases:
        case.join(waiter)
    try:
        while True:
            yield waiter.pause()
            selected = _taken(offers) or first_ready(cases, waiter)
            if selected is not None:
                return selected
    finally:
        for case in cases:
            case.leave(waiter)


def _taken(offers: Sequence[SendCase[Any]]) -> Selected | None:
    """Give the offer that a receiver has taken: then all is decided."""
    for offer in offers:
        if offer.taken:
            return offer.selected()
    return None


def first_ready(cases: Sequence[Case], waiter: Waiter | None) -> Selected | None:
    """Do the first case that can be done now."""
    for case in cases:
        if (selected := case.poll(waiter)) is not None:
            return selected
    return None


@types.coroutine
def select(
    *cases: Channel[Any] | SendCase[Any], default: bool = False
) -> Generator[Any, None, Selected]:
    """Wait until one of the cases can be done, and do only that one.

    A channel means "receive from it", `channel.case_send(value)` means "send to it".
    If several can be done, the first in the written order is.

    Args:
        *cases: What to wait for.
        default: If nothing can be done now, do not wait: give a result with `.default` True.

    Returns:
        The channel, the value, and False instead of True if that channel is closed and empty.

    Raises:
        ChannelClosed: A send case waits on a channel that is closed.
    """
    for case in cases:
        if isinstance(case, Channel):
            case.check_reader()
        elif not isinstance(case, SendCase):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"select waits for channels and channel.case_send(value), not for {case!r}"
            )
    process = own_process(None)
    if process is not None and process.scheduler.tires():
        # Before anything is taken, so that nothing is lost if this is where it ends.
        yield from process.scheduler.breathe()
    if default:
        return first_ready(cases, None) or Selected(None, None, True)
    if not cases:
        raise ValueError("select needs at least one case, or it would wait for ever")
    return (yield from wait_for_first(cases))
