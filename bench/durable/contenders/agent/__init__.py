"""The same agent for every contender: each turn gets all that was said before, and adds 4 KB.

A contender is a module as in ``bench.durable.contenders``. Its only job is number 0, whose turns
are its steps. The last step never ends in the first worker, which is killed there; in the second
one it does. So the time until it begins again is what a resume takes.
"""

import base64
import random
from pathlib import Path

TURN = 4096


def said(turn: int) -> str:
    """Return what a turn adds: text that hardly compresses."""
    data = random.Random(turn).randbytes(TURN * 3 // 4)
    return base64.b64encode(data).decode()


def is_resumed(folder: Path) -> bool:
    """Whether the first worker was killed."""
    return _killed(folder).exists()


def note_kill(folder: Path) -> None:
    """Record that the first worker was killed."""
    _killed(folder).touch()


def _killed(folder: Path) -> Path:
    return folder / "killed"
