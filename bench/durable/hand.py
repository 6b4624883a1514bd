"""A worker in the hand of its trial: started, watched, killed."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.durable.marks import Mark, Marks
from bench.durable.place import Place, environment
from bench.runner import ROOT, TrialFailed

_READY_WITHIN = 30.0


@dataclass(frozen=True)
class Usage:
    """The seconds that a worker has computed, and the most memory that it has had."""

    cpu: float
    peak_mb: float


class Worker:
    """One process that runs jobs of a contender."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, marks: Marks) -> None:
        self.started_at = time.monotonic_ns()
        self._process = process
        self._log = log
        self._marks = marks
        self._ready_before = marks.ready

    def be_ready(self) -> None:
        """Wait until it takes jobs."""
        marks = self._marks
        if not marks.wait(lambda: marks.ready > self._ready_before, _READY_WITHIN, self._look):
            raise TrialFailed(f"was not ready within {_READY_WITHIN:g} s")

    def run(self, jobs: range, steps: int, limit: float) -> list[Mark]:
        """Wait until so many steps of these jobs are done; gives those that were in time."""
        found: list[Mark] = []
        seen = 0

        def done() -> bool:
            nonlocal seen
            found.extend(one for one in self._marks.steps[seen:] if one.job in jobs)
            seen = len(self._marks.steps)
            return len(found) >= steps

        self._marks.wait(done, limit, self._look)
        return found

    def usage(self) -> Usage:
        """Ask it what it has used."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return Usage(**json.loads(self._process.stdout.readline()))

    def _look(self) -> None:
        if self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            raise TrialFailed(f"the worker ended: {lines[-1] if lines else 'without a word'}")


@contextmanager
def working(contender: str, place: Place, marks: Marks) -> Iterator[Worker]:
    """Have a worker for the time of a block; then it is killed, as a power cut does."""
    command = [sys.executable, "-m", "bench.durable.worker", contender]
    command += [place.store, str(place.folder), place.server]
    log = place.folder / "worker.log"
    with (
        log.open("ab") as file,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
        ) as process,
    ):
        try:
            yield Worker(process, log, marks)
        finally:
            process.kill()


@contextmanager
def reading(place: Place) -> Iterator[Marks]:
    """Read the marks of a place."""
    marks = Marks(place.marks)
    try:
        yield marks
    finally:
        marks.close()
