"""What all acts have: a worker that is a real process, the one who kills it, and a stage."""

import contextlib
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct
from rich.console import RenderableType

from perdure.app import App
from perdure.base.errors import JobError
from perdure.cli.demo.world import Receiver
from perdure.engine.handle import Handle
from perdure.jobs.model import EntryKind
from perdure.jobs.state import ENDED, JobState
from perdure.process.timer import sleep

LOOK_EVERY = 0.03


class Title(Struct, frozen=True):
    """What is said of an act before it begins."""

    name: str
    text: str
    bars: Mapping[str, tuple[int, str]] = {}  # how many, and of what


class Outcome(Struct, frozen=True, kw_only=True):
    """What an act came to; nothing may be lost, and nothing doubled."""

    job: str
    steps: int
    lost: int
    duplicates: int
    more: dict[str, Any] = {}


class Stage(Protocol):
    """Where it is shown."""

    def act(self, title: Title) -> contextlib.AbstractContextManager[None]: ...

    def say(self, text: str, style: str = "") -> None: ...

    def show(self, done: Counter[str], worker: str) -> None: ...

    def draw(self, picture: RenderableType) -> None: ...


class Worker:
    """A worker: a real process of the operating system, which works when it is told to begin."""

    def __init__(self, folder: Path, port: int, pace: float) -> None:
        module = "perdure.cli.demo.app"
        command = [sys.executable, "-m", module, str(folder), str(port), str(pace)]
        self._errors = folder / "errors"
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603  our own module
                command, stdin=subprocess.PIPE, stderr=errors
            )
        self.pid = self._process.pid

    def begin(self) -> None:
        """Let it work."""
        self.check()
        assert self._process.stdin is not None
        self._process.stdin.write(b"begin\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def check(self) -> None:
        """Make sure that it lives.

        Raises:
            JobError: It has ended by itself, which is none of our doing.
        """
        if self._process.poll() is not None:
            said = self._errors.read_text("utf-8", "replace")[-2000:]
            raise JobError(f"the worker ended by itself:\n{said}")


class Scene:
    """Where the acts are played.

    Attributes:
        app: The app, without a worker of its own.
        receiver: The world outside.
        stage: Where it is shown.
        kills: How many workers were killed so far.
    """

    def __init__(self, folder: Path, stage: Stage, interval: float, pace: float) -> None:
        """Take the place.

        Args:
            folder: Where everything is.
            stage: Where it is shown.
            interval: Seconds between a kill and the next worker, so that people can see it.
            pace: How long work takes: 0.5 is half as long as usual.
        """
        self.folder = folder
        self.stage = stage
        self.pace = pace
        self.receiver = Receiver()
        self.kills = 0
        self._worker = ""
        self._interval = interval
        self._port = 0
        self._app: App | None = None
        self._next: Worker | None = None

    @contextlib.contextmanager
    def opened(self, app: App, port: int) -> Generator[None]:
        """Play inside the block, with an app whose world listens there."""
        self._app, self._port = app, port
        try:
            yield
        finally:
            if self._next is not None:
                self._next.kill()

    @property
    def app(self) -> App:
        """The app."""
        assert self._app is not None
        return self._app

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncGenerator[Worker, None]:
        """Have a worker inside the block; at its end it is killed."""
        worker = self._next or Worker(self.folder, self._port, self.pace)
        # To load its code takes a while, which is not what people came to see.
        self._next = Worker(self.folder, self._port, self.pace)
        worker.begin()
        self._worker = f"worker {worker.pid} works"
        self.stage.say(f"worker {worker.pid} starts")
        try:
            yield worker
        finally:
            worker.kill()

    async def kill(self, worker: Worker, told: str) -> None:
        """Kill a worker before the eyes of all."""
        worker.kill()
        self.kills += 1
        self._worker = f"worker {worker.pid} is dead"
        self.stage.say(f"kill -9 {worker.pid}  {told}", "bold red")
        await sleep(self._interval)

    def show(self, done: Counter[str]) -> None:
        """Show how far it is."""
        self.stage.show(done, self._worker)

    async def until(
        self,
        handle: Handle[Any],
        worker: Worker,
        *states: JobState,
        look: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait for a state, an end, or for something to be seen; tell whether it was the last."""
        while not (seen := look()):
            state = await handle.status()
            if state in ENDED:
                self._worker = "done"
            if state in (*states, *ENDED):
                break
            worker.check()
            await sleep(LOOK_EVERY)
        return seen

    async def held(self, handle: Handle[Any], worker: Worker, what: str) -> None:
        """Wait until the world has done something and the worker does not know it yet."""
        self.receiver.hold_at(what)
        if not await self.until(handle, worker, look=lambda: self.receiver.holds):
            raise JobError(f"the job has ended, and {what!r} was not asked for")


async def steps_of(handle: Handle[Any]) -> int:
    """Count the steps of a job that came to an end."""
    journal = await handle.journal()
    return sum(each.kind is EntryKind.STEP and each.ended_at is not None for each in journal)
