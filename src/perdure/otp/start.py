"""Start a process and wait until it is ready.

A plain `spawn` returns before the process has run a line.
A server is started only when its `init` is done: the starter waits for the acknowledgement,
and a start that fails is raised there, and does not kill the starter, linked or not.
"""

import types
from collections.abc import Generator
from typing import Any, NamedTuple, Protocol, Self

from perdure.base.duration import Duration, seconds, spell
from perdure.base.errors import SpawnError, StartError
from perdure.base.pid import MonitorRef, Pid
from perdure.otp.address import Via
from perdure.process.death import kill
from perdure.process.event import Message
from perdure.process.process import Process
from perdure.process.relations import reach
from perdure.process.signal import link as tie
from perdure.process.spawn import PLAIN, Function, Options, give_birth
from perdure.process.waiter import Waiter, current, current_waiter


class Ack:
    """By which a process that is being started says that it is ready."""

    __slots__ = ("_done", "_starter", "done", "linked", "value", "waiter")

    def __init__(self, starter: Process, waiter: Waiter, *, linked: bool) -> None:
        self._starter = starter
        self.waiter = waiter
        self.linked = linked
        self.done = False
        self.value: Any = None

    def ready(self, process: Process, value: Any = None) -> None:
        """Tell the starter; from now on the two share their fate, if they are to."""
        if self.done:
            return
        self.done = True
        self.value = value
        if self.linked and self._starter.pid.target is not None:
            tie(self._starter, process)
        self.waiter.wake()

    def given(self) -> Any:
        """Give what the process gets: this, or what stands for it elsewhere."""
        return self

    def close(self) -> None:
        """Wait for nothing any more."""


class NearAck(Ack):
    """The acknowledgement of a process elsewhere: it comes as a message of a topic of its own."""

    __slots__ = ("_channel", "_topic")

    def __init__(self, starter: Process, waiter: Waiter, linked: bool) -> None:  # noqa: FBT001
        super().__init__(starter, waiter, linked=linked)
        self._topic = f"@ready.{MonitorRef().number}"
        self._channel = starter.listen(self._topic, whole=False)
        self._channel.join(waiter)

    @property
    def done(self) -> bool:
        """Whether the message has come."""
        if not self._done and (found := self._channel.poll(self.waiter)) is not None and found.ok:
            self._done, self.value = True, found.value
        return self._done

    @done.setter
    def done(self, done: bool) -> None:
        self._done = done

    def given(self) -> "FarAck":
        """Give what the process acknowledges by."""
        return FarAck(self._starter.pid, self._topic, self.linked)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._channel.leave(self.waiter)
        if self._starter.pid.target is not None:
            self._starter.unlisten(self._channel)


class FarAck(NamedTuple):
    """By which a process that is being started elsewhere says that it is ready."""

    starter: Pid
    topic: str
    linked: bool

    def ready(self, process: Process, value: Any = None) -> None:
        """Tell the starter; the link goes before, so that no death after this is missed."""
        starter = reach(self.starter, process.runtime)
        if starter is None:
            return
        if self.linked:
            tie(starter, process)
        starter.deliver(Message(self.topic, value, process.pid))


async def start(
    label: object,
    body: Function,
    *args: Any,
    name: str | Via | None = None,
    link: bool = True,
    timeout: Duration = None,
    host: str | None = None,
) -> tuple[Process, Any]:
    """Start `body(ack, *args)` as a process and wait until it calls `ack.ready(process, value)`.

    Args:
        label: Names the child in errors: an id or a class.
        body: An `async def` function; its first argument is the `Ack`.
        *args: Its other arguments.
        name: A name that it is born with.
        link: Link the two when it is ready.
        timeout: How long it may take to get ready.
        host: Where it runs; the running loop by default.

    Returns:
        The process and the value that it gave; a process that ended normally without
        getting ready gives its return value instead.

    Raises:
        StartError: It failed, or was not ready in time; it is dead then.
        NameTaken: Another process has the name.
    """
    limit = seconds(timeout)
    starter = current("start")
    waiter = current_waiter()
    ack = Ack(starter, waiter, linked=link) if host is None else NearAck(starter, waiter, link)
    try:
        child = _born(starter, body, (ack.given(), *args), name, host)
        await _acknowledged(child, ack, label, limit)
    finally:
        ack.close()
    if ack.done:
        return child, ack.value
    assert child.outcome is not None
    if child.outcome.error is not None:
        raise StartError(label, child.outcome.error) from child.outcome.error
    return child, child.outcome.value


def _born(
    starter: Process,
    body: Function,
    args: tuple[Any, ...],
    name: str | Via | None,
    host: str | None,
) -> Process:
    if not isinstance(name, Via):
        return give_birth(starter.runtime, starter, body, args, Options(host, name))
    if host is not None:
        raise SpawnError("a name of a registry is known on one loop only: use plain text with host")
    name.check_free()
    child = give_birth(starter.runtime, starter, body, args, PLAIN)
    name.give(child)
    return child


@types.coroutine
def _acknowledged(
    child: Process, ack: Ack, label: object, limit: float | None
) -> Generator[Any, None, None]:
    waiter = ack.waiter  # the one that is woken: a task has a new waiter for each wait
    expired = False

    def wake(_: object) -> None:
        waiter.wake()

    def expire() -> None:
        nonlocal expired
        expired = True
        waiter.wake()

    timer = None if limit is None else child.loop.call_later(limit, expire)
    child.add_done_callback(wake)
    try:
        while not (ack.done or child.done()):
            if expired:  # it is dead, and its name is free, before the starter hears of it
                kill(child, "it was not ready in time")
            yield waiter.pause()
        if expired and not ack.done:
            raise StartError(label, TimeoutError(f"not ready within {spell(limit)}"))
    finally:
        child.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()
        if not ack.done and not child.done():  # too late, or the starter itself was interrupted
            kill(child, "its start was given up")


# What `async with` means for a handle: at the end of the block, that which it stands for stops.


class Handle(Protocol):
    """What stands for a process that can be stopped."""

    @property
    def pid(self) -> Pid:
        """The process."""
        ...

    async def stop(self) -> None:
        """End it and wait until it is dead."""
        ...


class Stoppable:
    """Is stopped at the end of an `async with`; if it is dead already, that is fine."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self: Handle, *_: object) -> None:
        if self.pid.target is not None:
            await self.stop()
