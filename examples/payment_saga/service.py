"""A fake service: a file with one line per request, so that it outlives the program."""

import os
from pathlib import Path

_FILE = Path(os.environ.get("SERVICE_FILE", "service.txt"))


def call(request: str, key: str) -> str:
    """Do something once for each key; the receipt is the same for the same key."""
    lines = _FILE.read_text().splitlines() if _FILE.exists() else []
    if not any(line.endswith(key) for line in lines):
        with _FILE.open("a") as file:
            file.write(f"{request} {key}\n")
        print(request, flush=True)
    return f"receipt {key[:8]}"
