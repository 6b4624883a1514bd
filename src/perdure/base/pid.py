"""The identity of a process, and the reference of a monitor.

Both are plain values: hashable, printable, compared by identity, never used a second time.
They live in the lowest layer because errors and events of every layer name them.
"""

from itertools import count
from typing import Any, final

from msgspec import Struct, field

_pids = count(1)
_refs = count(1)


@final
class Pid(Struct, eq=False, gc=False):
    """Names one process, alive or dead, for ever.

    Two pids are equal only if they are the same process.
    Print it in logs, use it as a key, send it in messages.
    What a pid refers to is the kernel's business: ask `process.alive` and `process.info`.
    """

    host: str
    # Where the kernel delivers: the living process, and None from its death on.
    # So a pid that somebody keeps does not keep the dead process, and the garbage collector
    # need not look at pids: death cuts the only cycle that they can be part of.
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
    """Names one monitor: `process.monitor` returns it, `Exit.ref` brings it back."""

    number: int = field(default_factory=_refs.__next__)

    def __repr__(self) -> str:
        return f"<ref {self.number}>"
