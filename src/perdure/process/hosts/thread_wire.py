"""The wire between two loops of one interpreter: signals are handed over as they are."""

import logging
from threading import Lock
from typing import Any

from perdure.base.errors import HostBusy, Killed
from perdure.base.pid import Pid
from perdure.process.event import ExitResult
from perdure.process.hosts import signals
from perdure.process.hosts.node import Node
from perdure.process.hosts.stand_in import StandIn
from perdure.process.request import Request

_log = logging.getLogger("perdure.host")


class ThreadWire:
    """From one node to another; `back` is the way back."""

    def __init__(self, hub: "Hub", here: Node, there: Node, limit: int) -> None:
        self._hub = hub
        self.here = here
        self.there = there
        self.back: ThreadWire = self
        # The other loop ends a process that refuses, so this is for a loop that is blocked.
        self.grace: float | None = 2 * here.runtime.settings.abandon_after
        self.asked: dict[int, Request[Any]] = {}  # by the other loop, and not answered yet
        self._limit = limit

    def post(self, signal: signals.Signal) -> None:
        """Send a signal that must arrive."""
        self.there.take_in(signal, self.back)

    def offer(self, signal: signals.Signal) -> None:
        """Send a signal, if not too many wait already."""
        if self.there.waiting >= self._limit:
            raise HostBusy(self.there.runtime.host_name, self.there.waiting)
        self.post(signal)

    def force(self, stand_in: StandIn, detail: object) -> None:
        """Give up a process that nobody can end: a thread cannot be killed."""
        _log.warning(
            "process %s was killed and did not end: its thread is blocked; it is abandoned.\n"
            "Code that never waits belongs on a host of the kind 'os'.",
            stand_in.pid,
        )
        stand_in.abandon(detail)
        told = signals.Exited(stand_in.pid, ExitResult(None, Killed(detail)))
        for wire in self._hub.wires_to(self.there):
            wire.here.take_in(told, wire)  # in its place: it cannot tell them itself


class Hub:
    """The wires between all nodes of one interpreter, made when they are first needed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._wires: dict[tuple[Node, Node], ThreadWire] = {}

    def between(self, here: Node, there: Node) -> ThreadWire:
        """Give the wire from one node to another."""
        with self._lock:
            wire = self._wires.get((here, there))
            if wire is None:
                wire = self._wires[here, there] = ThreadWire(self, here, there, self._limit)
                back = self._wires[there, here] = ThreadWire(self, there, here, self._limit)
                wire.back, back.back = back, wire
            return wire

    def join(self, node: Node) -> None:
        """Let a node reach all others."""

        def route(pid: Pid) -> ThreadWire | None:
            target = pid.target
            there = None if target is None else target.runtime.node
            return None if there is None or there is node else self.between(node, there)

        node.share(route)

    def wires_to(self, node: Node) -> list[ThreadWire]:
        """Give the wires of all who know a node."""
        with self._lock:
            return [wire for wire in self._wires.values() if wire.there is node]

    def leave(self, node: Node, reason: BaseException) -> None:
        """Forget a node that has ended, or is given up; all who know it are told."""
        for wire in self.wires_to(node):
            wire.here.take_in(signals.Lost(reason), wire)
        with self._lock:
            for pair in [pair for pair in self._wires if node in pair]:
                del self._wires[pair]
