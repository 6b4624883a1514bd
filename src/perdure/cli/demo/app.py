"""The app of the demo, and its worker process: `python -m perdure.cli.demo.app …`."""

import os
import sys
import threading
from pathlib import Path

from perdure.app import App
from perdure.cli.demo.harness import ServiceClient
from perdure.cli.demo.migration import add_migration
from perdure.cli.demo.scenarios import add_mailing, add_order, add_payout
from perdure.engine.settings import WorkerSettings


def build(folder: Path, port: int, pace: float = 1.0) -> App:
    """Return the app with the jobs of all scenarios.

    Args:
        folder: Holds the store and the notes of the steps.
        port: The port of the fake service.
        pace: Factor for the duration of the work.
    """
    app = App(url(folder), worker=WorkerSettings(reap_every="100ms"))
    client = ServiceClient(folder, port, pace)
    for add in (add_migration, add_mailing, add_order, add_payout):
        add(app, client)
    return app


def url(folder: Path) -> str:
    """Return the URL of the store."""
    return f"sqlite:///{folder / 'jobs.db'}"


def _exit_with_the_demo() -> None:
    """Exit when standard input closes: the demo has ended, in whatever way."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    if not sys.stdin.buffer.readline():
        sys.exit()  # this spare worker was not needed
    threading.Thread(target=_exit_with_the_demo, daemon=True).start()
    build(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])).serve_sync()
