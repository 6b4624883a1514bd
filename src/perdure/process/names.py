"""Names: a living process can be found by a text."""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from perdure.base.errors import NameTaken, NotRegistered
from perdure.base.pid import Pid

if TYPE_CHECKING:
    from perdure.process.process import Process

Destination = Pid | str


class Names(dict[str, "Process"]):
    """The table of names of a program; loops in several threads may share one."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        # Told of each name, its holder, and whether that has got it or has it no more.
        self.on_change: Callable[[str, Process, bool], None] | None = None

    def claim(self, name: str, process: "Process") -> "Process | None":
        """Give a name to a process if nobody has it, else give who has."""
        with self._lock:
            holder = self.get(name)
            if holder is not None:
                return holder
            self[name] = process
        if self.on_change is not None:
            self.on_change(name, process, True)
        return None

    def free(self, name: str) -> "Process | None":
        """Take a name from whoever has it; give who that was."""
        holder = self.pop(name, None)
        if holder is not None and self.on_change is not None:
            self.on_change(name, holder, False)
        return holder

    def let_go(self, name: str, process: "Process") -> None:
        """Free the name of a process that dies, unless another has it by now."""
        with self._lock:
            if self.get(name) is not process:
                return
            del self[name]
        if self.on_change is not None:
            self.on_change(name, process, False)


def check_name(name: object) -> None:
    """Refuse what cannot be a name."""
    if not isinstance(name, str):
        raise TypeError(f"a name is text, not {name!r}")
    if not name:
        raise ValueError("a name must not be empty")


def register(names: Names, name: str, process: "Process") -> None:
    """Give a process a name; to give it again is fine, to take it from another is not."""
    check_name(name)
    holder = names.claim(name, process)
    if holder is None:
        process.tie().add_name(name)
    elif holder.pid is not process.pid:
        raise NameTaken(name, holder.pid)


def unregister(names: Names, name: str) -> bool:
    """Free a name; tell whether anybody had it."""
    check_name(name)
    holder = names.free(name)
    if holder is None:
        return False
    if holder.bonds is not None:
        holder.bonds.drop_name(name)
    return True


def holder_of(names: Names, name: object) -> "Process":
    """Find the process with a name.

    Raises:
        NotRegistered: Nobody has it.
    """
    if not isinstance(name, str):
        raise TypeError(f"a destination is a Pid or a registered name, not {name!r}")
    holder = names.get(name)
    if holder is None:
        raise NotRegistered(name)
    return holder
