"""Named points at which a test can make the whole program die, as in a power cut.

A point costs one test of a variable: `if crashpoint.wanted: crashpoint.reach("after_call")`.
"""

import os
import signal
from pathlib import Path
from typing import Final

# "after_call": die the first time it is reached; "after_call:3": the third time. Empty: never.
wanted = os.environ.get("PERDURE_CRASH_AT", "")
# A file that is created before dying, so that the next program does not die again.
_ONCE: Final = os.environ.get("PERDURE_CRASH_ONCE", "")

_counts: dict[str, int] = {}


def reach(name: str) -> None:
    """Kill the program here if this is the selected point."""
    point, _, number = wanted.partition(":")
    _counts[name] = _counts.get(name, 0) + 1
    if name != point or _counts[name] != int(number or 1) or (_ONCE and Path(_ONCE).exists()):
        return
    if _ONCE:
        Path(_ONCE).touch()
    os.kill(os.getpid(), signal.SIGKILL)
