"""Runs the demonstration: starts the worker, kills it at bad moments, starts another one."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from perdure.app import App
from perdure.base.errors import JobError
from perdure.cli.demo import notes
from perdure.cli.demo.migration import KEY, Migrated, build
from perdure.cli.demo.receiver import Receiver, receiving
from perdure.engine.handle import Handle
from perdure.jobs.state import ENDED
from perdure.process.timer import sleep

LOOK_EVERY = 0.03
LONGEST = 150.0  # seconds, after which something is wrong


class Kill(Struct, frozen=True):
    """When the worker is killed."""

    phase: str
    after: int  # so many pages, customers or batches are done
    told: str
    in_doubt: bool = False  # the receiver has applied a batch, and its answer is not yet given


KILLS = (
    Kill("extract", 7, "while it extracts a page"),
    Kill("convert", 210, "in the middle of a long step"),
    Kill("convert", 440, "in the middle of the same step"),
    Kill("load", 3, "before it sends a batch"),
    Kill("load", 8, "after an effect, before it could be written down", True),
)


class Loss(Struct, frozen=True):
    """What was done when a worker was killed: without a journal it would be lost."""

    steps: int
    items: int
    effects: int


class Course(Struct, kw_only=True):
    """How the demonstration went."""

    folder: Path
    job_id: str = ""
    losses: list[Loss] = []
    jobs: dict[str, int] = {}
    result: Migrated | None = None
    receiver: Receiver
    seconds: float = 0.0


class Stage(Protocol):
    """Where it is shown."""

    def say(self, text: str, style: str = "") -> None: ...

    def show(self, done: Counter[str], worker: str) -> None: ...


class Worker:
    """The worker: a real process of the operating system."""

    def __init__(self, folder: Path, port: int, pace: float) -> None:
        module = "perdure.cli.demo.migration"
        command = [sys.executable, "-m", module, str(folder), str(port), str(pace)]
        self._errors = folder / "errors"
        with self._errors.open("ab") as errors:
            # It reads its input only to notice that we are gone.
            self._process = subprocess.Popen(  # noqa: S603  our own module
                command, stdin=subprocess.PIPE, stderr=errors
            )
        self.pid = self._process.pid

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


class Director:
    """One run of the demonstration."""

    def __init__(self, folder: Path, stage: Stage, interval: float, pace: float) -> None:
        """Run it.

        Args:
            folder: Where everything is.
            stage: Where it is shown.
            interval: Seconds between a kill and the next worker, so that people can see it.
            pace: How long the work takes: 0.5 is half as long as usual.
        """
        self._folder = folder
        self._stage = stage
        self._interval = interval
        self._pace = pace
        self._receiver = Receiver()
        self._kills = list(KILLS)
        self.course = Course(folder=folder, receiver=self._receiver)

    async def run(self) -> Course:
        """Run it to its end."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with receiving(self._receiver) as port, build(self._folder, port) as app:
            async with asyncio.timeout(LONGEST):
                handle = await app.submit(app.find_job("migrate"), key=KEY)
                self.course.job_id = handle.id
                while not await self._live_of_a_worker(handle, port):
                    await sleep(self._interval)
            self.course.result = await handle.result("5s")
            self.course.jobs = await _counts(app)
        self.course.seconds = loop.time() - began
        return self.course

    async def _live_of_a_worker(self, handle: Handle[Migrated], port: int) -> bool:
        """Start a worker, and kill it or see it through; tell whether the job has ended."""
        worker = Worker(self._folder, port, self._pace)
        self._stage.say(f"worker {worker.pid} starts")
        self._prepare()
        began = False
        try:
            while await handle.status() not in ENDED:
                worker.check()
                told = notes.read(self._folder)
                if not began and notes.has_begun(told, worker.pid):
                    began = True
                    self._tell_where(told, worker.pid)
                self._stage.show(notes.done(told), f"worker {worker.pid} works")
                if began and self._is_due(told):
                    self._kill(worker, told)
                    return False
                await sleep(LOOK_EVERY)
            self._stage.show(notes.done(notes.read(self._folder)), "done")
            return True
        finally:
            worker.kill()

    def _prepare(self) -> None:
        if self._kills and self._kills[0].in_doubt:
            self._receiver.hold_at(self._kills[0].after + 1)

    def _tell_where(self, told: list[notes.Note], worker: int) -> None:
        if not self.course.losses:
            return
        steps = sum(note.what == "end" for note in told)
        first = next((note for note in told if note.worker == worker and note.what == "item"), None)
        where = f", the next from customer {first.number}" if first else ""
        self._stage.say(f"worker {worker} goes on: {steps} steps stay done{where}")

    def _is_due(self, told: list[notes.Note]) -> bool:
        if not self._kills:
            return False
        kill = self._kills[0]
        if kill.in_doubt:
            return self._receiver.holds
        # In the middle of something, unless we came too late for that.
        last = told[-1]
        now = last.what != "end" or last.phase != kill.phase
        return now and notes.done(told)[kill.phase] >= kill.after

    def _kill(self, worker: Worker, told: list[notes.Note]) -> None:
        kill = self._kills.pop(0)
        worker.kill()
        now = notes.done(told)
        steps = len({(note.phase, note.number) for note in told if note.what == "end"})
        self.course.losses.append(Loss(steps, now["convert"], self._receiver.effects))
        self._stage.say(f"kill -9 {worker.pid}  {kill.told}", "bold red")
        self._stage.show(now, f"worker {worker.pid} is dead")


async def _counts(app: App) -> dict[str, int]:
    return await (await app.store()).counts()
