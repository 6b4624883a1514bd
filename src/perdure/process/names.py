"""The table of registered names, by which a living process can be found.

The loops of a program that has thread hosts share one table, so taking and releasing a name
happens under a lock. Looking a name up needs none: a dict lookup is atomic.
The table is generic because it lies below the process; `relations.register` is what callers use.
"""

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Names(dict[str, T], Generic[T]):
    """Names and the processes that hold them."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        # Called with a name, its holder, and whether the holder has got it or has lost it.
        self.on_change: Callable[[str, T, bool], None] | None = None

    def claim(self, name: str, process: T) -> T | None:
        """Give a free name to a process; return the holder instead if it is taken."""
        with self._lock:
            holder = self.get(name)
            if holder is not None:
                return holder
            self[name] = process
        if self.on_change is not None:
            self.on_change(name, process, True)
        return None

    def free(self, name: str) -> T | None:
        """Take a name from its holder, and return the holder; None if there was none."""
        holder = self.pop(name, None)
        if holder is not None and self.on_change is not None:
            self.on_change(name, holder, False)
        return holder

    def release(self, name: str, process: T) -> None:
        """Free the name of a dying process, unless another process has taken it by now."""
        with self._lock:
            if self.get(name) is not process:
                return
            del self[name]
        if self.on_change is not None:
            self.on_change(name, process, False)


def check_name(name: object) -> None:
    """Raise unless this can be a name."""
    if not isinstance(name, str):
        raise TypeError(f"a name is text, not {name!r}")
    if not name:
        raise ValueError("a name must not be empty")
