"""Channels, values from one process to another in order, and `select`.

A channel is also a *case* of `select`, as is `channel.case_send(value)`.
The rule that keeps order: receivers queue up, only the first one that can receive something may
take it, and every change wakes that one.

A send that must wait is an *offer* in the channel, and the receiver takes the value out of it.
A value is therefore always in exactly one place, the offer or the channel or the receiver, and a
sender or a receiver that is cancelled loses nothing.

Channels, cases and `select` call each other's underscore methods: inside of this file and its
subclasses they are one implementation, and not part of the public API.
"""

# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false

import types
from collections import deque
from collections.abc import Collection, Generator, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from perdure.base.errors import ChannelClosed
from perdure.base.foreign_name import ForeignName
from perdure.process.waiter import NO_WAITER, Waiter, current_waiter, own_process

T = TypeVar("T")

# An empty deque takes 760 bytes, a list 56, and most channels have neither values nor a line:
# each is made when it is first needed.
EMPTY: Any = ()


class Selected(NamedTuple):
    """The result of a `select`.

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
    """One of the operations that a `select` waits for."""

    def _poll(self, waiter: Waiter | None) -> Selected | None:
        """Do the operation if this waiter can now, and return the result; None otherwise."""
        ...

    def _join(self, waiter: Waiter) -> None:
        """Join the queue of waiters."""
        ...

    def _leave(self, waiter: Waiter) -> None:
        """Leave the queue of waiters, and wake the next one if there is something for it."""
        ...


class Channel(Generic[T]):
    """A queue of values with a capacity.

    With capacity 0 a send waits for its receiver; otherwise it waits only while the channel is
    full.
    `receive` and `async for` take values in order; several receivers are served in the order
    in which they came.
    """

    __slots__ = (
        "__weakref__",
        "_committed",
        "_items",
        "_receivers",
        "_senders",
        "capacity",
        "closed",
    )

    case_receive: ClassVar[Any] = ForeignName("await select(channel, …)")

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = max(0, capacity)
        self.closed = False
        self._items: deque[T] = EMPTY
        self._receivers: list[Waiter] = EMPTY
        self._committed = 0  # how many of them wait for nothing else
        self._senders: list[SendCase[T]] = EMPTY

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
        if self._can_take(None):
            return self._take(None)
        waiter = current_waiter()
        self._join(waiter)
        self._committed += 1
        try:
            while True:
                yield waiter.pause()
                if self._can_take(waiter):
                    return self._take(waiter)
        finally:
            self._committed -= 1
            self._leave(waiter)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except ChannelClosed:
            raise StopAsyncIteration from None

    def _has_for(self, waiter: Waiter | None) -> bool:
        """Whether there is anything for a receiver; its own offer does not count."""
        if self._items or self.closed:
            return True
        return any(offer.waiter is not waiter for offer in self._senders)

    def _can_take(self, waiter: Waiter | None) -> bool:
        """Whether a receiver may take now: there is something, and nobody before it can take it."""
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
                self._items.append(self._senders[0]._accept())  # it waited longest for the place
            return value
        for offer in self._senders:
            if offer.waiter is not waiter:
                return offer._accept()
        raise ChannelClosed

    def _wake_next(self) -> None:
        """Wake the first waiter in the queue that can receive something."""
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
        """Close the channel: nothing more can be sent; what is in it can still be received."""
        self.closed = True
        offers, self._senders = self._senders, EMPTY
        for offer in offers:
            offer.waiter.wake()
        for waiter in tuple(self._receivers):
            waiter.wake()

    def _try_send(self, value: T) -> bool:
        """Accept a value if possible at once; waiting senders come first. Return whether it was."""
        if self.closed:
            raise ChannelClosed("cannot send: the channel is closed")
        # A receiver that waits for this channel alone will take a value: it counts as room.
        if self._senders or len(self._items) >= self.capacity + self._committed:
            return False
        if self._items is EMPTY:
            self._items = deque()
        self._items.append(value)
        self._wake_next()
        return True

    def _add_offer(self, offer: "SendCase[T]") -> None:
        """Queue a sender."""
        if self._senders is EMPTY:
            self._senders = []
        self._senders.append(offer)
        self._wake_next()  # a select may stand in line, and takes when it runs

    def _remove_offer(self, offer: "SendCase[T]") -> None:
        """Remove a sender that no longer waits."""
        if offer in self._senders:
            self._senders.remove(offer)

    # As a case of `select`

    def case_send(self, value: T) -> "SendCase[T]":
        """Return the case "send this value" of a `select`."""
        return SendCase(self, value)

    def _check_reader(self) -> None:
        """Raise if the running code may not receive here; from a plain channel anybody may."""

    def _poll(self, waiter: Waiter | None) -> Selected | None:
        if not self._can_take(waiter):
            return None
        try:
            return Selected(self, self._take(waiter), True)
        except ChannelClosed:
            return Selected(self, None, False)

    def _join(self, waiter: Waiter) -> None:
        if self._receivers is EMPTY:
            self._receivers = []
        self._receivers.append(waiter)

    def _leave(self, waiter: Waiter) -> None:
        if waiter in self._receivers:
            self._receivers.remove(waiter)
        if self._receivers:
            self._wake_next()


class SendCase(Generic[T]):
    """The case "send this value": the offer that waits in the channel's line."""

    __slots__ = ("channel", "siblings", "taken", "value", "waiter")

    def __init__(self, channel: Channel[T], value: T) -> None:
        self.channel = channel
        self.value = value
        self.taken = False
        self.waiter: Waiter = NO_WAITER
        # The offers of the same select. When one is taken the others are void at once: before
        # the select itself runs, a second receiver may have looked.
        self.siblings: Collection[SendCase[Any]] = ()

    def _poll(self, waiter: Waiter | None) -> Selected | None:  # noqa: ARG002 - same for each
        return self._selected() if self.channel._try_send(self.value) else None

    def _join(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.taken = False
        self.channel._add_offer(self)

    def _leave(self, waiter: Waiter) -> None:  # noqa: ARG002
        self.channel._remove_offer(self)

    def _accept(self) -> T:
        """Take the offered value; the receiver calls this."""
        self.taken = True
        for offer in self.siblings or (self,):
            offer._leave(offer.waiter)
        self.waiter.wake()
        return self.value

    def _selected(self) -> Selected:
        return Selected(self.channel, self.value, True)


def wait_for_first(cases: Sequence[Case]) -> Generator[Any, None, Selected]:
    """Wait until a case is ready, and do only that one; the first, if several are."""
    if (selected := _first_ready(cases, None)) is not None:
        return selected
    waiter = current_waiter()
    offers: list[SendCase[Any]] = [case for case in cases if isinstance(case, SendCase)]
    for offer in offers:
        offer.siblings = offers
    for case in cases:
        case._join(waiter)
    try:
        while True:
            yield waiter.pause()
            selected = _taken(offers) or _first_ready(cases, waiter)
            if selected is not None:
                return selected
    finally:
        for case in cases:
            case._leave(waiter)


def _taken(offers: Sequence[SendCase[Any]]) -> Selected | None:
    """Return the result of an offer that a receiver has taken, which decides the select."""
    for offer in offers:
        if offer.taken:
            return offer._selected()
    return None


def _first_ready(cases: Sequence[Case], waiter: Waiter | None) -> Selected | None:
    """Do the first case that is ready now, and return its result; None if none is."""
    for case in cases:
        if (selected := case._poll(waiter)) is not None:
            return selected
    return None


@types.coroutine
def select(
    *cases: Channel[Any] | SendCase[Any], default: bool = False
) -> Generator[Any, None, Selected]:
    """Wait until one of the cases is ready, and do only that one.

    A channel means "receive from it", `channel.case_send(value)` means "send to it".
    If several are ready, the first one listed is done.

    Args:
        *cases: What to wait for.
        default: If no case is ready, do not wait: return a result with `.default` True.

    Returns:
        The channel, the value, and False instead of True if that channel is closed and empty.

    Raises:
        ChannelClosed: A send case waits on a channel that is closed.
    """
    for case in cases:
        if isinstance(case, Channel):
            case._check_reader()
        elif not isinstance(case, SendCase):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"select waits for channels and channel.case_send(value), not for {case!r}"
            )
    process = own_process(None)
    if process is not None and process.scheduler.streak_is_over():
        # Before anything is taken, so that nothing is lost if the process is interrupted here.
        yield from process.scheduler.yield_if_due()
    if default:
        return _first_ready(cases, None) or Selected(None, None, True)
    if not cases:
        raise ValueError("select needs at least one case, or it would wait for ever")
    return (yield from wait_for_first(cases))


# For the layers above, which wait for a channel among other things, in a loop of their own


def add_receiver(channel: Channel[Any], waiter: Waiter) -> None:
    """Wake a waiter when it may take a value, until `remove_receiver`."""
    channel._join(waiter)


def poll_channel(channel: Channel[Any], waiter: Waiter) -> Selected | None:
    """Take a value if this waiter may take one now; return None otherwise."""
    return channel._poll(waiter)


def remove_receiver(channel: Channel[Any], waiter: Waiter) -> None:
    """Undo `add_receiver`."""
    channel._leave(waiter)


def try_send(channel: Channel[T], value: T) -> bool:
    """Send a value if possible at once; return whether it was sent."""
    return channel._try_send(value)
