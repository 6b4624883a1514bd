"""The machine: its boot id, the cores we may use, and a private folder for this user."""

import os
import stat
import sys
import tempfile
from pathlib import Path

from perdure.base.errors import ProcError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return an id that changes when the machine boots; "unknown" where there is none."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return "unknown"


def cores() -> int:
    """Return how many cores this program may use; in a container, often fewer than exist."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def temporary_folder() -> Path:
    """Return this user's folder for files that need not survive a reboot; it may not exist yet."""
    return Path(tempfile.gettempdir()) / f"perdure-{os.getuid()}"


def made_private(folder: Path) -> Path:
    """Return a folder that nobody else can read or write, creating it if necessary.

    Raises:
        ProcError: It exists, but belongs to or is open to other users.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ProcError(
            f"{folder} is not private: restrict it to your user (chmod 700), or remove it"
        )
    return folder
