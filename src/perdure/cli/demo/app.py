"""The app of the demo, and its worker process: `python -m perdure.cli.demo.app …`."""

import os
import sys
import threading
from pathlib import Path

from perdure.app import App
from perdure.base.settings import Settings
from perdure.cli.demo.harness import ServiceClient
from perdure.cli.demo.migration import add_migration
from perdure.cli.demo.scenarios import add_mailing, add_order, add_payout
from perdure.cli.demo.showcase import add_showcase, tree
from perdure.engine.settings import WorkerSettings
from perdure.engine.worker.worker import runtime_settings
from perdure.process.runtime import run


def build(folder: Path, port: int, pace: float = 1.0) -> App:
    """Return the app with the jobs of all scenarios.

    Args:
        folder: Holds the store and the notes of the steps.
        port: The port of the fake service.
        pace: Factor for the duration of the work.
    """
    app = App(url(folder), worker=WorkerSettings(reap_every="100ms"))
    client = ServiceClient(folder, port, pace)
    for add in (add_migration, add_mailing, add_order, add_payout, add_showcase):
        add(app, client)
    return app


def url(folder: Path) -> str:
    """Return the URL of the store."""
    return f"sqlite:///{folder / 'jobs.db'}"


def _exit_with_the_demo() -> None:
    """Exit when standard input closes: the demo has ended, in whatever way."""
    sys.stdin.buffer.read()
    os._exit(1)


async def _serve_beside_a_tree(app: App) -> None:
    async with tree():
        try:
            await app.serve()
        finally:
            await app.close()


def _work(folder: str, port: str, pace: str, *rest: str) -> None:
    app = build(Path(folder), int(port), float(pace))
    if "lively" in rest:
        run(_serve_beside_a_tree, app, settings=_quiet(app))
    else:
        app.serve_sync()


def _quiet(app: App) -> Settings:
    """Return the settings of a worker whose tree crashes on purpose."""
    usual = runtime_settings(app.worker_settings)
    return Settings(stop_timeout=usual.stop_timeout, report_crashes=False)


if __name__ == "__main__":
    if not sys.stdin.buffer.readline():
        sys.exit()  # this spare worker was not needed
    threading.Thread(target=_exit_with_the_demo, daemon=True).start()
    _work(*sys.argv[1:])
