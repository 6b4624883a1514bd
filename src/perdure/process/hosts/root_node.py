"""The node of the program's first loop: it knows all names, hosts and workers."""

import logging
from collections.abc import Callable
from typing import Any

from perdure.base.errors import SpawnError
from perdure.base.pid import Pid
from perdure.process.event import ExitResult
from perdure.process.hosts import signals
from perdure.process.hosts.node import Node
from perdure.process.hosts.pickling import load_call
from perdure.process.hosts.proxy import StandIn, Wire
from perdure.process.hosts.wire import Hub
from perdure.process.process import Process
from perdure.process.relations import reach, register, unregister
from perdure.process.runtime import Runtime
from perdure.process.spawn import Options

# Signals that may wait on the way to another thread of this program.
_QUEUE_SIZE = 65_536


class FirstNode(Node):
    """The authority on names, and the way to every host."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.hub = Hub(_QUEUE_SIZE)
        self.hub.join(self)
        self.workers: dict[Wire, Any] = {}
        self._followers: list[Wire] = []  # OS processes, which have a copy of the names
        runtime.names.on_change = self._name_changed
        runtime.at_close(self._reap_workers)
        self.handlers |= {
            signals.SpawnOn: self._on_spawn_on,
            signals.Claim: self._on_claim,
            signals.Unclaim: self._on_unclaim,
            signals.NameGone: self._on_name_gone,
            signals.NameGiven: self._on_name_given,
            signals.Log: _on_log,
            signals.Ready: self._to_worker(lambda worker, _: worker.on_ready()),
            signals.Stopped: self._to_worker(lambda worker, _: worker.on_stopped()),
            signals.Pong: self._to_worker(lambda worker, told: worker.on_pong(told.number)),
        }

    def _to_worker(self, act: Callable[[Any, Any], object]) -> Callable[[Wire, Any], None]:
        def handle(wire: Wire, told: Any) -> None:
            worker = self.workers.get(wire)
            if worker is not None:
                act(worker, told)

        return handle

    def _reap_workers(self) -> None:
        """Leave nothing behind, also of hosts that were killed a moment ago."""
        for worker in tuple(self.workers.values()):
            worker.reap()

    def _on_spawn_on(self, wire: Wire, told: signals.SpawnOn) -> None:
        """Start a process for another node, which has given it its pid already."""
        try:
            function, args, values = load_call(told.call, wire)
            host: Any = self.runtime.host_of(told.host)
            parent = None if told.parent is None else reach(told.parent, self.runtime)
            options = Options(told.host, told.name, values)
            process = host.birth(self.runtime, parent, function, args, options, pid=told.pid)
        except Exception as error:  # noqa: BLE001 - told to whoever is tied to the pid
            wire.post(signals.Exited(told.pid, ExitResult(None, error)))
            here = False
        else:
            self.observe(process, wire, full=True)
            here = process.wire is wire
        if told.number:
            wire.post(signals.Placed(told.number, here))

    # Names

    def follow(self, wire: Wire) -> dict[str, Pid]:
        """Tell an OS process of all changes from now on; give the names of this moment."""
        self._followers.append(wire)
        return {name: holder.pid for name, holder in self.runtime.names.items()}

    def unfollow(self, wire: Wire) -> None:
        """Tell it no more."""
        if wire in self._followers:
            self._followers.remove(wire)

    def name_newborn(self, name: str, stand_in: StandIn) -> None:
        """Give a name to a process on its way to an OS worker, which gets both at once.

        Were it told of the name before, it would take the process for one that lives elsewhere.
        """
        self._followers.remove(stand_in.wire)
        try:
            register(self.runtime.names, name, stand_in)
        finally:
            self._followers.append(stand_in.wire)

    def _name_changed(self, name: str, holder: Process, given: bool) -> None:  # noqa: FBT001
        told = (signals.NameGiven if given else signals.NameGone)(name, holder.pid)
        if self.is_outside():
            self.take_in(told)
        else:
            self._broadcast(told)

    def _broadcast(self, told: signals.Signal) -> None:
        for wire in self._followers:
            wire.post(told)

    def _on_claim(self, wire: Wire, told: signals.Claim) -> None:
        process = reach(told.pid, self.runtime)
        holder = None if process is None else self.runtime.names.claim(told.name, process)
        if holder is None and process is not None:
            process.tie().add_name(told.name)
        wire.post(signals.Claimed(told.number, None if holder is None else holder.pid))

    def _on_unclaim(self, wire: Wire, told: signals.Unclaim) -> None:
        holder = self.runtime.names.get(told.name)
        unregister(self.runtime.names, told.name)
        wire.post(signals.Claimed(told.number, None if holder is None else holder.pid))

    def _on_name_gone(self, wire: Wire | None, told: signals.NameGone) -> None:
        if wire is None:  # of a thread that shares our table
            self._broadcast(told)
            return
        holder = self.runtime.names.get(told.name)
        if holder is not None and holder.pid is told.pid:
            unregister(self.runtime.names, told.name)

    def _on_name_given(self, _: Wire | None, told: signals.NameGiven) -> None:
        if told.pid.target is not None:
            self._broadcast(told)

    def tell_hosts(self) -> None:
        """Tell the OS processes which hosts run."""
        self._broadcast(signals.Hosts(list(self.runtime.hosts)))


def first_node_of(runtime: Runtime) -> FirstNode:
    """Give the node of the program's first loop, made with its first host.

    Raises:
        SpawnError: The runtime is that of a worker, where no host can be started.
    """
    node: object = runtime.node
    if node is None:
        return FirstNode(runtime)
    if not isinstance(node, FirstNode):
        raise SpawnError("a host is started on the first loop of the program, not on a worker")
    return node


def _on_log(_: Wire, told: signals.Log) -> None:
    record = logging.makeLogRecord(told.record)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
