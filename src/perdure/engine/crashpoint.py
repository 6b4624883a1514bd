"""Named points at which a test can let the whole program die, as by a power cut."""

import os
import signal
from pathlib import Path
from typing import Final

# "after_call": die at the first time; "after_call:3": at the third.
_WANTED: Final = os.environ.get("PERDURE_CRASH_AT", "")
# A file that is made before the end, so that the next program goes by.
_ONCE: Final = os.environ.get("PERDURE_CRASH_ONCE", "")

_counts: dict[str, int] = {}


def crashpoint(name: str) -> None:
    """Die here, if somebody has asked for it."""
    if _WANTED:
        _look(name)


def _look(name: str) -> None:
    wanted, _, number = _WANTED.partition(":")
    _counts[name] = _counts.get(name, 0) + 1
    if name != wanted or _counts[name] != int(number or 1) or (_ONCE and Path(_ONCE).exists()):
        return
    if _ONCE:
        Path(_ONCE).touch()
    os.kill(os.getpid(), signal.SIGKILL)
