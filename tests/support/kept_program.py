"""A server that tests need, kept by a process of its own, so that it ends even if they are killed.

`python -m tests.support.kept_program USER PROGRAM …` runs a program until its stdin is closed.
"""

import asyncio
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select
from socket import AF_UNIX, socket

from perdure.base.retry import pause

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def kept(command: Sequence[str], answers_at: Path, user: int | None = None) -> Generator[None]:
    """Run a server that answers at a Unix socket, as this user; it ends with the block."""
    keeper = [sys.executable, "-m", "tests.support.kept_program"]
    # A session of its own: Ctrl-C is for the tests, and the keeper sees how they end.
    with subprocess.Popen(
        [*keeper, "" if user is None else str(user), *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as keeps:
        try:
            while not _answers(answers_at):
                assert keeps.poll() is None, f"{command[0]} has ended"
                asyncio.run(pause(0.02))
            yield
        finally:
            assert keeps.stdin is not None
            keeps.stdin.close()


def _answers(path: Path) -> bool:
    with socket(AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def _keep(user: str, command: Sequence[str]) -> None:
    """Run a program for as long as somebody holds the other end of stdin."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=quiet, stdout=quiet, user=int(user) if user else None
    ) as server:
        while server.poll() is None and not select([sys.stdin], [], [], 0.2)[0]:
            pass
        server.kill()


if __name__ == "__main__":
    _keep(sys.argv[1], sys.argv[2:])
