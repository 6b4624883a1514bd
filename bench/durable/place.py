"""Where a contender keeps its jobs in one trial: a fresh file, or a fresh database."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.runner import ROOT

SQLITE = "sqlite"
POSTGRES = "postgres"
STORES = (SQLITE, POSTGRES)
_NO_COMPILED_FILES = "PYTHONDONTWRITEBYTECODE"


@dataclass(frozen=True)
class Place:
    """An empty store for one trial.

    Attributes:
        store: ``sqlite`` or ``postgres``.
        folder: For the marks, and for the file of SQLite.
        server: The address of PostgreSQL's own database; empty for SQLite.
    """

    store: str
    folder: Path
    server: str = ""

    @property
    def file(self) -> Path:
        return self.folder / "store.db"

    @property
    def marks(self) -> Path:
        return self.folder / "marks"

    @property
    def database(self) -> str:
        return self.folder.name.replace("-", "_").lower()

    @property
    def url(self) -> str:
        """Return the address as contenders write it."""
        if self.store == SQLITE:
            return f"sqlite:///{self.file}"
        return self.server.replace("/postgres?", f"/{self.database}?")


@contextmanager
def fresh(store: str, folder: Path, server: str = "") -> Generator[Place]:
    """Make an empty store during a trial."""
    with TemporaryDirectory(dir=folder, prefix=f"{store}-") as own:
        place = Place(store, Path(own), server)
        if store == POSTGRES:
            _execute(place, f"create database {place.database}")
        try:
            yield place
        finally:
            if store == POSTGRES:
                _execute(place, f"drop database {place.database} with (force)")


def _execute(place: Place, statement: str) -> None:
    import psycopg

    with psycopg.connect(place.server, autocommit=True) as connection:
        connection.execute(statement.encode())


@contextmanager
def scratch() -> Generator[Path]:
    """Make a folder beside the code: the folder for temporary files is often in memory."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=build, prefix="bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # PostgreSQL may run as another user
        yield Path(folder)


def environment() -> dict[str, str]:
    """Return the environment of trials and workers: it keeps compiled files, as a user's does."""
    return {name: value for name, value in os.environ.items() if name != _NO_COMPILED_FILES}
