"""A process that a thread starts on a host, until the first node has started it."""

from collections.abc import Callable
from contextvars import Context
from threading import Lock
from typing import Any

from perdure.base.errors import HostBusy, MailboxFull, NameTakenAtBirth, NotPortable, SpawnError
from perdure.base.pid import Pid
from perdure.process.event import Message
from perdure.process.hosts import signals
from perdure.process.hosts.node import Node
from perdure.process.hosts.pickling import dump_call
from perdure.process.hosts.proxy import StandIn, Wire
from perdure.process.process import Process
from perdure.process.relations import check_name
from perdure.process.runtime import Runtime
from perdure.process.spawn import NO_VALUES, Function, Options, make_coroutine, relate

_MOST = 65_536  # messages that may wait for a birth


class Unborn(StandIn):
    """Stands for it, in a program with threads, where all share one pid.

    What is sent to it waits here: on two ways, later messages could overtake earlier ones.
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
                if len(self._kept) >= _MOST:
                    raise HostBusy(self.pid.host, _MOST)
                self._kept.append(message)
                return True
        return target is not None and target.deliver(message)

    def become(self, target: Process, deliver: Callable[[Message], object]) -> None:
        """Hand all on to the process, or to what leads to it, and let the pid lead there."""
        with self._lock:
            for message in self._kept:
                try:
                    deliver(message)
                except (HostBusy, MailboxFull, NotPortable) as error:
                    self.node.report_lost(f"a message to {self.pid}", error)
            self.pid.target = target


def be_born(pid: Pid, target: Process, deliver: Callable[[Message], object]) -> None:
    """Let the pid that a worker has given lead to its process, with what was sent to it so far."""
    unborn: Process | None = pid.target
    if isinstance(unborn, Unborn):
        unborn.become(target, deliver)
    else:
        pid.target = target


# A host as a worker sees it: it is started on, by way of the first node.


class FarHost:
    """Asks the first node to start processes.

    It has no answer at once, so a start that fails there is the end of the new process.
    """

    def __init__(self, name: str, node: Node, *, near: bool = False) -> None:
        """Know a host.

        Args:
            name: Its name.
            node: The node from which it is seen.
            near: Whether this very OS process is one of its workers.
        """
        self.name = name
        self._node = node
        self._near = near

    def birth(
        self,
        runtime: Runtime,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: Options,
    ) -> Process:
        """Start a process on the host; give what stands in for it here."""
        home: Any = self._node.home
        if options.name is not None:
            check_name(options.name)
            if holder := runtime.names.get(options.name):
                raise NameTakenAtBirth(options.name, holder.pid)
        if self._node.threaded:
            make_coroutine(function, args).close()
            call: Any = (function, args, inherited(parent, options))
        else:
            call = portable_call(self.name, parent, function, args, options)
        pid = Pid(f"{self.name}@{runtime.host_name}", None)
        kind = Unborn if self._node.threaded else StandIn
        process: Process = self._node.meet(pid, home, full=True, kind=kind)
        process.describe(function, args, parent)
        origin = None if parent is None else parent.pid
        wanted = signals.SpawnOn(self.name, pid, origin, options.name, call)
        if self._near:
            process = self._start_near(home, wanted, process)
        else:
            home.post(wanted)
        relate(runtime, parent, process, options._replace(name=None))
        return process

    def _start_near(self, home: Any, wanted: signals.SpawnOn, stand_in: Process) -> Process:
        """Wait where it is started: if that is here, nobody may know it by a stand-in.

        Otherwise there would be two ways to it, and ties to both.
        """
        wanted.number = next(self._node.numbers)
        if home.ask_now(wanted, wanted.number).here:
            Context().run(home.deal_with_early)  # its birth is among that
        return wanted.pid.target or stand_in


def inherited(parent: Process | None, options: Options) -> dict[str, Any]:
    """Give the values that a new process sees by `process.context()`."""
    return {**(parent.values if parent is not None else NO_VALUES), **(options.values or {})}


def portable_call(
    host: str,
    parent: Process | None,
    function: Function,
    args: tuple[Any, ...],
    options: Options,
) -> bytes:
    """Pack what a process runs, having checked that it could be started here.

    Raises:
        SpawnError: It cannot be started, or cannot cross.
    """
    make_coroutine(function, args).close()
    try:
        return dump_call(function, args, inherited(parent, options))
    except NotPortable as error:
        raise SpawnError(f"cannot start a process on host {host!r}: {error}") from error
