"""The machine: what is the same for all programs of one user on it, and what they may use."""

import os
import stat
import sys
import tempfile
from pathlib import Path

from perdure.base.errors import ProcError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Tell one start of the machine from another; the same word where that cannot be told."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return "unknown"


def cores() -> int:
    """Count the cores that this program may use: a container often has fewer than its machine."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def temporary_folder() -> Path:
    """Give the user's folder for what must not outlive the machine; it may not be there yet."""
    return Path(tempfile.gettempdir()) / f"perdure-{os.getuid()}"


def made_private(folder: Path) -> Path:
    """Make a folder that nobody else can read or write, if it is not there.

    Raises:
        ProcError: It is there, and is another's or open to others.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ProcError(f"{folder} is not private: make it yours alone (chmod 700), or remove it")
    return folder
