"""The names of the program, as an OS process knows them.

The first node is the authority: to take a name is to ask it, and to wait for its answer.
To look a name up is to look at the copy, which the first node keeps up to date:
a change arrives before anything that its cause could make somebody say.
"""

from itertools import count
from typing import Any

from perdure.base.errors import NameTaken
from perdure.base.pid import Pid
from perdure.process.hosts import signals
from perdure.process.hosts.socket_wire import SocketWire
from perdure.process.names import Names
from perdure.process.process import Process
from perdure.process.reach import Elsewhere


class ReplicaNames(Names):
    """A copy of the table of names."""

    def __init__(self, wire: SocketWire, names: dict[str, Pid]) -> None:
        super().__init__()
        self._wire = wire
        self._numbers = count(1)
        for name, pid in names.items():
            self.given(name, pid)

    def claim(self, name: str, process: Process) -> Process | None:
        """Ask the first node for a name."""
        holder = self.get(name)
        if holder is not None:
            return holder
        number = next(self._numbers)
        answer = self._wire.ask_now(signals.Claim(number, name, process.pid), number)
        if answer.holder is not None:
            raise NameTaken(name, answer.holder)
        self[name] = process
        return None

    def free(self, name: str) -> Process | None:
        """Ask the first node to free a name."""
        number = next(self._numbers)
        answer = self._wire.ask_now(signals.Unclaim(number, name), number)
        holder = self.pop(name, None)
        target: Any = None if answer.holder is None else answer.holder.target
        return holder or target

    def let_go(self, name: str, process: Process) -> None:
        """Tell the first node that the holder of a name dies."""
        if self.get(name) is process:
            del self[name]
            self._wire.post(signals.NameGone(name, process.pid))

    # What the first node tells

    def given(self, name: str, pid: Pid) -> None:
        """Take note of a name."""
        holder: Process | None = pid.target
        if holder is None:
            return
        self[name] = holder
        if not isinstance(holder, Elsewhere) and name not in (holder.tie().names or ()):
            holder.tie().add_name(name)

    def gone(self, name: str, pid: Pid) -> None:
        """Take note that a process has a name no more; another may have it by now."""
        holder = self.get(name)
        if holder is None or holder.pid is not pid:
            return
        del self[name]
        if holder.bonds is not None and name in (holder.bonds.names or ()):
            holder.bonds.drop_name(name)
