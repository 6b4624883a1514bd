"""Names: a living process can be found by a text."""

from typing import TYPE_CHECKING

from perdure.base.errors import NameTaken, NotRegistered
from perdure.base.pid import Pid

if TYPE_CHECKING:
    from perdure.process.process import Process

Destination = Pid | str


def check_name(name: object) -> None:
    """Refuse what cannot be a name."""
    if not isinstance(name, str):
        raise TypeError(f"a name is text, not {name!r}")
    if not name:
        raise ValueError("a name must not be empty")


def register(names: "dict[str, Process]", name: str, process: "Process") -> None:
    """Give a process a name; to give it again is fine, to take it from another is not."""
    check_name(name)
    holder = names.get(name)
    if holder is process:
        return
    if holder is not None:
        raise NameTaken(name, holder.pid)
    names[name] = process
    process.tie().add_name(name)


def unregister(names: "dict[str, Process]", name: str) -> bool:
    """Free a name; tell whether anybody had it."""
    check_name(name)
    holder = names.pop(name, None)
    if holder is None:
        return False
    holder.tie().drop_name(name)
    return True


def holder_of(names: "dict[str, Process]", name: object) -> "Process":
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
