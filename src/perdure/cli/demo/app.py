"""The app of the demonstration, and its worker: `python -m perdure.cli.demo.app …`."""

import os
import sys
import threading
from pathlib import Path

from perdure.app import App
from perdure.cli.demo import mailing, migration, order, payout
from perdure.cli.demo.world import World
from perdure.engine.settings import WorkerSettings


def build(folder: Path, port: int, pace: float = 1.0) -> App:
    """Make the app with the jobs of all acts.

    Args:
        folder: Where the store and the notes of the steps are.
        port: Where the world takes deeds.
        pace: How long work takes: 0.5 is half as long as usual.
    """
    app = App(url(folder), worker=WorkerSettings(reap_every="100ms"))
    world = World(folder, port, pace)
    for act in (migration, mailing, order, payout):
        act.add_to(app, world)
    return app


def url(folder: Path) -> str:
    """Return the address of the store."""
    return f"sqlite:///{folder / 'jobs.db'}"


def _end_with_the_demonstration() -> None:
    """End when the other end of the standard input is gone, however it went."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    if not sys.stdin.buffer.readline():
        sys.exit()  # it was never needed
    threading.Thread(target=_end_with_the_demonstration, daemon=True).start()
    build(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])).work()
