"""The identity of a process, and the reference of a monitor.

Both are plain values: hashable, printable, compared by identity, and never reused.
They are in the lowest layer because the errors and events of every layer name them.
"""

from itertools import count
from typing import Any, final

from msgspec import Struct, field

_pids = count(1)
_refs = count(1)


@final
class Pid(Struct, eq=False, gc=False):
    """Identifies one process, alive or dead, for ever.

    Two pids are equal only if they mean the same process. Print it in logs, use it as a key, send
    it in messages; `process.alive` and `process.info` say what became of the process.
    """

    host: str
    # Where the kernel delivers: the living process, and None after its death. So a pid that is kept
    # does not keep the dead process alive, and the garbage collector need not track pids: death
    # cuts the only cycle that they can be part of.
    target: Any
    number: int = field(default_factory=_pids.__next__)

    def __repr__(self) -> str:
        return f"{{{self.host}|{self.number}}}"

    def __copy__(self) -> "Pid":
        return self

    def __deepcopy__(self, memo: object) -> "Pid":
        return self


@final
class MonitorRef(Struct, eq=False, gc=False):
    """Identifies one monitor: `process.monitor` returns it, and `Exit.ref` has it."""

    number: int = field(default_factory=_refs.__next__)

    def __repr__(self) -> str:
        return f"<ref {self.number}>"
