"""A real Redis for the tests: from a wheel where there is one, gone when the run ends."""

import shutil
import sysconfig
from collections.abc import Iterator
from os import environ, pathsep
from pathlib import Path

import pytest

from tests.support.kept_program import kept


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of the server."""
    places = pathsep.join([sysconfig.get_path("scripts"), environ.get("PATH", "")])
    program = shutil.which("redis-server", path=places)
    if program is None:
        pytest.skip("no redis-server here")
    folder = tmp_path_factory.mktemp("redis")
    path = folder / "redis.sock"
    settings = ["--port", "0", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with kept([program, *settings, "--unixsocket", str(path)], path):
        yield path
