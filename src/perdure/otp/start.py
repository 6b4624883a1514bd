"""Start a process and wait until it is ready.

A plain `spawn` returns before the process has run a line. A server counts as started only when
its `init` is done: its starter waits for an acknowledgement. A start that fails is raised there,
and does not kill the starter, linked or not; so the link is made with the acknowledgement, and
not at the spawn. Only a supervisor links at the spawn: it traps links anyway, and a child must
never run without a process that stops it.
"""

import types
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, Self

from perdure.base.duration import Duration, seconds, spell
from perdure.base.errors import SpawnError, StartError
from perdure.base.pid import MonitorRef, Pid
from perdure.otp.address import Via
from perdure.process.channel import add_receiver, poll_channel, remove_receiver
from perdure.process.event import Message
from perdure.process.lifecycle import PLAIN, kill, spawn_process
from perdure.process.process import Function, Process, SpawnOptions, current
from perdure.process.relations import link as link_processes
from perdure.process.relations import resolve
from perdure.process.waiter import Waiter, current_waiter


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
        name: A name that it has from its start.
        link: Link the two when it is ready.
        timeout: How long it may take to get ready.
        host: Where it runs; the running loop by default.

    Returns:
        The process and the value that it passed to `ready`; if it ended normally without
        getting ready, its return value instead.

    Raises:
        StartError: It failed, or was not ready in time; it is dead then.
        NameTaken: Another process has the name.
    """
    limit = seconds(timeout)
    starter = current("start")
    waiter = current_waiter()
    ack: Ack
    if host is None:
        ack = Ack(starter, waiter.wake, linked=link)
    else:
        ack = RemoteAck(starter, waiter, linked=link)
    try:
        child = begin(starter, body, (ack.handed_over(), *args), name, host)
        await _acknowledged(child, ack, waiter, label, limit)
    finally:
        ack.close()
    if ack.done:
        return child, ack.value
    assert child.outcome is not None
    if child.outcome.error is not None:
        raise StartError(label, child.outcome.error) from child.outcome.error
    return child, child.outcome.value


def begin(
    starter: Process,
    body: Function,
    args: tuple[Any, ...],
    name: str | Via | None,
    host: str | None = None,
) -> Process:
    """Spawn a process that will acknowledge its start, and return it."""
    if not isinstance(name, Via):
        options = PLAIN if host is None and name is None else SpawnOptions(host, name)
        return spawn_process(starter.runtime, starter, body, args, options)
    if host is not None:
        raise SpawnError(
            "a registry's names are known on one loop only: use plain text as the name with host="
        )
    name.check_free()
    child = spawn_process(starter.runtime, starter, body, args, PLAIN)
    name.give(child)
    return child


class Ack:
    """The acknowledgement by which a starting process says that it is ready."""

    __slots__ = ("_done", "_starter", "_wake", "linked", "value")

    def __init__(self, starter: Process, wake: Callable[[], object], *, linked: bool) -> None:
        self._starter = starter
        self._wake = wake
        self._done = False
        self.linked = linked
        self.value: Any = None

    @property
    def done(self) -> bool:
        """Whether it is ready."""
        return self._done

    def ready(self, process: Process, value: Any = None) -> None:
        """Tell the starter; from now on the two are linked, if a link was requested."""
        if self._done:
            return
        self._done = True
        self.value = value
        if self.linked and self._starter.pid.target is not None:
            links = self._starter.relations and self._starter.relations.links
            if not links or process not in links:
                link_processes(self._starter, process)
        self._wake()

    def handed_over(self) -> Any:
        """Return the object that the process gets: this one, or a substitute on another loop."""
        return self

    def close(self) -> None:
        """Stop waiting."""


class RemoteAck(Ack):
    """The acknowledgement of a process on another loop: a message with its own topic."""

    __slots__ = ("_channel", "_topic", "_waiter")

    def __init__(self, starter: Process, waiter: Waiter, *, linked: bool) -> None:
        super().__init__(starter, waiter.wake, linked=linked)
        self._topic = f"@ready.{MonitorRef().number}"
        self._channel = starter.listen(self._topic, whole_messages=False)
        add_receiver(self._channel, waiter)
        self._waiter = waiter

    @property
    def done(self) -> bool:
        if not self._done:
            found = poll_channel(self._channel, self._waiter)
            if found is not None and found.ok:
                self._done, self.value = True, found.value
        return self._done

    def handed_over(self) -> "AckSender":
        return AckSender(self._starter.pid, self._topic, self.linked)

    def close(self) -> None:
        remove_receiver(self._channel, self._waiter)
        if self._starter.pid.target is not None:
            self._starter.unlisten(self._channel)


class AckSender(NamedTuple):
    """Sends the acknowledgement of a process on another loop."""

    starter: Pid
    topic: str
    linked: bool

    def ready(self, process: Process, value: Any = None) -> None:
        """Tell the starter; the link is made before, so that no later death is missed."""
        starter = resolve(self.starter, process.runtime)
        if starter is None:
            return
        if self.linked:
            link_processes(starter, process)
        starter.deliver(Message(self.topic, value, process.pid))


@types.coroutine
def _acknowledged(
    child: Process, ack: Ack, waiter: Waiter, label: object, limit: float | None
) -> Generator[Any, None, None]:
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
            if expired:  # it is dead, and its name is free, before the starter learns of it
                kill(child, "it was not ready in time")
            yield waiter.pause()
        if expired and not ack.done:
            raise StartError(label, TimeoutError(f"not ready within {spell(limit)}"))
    finally:
        child.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()
        if not ack.done and not child.done():  # too late, or the starter itself was interrupted
            kill(child, "its start was aborted")


# What `async with` means for a handle: at the end of the block, its process is stopped.


class HasStop(Protocol):
    """A handle to a process that can be stopped."""

    @property
    def pid(self) -> Pid:
        """The process."""
        ...

    async def stop(self) -> None:
        """Stop it and wait until it is dead."""
        ...


class Stoppable:
    """A handle that is stopped at the end of an `async with`, if it is still alive."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self: HasStop, *_: object) -> None:
        if self.pid.target is not None:
            await self.stop()
