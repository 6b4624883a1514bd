"""A process that a thread starts on a host, until the first node has started it."""

from collections.abc import Callable
from threading import Lock

from perdure.base.errors import HostBusy, MailboxFull, NotPortable
from perdure.base.pid import Pid
from perdure.process.event import Message
from perdure.process.hosts.node import Node
from perdure.process.hosts.stand_in import StandIn, Wire
from perdure.process.process import Process

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
