"""A transaction in an OS process of its own."""

import os
import sqlite3
from pathlib import Path

from perdure.engine.registry import JobRegistry

steps = JobRegistry()


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(Path(os.environ["USER_DATABASE"]), timeout=30)


@steps.transaction(_connect, isolation="process")
def book_there(db: sqlite3.Connection, line: str) -> int:
    """Write a line; return the OS process."""
    db.execute("INSERT INTO ledger VALUES (?)", (line,))
    return os.getpid()
