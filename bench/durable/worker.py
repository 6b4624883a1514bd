"""A worker of one contender, from both of its sides: the trial that starts it, and the process.

The process is ``python -m bench.durable.worker CONTENDER STORE FOLDER SERVER JOBS``. To every line
on its stdin it answers with its usage, as one line of JSON on its stdout. It ends when its stdin
does, so it never outlives the trial that started it.
"""

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.durable.contenders import module
from bench.durable.marks import Mark, MarkReader, open_marks
from bench.durable.place import Place, environment
from bench.runner import ROOT, TrialFailed

CONCURRENCY = 100
KILOBYTES_IN_MB = 1024
_READY_WITHIN = 30.0


@dataclass(frozen=True)
class Usage:
    """The seconds that a worker has computed, and the most memory that it has had."""

    cpu: float
    peak_mb: float


class Worker:
    """One process that runs jobs of a contender, as its trial sees it."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, marks: MarkReader) -> None:
        self.started_at = time.monotonic_ns()
        self._process = process
        self._log = log
        self._marks = marks
        self._ready_before = marks.ready

    def wait_until_ready(self) -> None:
        """Wait until it takes jobs."""
        marks = self._marks
        if not marks.wait(lambda: marks.ready > self._ready_before, _READY_WITHIN, self.check):
            raise TrialFailed(f"was not ready within {_READY_WITHIN:g} s")

    def run(self, jobs: range, steps: int, limit: float) -> list[Mark]:
        """Wait until so many steps of these jobs are done; return those done in time."""
        found: list[Mark] = []
        seen = 0

        def done() -> bool:
            nonlocal seen
            found.extend(one for one in self._marks.steps[seen:] if one.job in jobs)
            seen = len(self._marks.steps)
            return len(found) >= steps

        self._marks.wait(done, limit, self.check)
        return found

    def usage(self) -> Usage:
        """Ask it what it has used."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return Usage(**json.loads(self._process.stdout.readline()))

    def check(self) -> None:
        """Raise if it has ended."""
        if self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            raise TrialFailed(f"the worker ended: {lines[-1] if lines else 'it printed nothing'}")


@contextmanager
def working(
    contender: str, place: Place, marks: MarkReader, at_once: int = CONCURRENCY
) -> Generator[Worker]:
    """Run a worker of so many jobs at once during a block; then kill it, as a power cut would."""
    command = [sys.executable, "-m", "bench.durable.worker", contender]
    command += [place.store, str(place.folder), place.server, str(at_once)]
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


# The process itself


def main(contender: str, place: Place, at_once: int) -> None:
    """Be the worker."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a contender prints is no answer
    threading.Thread(target=_answer_forever, args=(answers,), daemon=True).start()
    open_marks(place.marks)
    module(contender).work(place, at_once)


def _answer_forever(answers: int) -> None:
    while os.read(0, 4096):
        usage = {"cpu": time.process_time(), "peak_mb": _peak_kilobytes() / KILOBYTES_IN_MB}
        os.write(answers, json.dumps(usage).encode() + b"\n")
    os._exit(0)


def _peak_kilobytes() -> float:
    """Return the most memory that this program has had."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return float(fields["VmHWM"].split()[0])
    # This one also counts what the process had before it became this program.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1024 if sys.platform == "darwin" else most


if __name__ == "__main__":
    main(sys.argv[1], Place(sys.argv[2], Path(sys.argv[3]), sys.argv[4]), int(sys.argv[5]))
