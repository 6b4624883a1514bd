"""A host as seen from a worker: processes are started on it through the root node.

`spawn` returns at once, with a pid that the worker has made. The root node starts the process
later, so a start that fails there is the end of the new process, and not an error of `spawn`.
Until then, messages to the pid must neither get lost nor overtake each other.
"""

from collections.abc import Callable
from contextvars import Context
from threading import Lock
from typing import Any

from perdure.base.errors import HostBusy, MailboxFull, NotPortable, SpawnError
from perdure.base.pid import Pid
from perdure.process.event import Message
from perdure.process.hosts.node import Node, Proxy, Wire
from perdure.process.hosts.pickling import dump_call
from perdure.process.hosts.signals import SpawnOnHostSignal
from perdure.process.lifecycle import (
    NO_VALUES,
    apply_options,
    check_name_is_free,
    make_coroutine,
)
from perdure.process.process import Function, Process, ProcessRuntime, SpawnOptions

_MAX_KEPT = 65_536  # messages that may wait for the start of a process


class RemoteHost:
    """Asks the root node to start processes on a host."""

    def __init__(self, name: str, node: Node, *, is_own: bool = False) -> None:
        """Refer to a host.

        Args:
            name: Its name.
            node: The node that asks.
            is_own: Whether this very OS process is one of its workers.
        """
        self.name = name
        self._node = node
        self._is_own = is_own

    def spawn(
        self,
        runtime: ProcessRuntime,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: SpawnOptions,
    ) -> Process:
        """Start a process on the host, and return its proxy here."""
        home: Any = self._node.home
        check_name_is_free(runtime, options.name)
        if self._node.threaded:
            make_coroutine(function, args).close()
            call: Any = (function, args, inherited_values(parent, options))
        else:
            call = pickled_call(self.name, parent, function, args, options)
        pid = Pid(f"{self.name}@{runtime.host_name}", None)
        kind = PendingSpawn if self._node.threaded else Proxy
        process: Process = self._node.add_proxy(pid, home, full=True, kind=kind)
        process.describe(function, args, parent)
        origin = None if parent is None else parent.pid
        wanted = SpawnOnHostSignal(self.name, pid, origin, options.name, call)
        if self._is_own:
            process = self._spawn_on_own_host(home, wanted, process)
        else:
            home.post(wanted)
        apply_options(runtime, parent, process, options._replace(name=None))
        return process

    def _spawn_on_own_host(self, home: Any, wanted: SpawnOnHostSignal, proxy: Process) -> Process:
        """Block this loop until it is known which worker gets the process, and return the process.

        If it is this one, nobody may know the process by a proxy: there would be two paths to it,
        and relations to both.
        """
        wanted.number = next(self._node.numbers)
        if home.ask_now(wanted, wanted.number).here:
            Context().run(home.handle_early)  # its start is among that
        return wanted.pid.target or proxy


class PendingSpawn(Proxy):
    """A process that a thread starts on a host, until the root node has started it.

    All threads share its pid, so others may send to it already. Their messages wait here: on two
    paths, later messages could overtake earlier ones.
    """

    __slots__ = ("_kept", "_lock")

    def __init__(self, node: Node, pid: Pid, wire: Wire, *, full: bool) -> None:
        super().__init__(node, pid, wire, full=full)
        self._lock = Lock()
        self._kept: list[Message] = []

    def deliver(self, message: Message) -> bool:
        with self._lock:
            target: Process | None = self.pid.target
            if target is self:
                if len(self._kept) >= _MAX_KEPT:
                    raise HostBusy(self.pid.host, _MAX_KEPT)
                self._kept.append(message)
                return True
        return target is not None and target.deliver(message)

    def started(self, target: Process, deliver: Callable[[Message], object]) -> None:
        """Forward all messages to the process or its proxy, and let the pid resolve to it."""
        with self._lock:
            for message in self._kept:
                try:
                    deliver(message)
                except (HostBusy, MailboxFull, NotPortable) as error:
                    self.node.report_lost(f"a message to {self.pid}", error)
            self.pid.target = target


def set_target(pid: Pid, target: Process, deliver: Callable[[Message], object]) -> None:
    """Let a pid that a worker has made resolve to its process, and forward the messages so far."""
    pending: Process | None = pid.target
    if isinstance(pending, PendingSpawn):
        pending.started(target, deliver)
    else:
        pid.target = target


def inherited_values(parent: Process | None, options: SpawnOptions) -> dict[str, Any]:
    """Return the values that a new process sees by `process.context()`."""
    return {**(parent.values if parent is not None else NO_VALUES), **(options.values or {})}


def pickled_call(
    host: str,
    parent: Process | None,
    function: Function,
    args: tuple[Any, ...],
    options: SpawnOptions,
) -> bytes:
    """Return the pickled call of a process, after checking that it could be started here.

    Raises:
        SpawnError: It cannot be started, or cannot be pickled.
    """
    make_coroutine(function, args).close()
    try:
        return dump_call(function, args, inherited_values(parent, options))
    except NotPortable as error:
        raise SpawnError(f"cannot start a process on host {host!r}: {error}") from error
