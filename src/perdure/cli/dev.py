"""`perdure dev`: an app, its worker and the dashboard for one person, reloaded when a file changes.

The dashboard is in this process, so a reload neither signs anybody out nor cuts a stream. The code
is in a worker of its own, which is stopped in order and started again when a file of the folder
changes: its jobs continue where they are, with the new code.
"""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from perdure.base.errors import JobError
from perdure.base.retry import pause
from perdure.cli.local_page import new_link, serve_locally
from perdure.cli.output import Code, code_of, refuse, say
from perdure.cli.target import ConfiguredApp, UrlOption, load_app, spelled, which_app
from perdure.client import Client

LOOK_EVERY: Final = 0.25  # seconds between two looks at the files
PATIENCE: Final = 5.0  # seconds that a worker has to stop in order
_WATCHED: Final = ("*.py", "*.toml")
_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "site-packages", "venv"})

Stamps = dict[Path, int]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dev")(dev)


def dev(
    app: ConfiguredApp = None,
    *,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            envvar="PERDURE_PORT",
            help="The port of the dashboard; 0 takes any free one.",
        ),
    ] = 8080,
    reload: Annotated[
        bool, typer.Option("--reload/--no-reload", help="Restart the worker when a file changes.")
    ] = True,
    url: UrlOption = None,
) -> None:
    """Run an app, its worker and the dashboard until Ctrl-C, for development on this machine."""
    name = which_app(app)
    # With a URL the code is left to the worker, and the dashboard is there sooner.
    store = url or load_app(name).url
    worker = DevWorker(name, store)
    try:
        asyncio.run(_developed(Client(store), worker, port, Path.cwd() if reload else None))
    except* KeyboardInterrupt:
        pass
    except* JobError as errors:  # the store cannot be used
        refuse(str(errors.exceptions[0]), code_of(errors.exceptions[0]))
    except* OSError as errors:
        why = f"{errors.exceptions[0]}; pass another --port, or 0 for any that is free"
        refuse(f"the dashboard cannot be served on port {port}: {why}", Code.FAILED)
    finally:
        worker.stop()


async def _developed(client: Client, worker: "DevWorker", port: int, folder: Path | None) -> None:
    async with client, asyncio.TaskGroup() as group:
        link = await new_link(client)

        def listening(base: str) -> None:
            say(f"page    {base}{link}  (works once)", f"store   {spelled(client.url)}")
            worker.start()

        watching = group.create_task(_reloaded(worker, folder))
        await serve_locally(client, port, listening, signals=True)  # until Ctrl-C
        watching.cancel()


async def _reloaded(worker: "DevWorker", folder: Path | None) -> None:
    """Start the worker anew when a file has changed, or when somebody has killed it."""
    seen = _stamps(folder)
    while True:
        await pause(LOOK_EVERY)
        now = await asyncio.to_thread(_stamps, folder)
        if now != seen:
            changed = sorted(path for path in now.keys() | seen if now.get(path) != seen.get(path))
            seen = now
            say(f"reload  {', '.join(path.name for path in changed[:3])} changed")
            await asyncio.to_thread(worker.stop)
            worker.start()
        elif worker.was_killed():
            say("restart the worker was killed; its jobs continue")
            worker.start()


def _stamps(folder: Path | None) -> Stamps:
    """Return when each file of a folder was changed."""
    found: Stamps = {}
    for path in () if folder is None else _files(folder):
        with contextlib.suppress(OSError):
            found[path] = path.stat().st_mtime_ns
    return found


def _files(folder: Path) -> Generator[Path]:
    for pattern in _WATCHED:
        yield from folder.glob(pattern)
    for inner in folder.iterdir():
        if inner.is_dir() and inner.name not in _SKIPPED and not inner.name.startswith("."):
            yield from _files(inner)


class DevWorker:
    """The worker, as an OS process."""

    def __init__(self, app: str, url: str) -> None:
        self._command = [sys.executable, "-m", "perdure", "worker", app, "--url", url]
        self._process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        """Start it; its log goes to the terminal."""
        self._process = subprocess.Popen(self._command)  # noqa: S603  our own module

    def was_killed(self) -> bool:
        """Whether a signal has ended it; one that failed waits for a change of its code."""
        code = None if self._process is None else self._process.poll()
        return code is not None and code < 0

    def stop(self) -> None:
        """Stop it in order, and kill it if it takes too long."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
