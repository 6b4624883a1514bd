"""What every scenario needs: a fake service, workers that are killed, and a place to show it.

The workers are real OS processes, and the kill is SIGKILL. The fake service runs in the demo
itself. It does each request once for its idempotency key, counts what really arrives, and can hold
an answer back, so that a worker dies without knowing whether its request was done.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from rich.console import RenderableType

from perdure.app import App
from perdure.base.errors import JobError
from perdure.engine.handle import Handle
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.model import EntryKind
from perdure.jobs.state import ENDED, JobState
from perdure.process.timer import sleep


class ServiceRequest(Struct, frozen=True):
    """A request to the service.

    Attributes:
        key: The same at every attempt, so that the service recognises a repetition.
        what: What to do, in words that are unique in the demo.
        rows: The rows that are handed over, if any.
    """

    key: str
    what: str
    rows: list[int] = []


class ServiceClient:
    """Sends requests for the steps, and notes what the steps really did."""

    def __init__(self, folder: Path, port: int, pace: float) -> None:
        """Open the notes.

        Args:
            folder: Holds the notes.
            port: The port of the service.
            pace: Factor for the duration of the work.
        """
        self.pace = pace
        self._port = port
        self._notes = os.open(folder / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, *words: object) -> None:
        """Note what happened, for the outcome of the demo."""
        os.write(self._notes, (" ".join(map(str, words)) + f" {os.getpid()}\n").encode())

    async def effect(self, ctx: StepContext, kind: str, what: str) -> str:
        """Send a request as an effect; the service recognises a repetition by its key."""
        call = partial(self.do, what=what)
        return await ctx.effect(kind, call, target=what, in_doubt="replay", key_ttl="24h")

    async def do(self, key: str, what: str, rows: list[int] | None = None) -> str:
        """Send a request, and return the receipt."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(msgspec.json.encode(ServiceRequest(key, what, rows or [])) + b"\n")
            receipt = await reader.readline()
        finally:
            writer.close()
        if not receipt:
            raise ConnectionError("no answer")
        return receipt.decode().rstrip()


LARGEST_REQUEST = 1 << 20  # bytes


class FakeService:
    """Does each request once for its key, and can hold an answer back.

    Attributes:
        done: What was done, in order.
        asked: How often each request arrived.
        rows: How often each row was accepted; once is right.
        holds: Whether an answer is being held back now.
    """

    def __init__(self) -> None:
        self.done: list[str] = []
        self.asked: Counter[str] = Counter()
        self.rows: Counter[int] = Counter()
        self.holds = False
        self._hold_at = ""
        self._receipts: dict[str, bytes] = {}

    def hold_at(self, what: str) -> None:
        """Do this request when it comes, but hold its answer back."""
        self._hold_at = what

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Handle one connection."""
        try:
            request = msgspec.json.decode(await reader.readline(), type=ServiceRequest)
            receipt = self.take(request)
            if request.what == self._hold_at:
                self._hold_at, self.holds = "", True
                await reader.read()  # returns when the sender is gone
                self.holds = False
            writer.write(receipt)
            await writer.drain()
        except (OSError, msgspec.DecodeError):
            pass  # the sender was killed; its successor will send it again
        finally:
            writer.close()

    def take(self, request: ServiceRequest) -> bytes:
        """Do a request, unless its key is known; return the receipt."""
        self.asked[request.what] += 1
        known = self._receipts.get(request.key)
        if known is not None:
            return known
        self.rows.update(request.rows)
        self.done.append(request.what)
        receipt = self._receipts[request.key] = b"receipt %d\n" % len(self.done)
        return receipt

    @property
    def repeated(self) -> int:
        """How many requests arrived again and were not done again."""
        return self.asked.total() - len(self.done)


@contextlib.asynccontextmanager
async def serving(service: FakeService) -> AsyncGenerator[int, None]:
    """Serve inside the block; yields the port."""
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0, limit=LARGEST_REQUEST)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


LOOK_EVERY = 0.03


class Heading(Struct, frozen=True):
    """What is shown before a scenario begins."""

    name: str
    text: str
    bars: Mapping[str, tuple[int, str]] = {}  # the total and the unit of each progress bar


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of a scenario; nothing may be lost or duplicated."""

    job: str
    steps: int
    lost: int
    duplicates: int
    more: dict[str, Any] = {}


