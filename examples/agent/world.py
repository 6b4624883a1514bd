"""What is outside of the program: a log of everything that was really done, in a file.

It outlives the program, so that nobody can hide what was done twice. The shop and the mail server
honour keys: they do the same thing once, and return the same receipt.
"""

import os
from pathlib import Path


def folder() -> Path:
    """Return the folder of the task."""
    return Path(os.environ.get("AGENT_FOLDER", "agent_files"))


def done() -> list[str]:
    """Return what was done, in order."""
    log = folder() / "world.log"
    return log.read_text().splitlines() if log.exists() else []


def do(deed: str, key: str = "") -> str:
    """Do something, once for each key; return a receipt."""
    line = f"{deed} {key}".strip()
    if not key or line not in done():
        folder().mkdir(exist_ok=True)
        with (folder() / "world.log").open("a") as log:
            log.write(f"{line}\n")
        print(f"{deed} [{key[:8]}]" if key else deed, flush=True)
    return f"receipt {key[:8]}"
