"""Learns from the kernel that another process has touched a file (inotify, Linux)."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

_MODIFIED = 0x2


def touches(path: Path) -> int | None:
    """Give a descriptor that can be read once the file was modified, if the system can."""
    library = ctypes.CDLL(None, use_errno=True)
    try:
        begin = cast("Callable[[int], int]", library.inotify_init1)
        add = cast("Callable[[int, bytes, int], int]", library.inotify_add_watch)
    except AttributeError:
        return None
    descriptor = begin(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if add(descriptor, os.fsencode(path), _MODIFIED) < 0:
        os.close(descriptor)
        return None
    return descriptor


def drain(descriptor: int) -> bool:
    """Forget what was told up to now; tells whether there was something."""
    try:
        return bool(os.read(descriptor, 65536))
    except BlockingIOError:
        return False
