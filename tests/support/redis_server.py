"""A real Redis for the tests: from a wheel where there is one, gone when the run ends.

`python -m tests.support.redis_server PROGRAM SOCKET` starts the server in a process of its own,
which ends it when its stdin is closed, so that the server goes even if the run is killed.
"""

import asyncio
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from os import environ, pathsep
from pathlib import Path
from select import select
from socket import AF_UNIX, socket

import pytest

from perdure.base.retry import pause

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of the server."""
    places = pathsep.join([sysconfig.get_path("scripts"), environ.get("PATH", "")])
    program = shutil.which("redis-server", path=places)
    if program is None:
        pytest.skip("no redis-server here")
    path = tmp_path_factory.mktemp("redis") / "redis.sock"
    command = [sys.executable, "-m", "tests.support.redis_server", program, str(path)]
    # A session of its own: Ctrl-C is for the tests, and the keeper sees how they end.
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True
    ) as keeper:
        while not _answers(path):
            assert keeper.poll() is None, "redis-server has ended"
            asyncio.run(pause(0.02))
        yield path
        assert keeper.stdin is not None
        keeper.stdin.close()


def _answers(path: Path) -> bool:
    with socket(AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def _keep(program: str, path: str) -> None:
    """Run the server for as long as somebody holds the other end of stdin."""
    command = [program, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
    with subprocess.Popen(
        command, cwd=Path(path).parent, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as server:
        while server.poll() is None and not select([sys.stdin], [], [], 0.2)[0]:
            pass
        server.kill()


if __name__ == "__main__":
    _keep(*sys.argv[1:])
