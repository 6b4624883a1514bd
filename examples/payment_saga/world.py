"""The world outside: a file in which every deed is a line, so that it outlives the program."""

import os
from pathlib import Path

_BOOK = Path(os.environ.get("WORLD", "world.txt"))


def act(deed: str, key: str) -> str:
    """Do something, once for each key; the receipt is the same for the same key."""
    lines = _BOOK.read_text().splitlines() if _BOOK.exists() else []
    if not any(line.endswith(key) for line in lines):
        with _BOOK.open("a") as book:
            book.write(f"{deed} {key}\n")
        print(deed, flush=True)
    return f"receipt {key[:8]}"