class Display(Protocol):
    """Shows what happens."""

    def scenario(self, title: Heading) -> contextlib.AbstractContextManager[None]: ...

    def say(self, text: str, style: str = "") -> None: ...

    def show(self, done: Counter[str], worker: str) -> None: ...

    def draw(self, drawing: RenderableType) -> None: ...


class DemoWorker:
    """A worker in an OS process, which starts to work on `begin`."""

    def __init__(self, folder: Path, port: int, pace: float, *more: str) -> None:
        module = "perdure.cli.demo.app"
        command = [sys.executable, "-m", module, str(folder), str(port), str(pace), *more]
        self._errors = folder / "errors"
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603  our own module
                command, stdin=subprocess.PIPE, stderr=errors
            )
        self.pid = self._process.pid

    def begin(self) -> None:
        """Let it start to work."""
        self.check()
        assert self._process.stdin is not None
        self._process.stdin.write(b"begin\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill it with SIGKILL, as a power cut would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def check(self) -> None:
        """Check that it is alive.

        Raises:
            JobError: It exited without being killed.
        """
        if not self.is_alive:
            said = self._errors.read_text("utf-8", "replace")[-2000:]
            raise JobError(f"the worker exited unexpectedly:\n{said}")


class Demo:
    """Runs the scenarios: starts workers, kills them, and waits for things to happen.

    Attributes:
        app: The app, without a worker of its own.
        service: The fake service.
        display: Shows what happens.
        kills: How many workers were killed so far.
    """

    def __init__(self, folder: Path, display: Display, interval: float, pace: float) -> None:
        """Prepare the demo.

        Args:
            folder: Holds all files.
            display: Shows what happens.
            interval: Seconds between a kill and the next worker, so that people can see it.
            pace: Factor for the duration of the work.
        """
        self.folder = folder
        self.display = display
        self.pace = pace
        self.service = FakeService()
        self.kills = 0
        self._worker = ""
        self._interval = interval
        self._port = 0
        self._app: App | None = None
        self._next: DemoWorker | None = None

    @contextlib.contextmanager
    def opened(self, app: App, port: int) -> Generator[None]:
        """Use this app, and the service at this port, inside the block."""
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
    async def worker(self) -> AsyncGenerator[DemoWorker, None]:
        """Run a worker inside the block; it is killed at the end."""
        worker = self._next or DemoWorker(self.folder, self._port, self.pace)
        # The next worker loads its code in advance, so that nobody has to watch that.
        self._next = DemoWorker(self.folder, self._port, self.pace)
        worker.begin()
        self._worker = f"worker {worker.pid} is running"
        self.display.say(f"worker {worker.pid} starts")
        try:
            yield worker
        finally:
            worker.kill()

    @contextlib.contextmanager
    def resident(self) -> Generator[DemoWorker]:
        """Have a worker that also runs a supervision tree, for as long as the block."""
        worker = DemoWorker(self.folder, self._port, self.pace, "lively")
        worker.begin()
        try:
            yield worker
        finally:
            worker.kill()

    async def kill(self, worker: DemoWorker, why: str) -> None:
        """Kill a worker and show it."""
        worker.kill()
        self.kills += 1
        self._worker = f"worker {worker.pid} is dead"
        self.display.say(f"kill -9 {worker.pid}  {why}", "bold red")
        await sleep(self._interval)

    def show(self, done: Counter[str]) -> None:
        """Show the progress."""
        self.display.show(done, self._worker)

    async def until(
        self,
        handle: Handle[Any],
        worker: DemoWorker,
        *states: JobState,
        look: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait for a state, the end of the job, or `look`; return whether `look` was true."""
        while not (seen := look()):
            state = await handle.status()
            if state in ENDED:
                self._worker = "done"
            if state in (*states, *ENDED):
                break
            worker.check()
            await sleep(LOOK_EVERY)
        return seen

    async def held(self, handle: Handle[Any], worker: DemoWorker, what: str) -> None:
        """Wait until the service has done a request and the worker does not know it yet."""
        self.service.hold_at(what)
        if not await self.until(handle, worker, look=lambda: self.service.holds):
            raise JobError(f"the job ended without requesting {what!r}")


async def count_steps(handle: Handle[Any]) -> int:
    """Return how many steps of a job have ended."""
    journal = await handle.journal()
    return sum(each.kind is EntryKind.STEP and each.ended_at is not None for each in journal)
