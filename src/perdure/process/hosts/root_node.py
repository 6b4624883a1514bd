"""The node of the program's first loop: it knows all names, hosts and workers.

There is one authority on names, because two loops that take the same name at the same time must
not both succeed. Threads share its table. An OS worker has a replica: looking a name up is local,
taking one asks here and waits. Changes are sent to all replicas over the same wires as everything
else, so a name is known at the other end before anything that its holder could cause.
"""

import logging
from collections.abc import Callable
from typing import Any

from perdure.base.errors import SpawnError
from perdure.base.pid import Pid
from perdure.process.event import ExitResult
from perdure.process.hosts.node import Node, Proxy, Wire
from perdure.process.hosts.pickling import load_call
from perdure.process.hosts.signals import (
    ClaimNameSignal,
    ExitedSignal,
    FreeNameSignal,
    HostsSignal,
    LogSignal,
    NameAddedSignal,
    NameClaimedSignal,
    NameRemovedSignal,
    PlacedSignal,
    PongSignal,
    Signal,
    SpawnOnHostSignal,
    WorkerReadySignal,
    WorkerStoppedSignal,
)
from perdure.process.hosts.wire import Hub
from perdure.process.process import Process, ProcessRuntime, SpawnOptions
from perdure.process.relations import register, resolve, unregister
from perdure.process.runtime import LoopRuntime

# How many signals may wait on the way to another thread of this program.
_QUEUE_SIZE = 65_536


class RootNode(Node):
    """The authority on names and hosts."""

    def __init__(self, runtime: LoopRuntime) -> None:
        super().__init__(runtime)
        self.hub = Hub(_QUEUE_SIZE)
        self.hub.join(self)
        self.workers: dict[Wire, Any] = {}
        self._replicas: list[Wire] = []  # to OS workers, which have a copy of the names
        runtime.names.on_change = self._name_changed
        runtime.at_close(self._reap_workers)
        self.handlers |= {
            SpawnOnHostSignal: self._on_spawn_on,
            ClaimNameSignal: self._on_claim,
            FreeNameSignal: self._on_unclaim,
            NameRemovedSignal: self._on_name_gone,
            NameAddedSignal: self._on_name_given,
            LogSignal: _on_log,
            WorkerReadySignal: self._to_worker(lambda worker, _: worker.on_ready()),
            WorkerStoppedSignal: self._to_worker(lambda worker, _: worker.on_stopped()),
            PongSignal: self._to_worker(lambda worker, signal: worker.on_pong(signal.number)),
        }

    def _to_worker(self, act: Callable[[Any, Any], object]) -> Callable[[Wire, Any], None]:
        def handle(wire: Wire, signal: Any) -> None:
            worker = self.workers.get(wire)
            if worker is not None:
                act(worker, signal)

        return handle

    def _reap_workers(self) -> None:
        """Leave no worker behind, not even of hosts that were killed a moment ago."""
        for worker in tuple(self.workers.values()):
            worker.reap()

    def _on_spawn_on(self, wire: Wire, signal: SpawnOnHostSignal) -> None:
        """Start a process for another node, which has already made its pid."""
        try:
            function, args, values = load_call(signal.call, wire)
            host: Any = self.runtime.host_of(signal.host)
            parent = None if signal.parent is None else resolve(signal.parent, self.runtime)
            options = SpawnOptions(signal.host, signal.name, values)
            process = host.spawn(self.runtime, parent, function, args, options, pid=signal.pid)
        except Exception as error:  # noqa: BLE001 - told to whoever is related to the pid
            wire.post(ExitedSignal(signal.pid, ExitResult(None, error)))
            here = False
        else:
            self.observe_exit(process, wire, full=True)
            here = process.wire is wire
        if signal.number:
            wire.post(PlacedSignal(signal.number, here))

    # Names

    def add_replica(self, wire: Wire) -> dict[str, Pid]:
        """Send name changes to an OS worker from now on; return the current names."""
        self._replicas.append(wire)
        return {name: holder.pid for name, holder in self.runtime.names.items()}

    def remove_replica(self, wire: Wire) -> None:
        """Send no more changes to an OS worker."""
        if wire in self._replicas:
            self._replicas.remove(wire)

    def register_spawned(self, name: str, proxy: Proxy) -> None:
        """Give a name to a process that is being sent to an OS worker, which gets both together.

        If it got the name first, it would take the process for one that lives elsewhere.
        """
        self._replicas.remove(proxy.wire)
        try:
            register(self.runtime.names, name, proxy)
        finally:
            self._replicas.append(proxy.wire)

    def _name_changed(self, name: str, holder: Process, given: bool) -> None:  # noqa: FBT001
        signal = (NameAddedSignal if given else NameRemovedSignal)(name, holder.pid)
        if self.is_other_thread():
            self.receive_from_thread(signal)
        else:
            self._broadcast(signal)

    def _broadcast(self, signal: Signal) -> None:
        for wire in self._replicas:
            wire.post(signal)

    def _on_claim(self, wire: Wire, signal: ClaimNameSignal) -> None:
        process = resolve(signal.pid, self.runtime)
        holder = None if process is None else self.runtime.names.claim(signal.name, process)
        if holder is None and process is not None:
            process.get_relations().add_name(signal.name)
        wire.post(NameClaimedSignal(signal.number, None if holder is None else holder.pid))

    def _on_unclaim(self, wire: Wire, signal: FreeNameSignal) -> None:
        holder = self.runtime.names.get(signal.name)
        unregister(self.runtime.names, signal.name)
        wire.post(NameClaimedSignal(signal.number, None if holder is None else holder.pid))

    def _on_name_gone(self, wire: Wire | None, signal: NameRemovedSignal) -> None:
        if wire is None:  # from a thread, which shares our table
            self._broadcast(signal)
            return
        holder = self.runtime.names.get(signal.name)
        if holder is not None and holder.pid is signal.pid:
            unregister(self.runtime.names, signal.name)

    def _on_name_given(self, _: Wire | None, signal: NameAddedSignal) -> None:
        if signal.pid.target is not None:
            self._broadcast(signal)

    def tell_hosts(self) -> None:
        """Tell the OS workers which hosts run."""
        self._broadcast(HostsSignal(list(self.runtime.hosts)))


def root_node_of(runtime: ProcessRuntime) -> RootNode:
    """Return the node of the program's first loop, made with its first host.

    Raises:
        SpawnError: The runtime is that of a worker, where no host can be started.
    """
    node: object = runtime.node
    if node is None:
        assert isinstance(runtime, LoopRuntime)
        return RootNode(runtime)
    if not isinstance(node, RootNode):
        raise SpawnError("start hosts on the first loop of the program, not on a worker")
    return node


def _on_log(_: Wire, signal: LogSignal) -> None:
    record = logging.makeLogRecord(signal.record)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
