"""Workers as real OS processes, to be killed, stopped and continued."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


class WorkerProcess:
    """One worker."""

    def __init__(self, url: str, log: Path, program: str = "migration", *more: str) -> None:
        # Its own module as a program: nothing of the test's process goes along.
        command = [sys.executable, "-m", f"tests.programmes.{program}", url, str(log), *more]
        self._errors = log.with_suffix(".err").open("ab")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self._errors)
        self.pid = self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still lives."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a power cut would, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._errors.close()

    def end(self, timeout: float = 30.0) -> int:
        """Ask it to drain, and give its exit code."""
        self.signal(signal.SIGTERM)
        return self.ended(timeout)

    def ended(self, timeout: float = 30.0) -> int:
        """Wait for its end, and give its exit code."""
        try:
            return self._process.wait(timeout)
        finally:
            self.kill()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None


class Log:
    """What really ran, as the workers wrote it down themselves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> list[list[str]]:
        """Give all whole lines, as words."""
        text = self.path.read_text()
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]

    def runs(self, kind: str) -> Counter[tuple[str, str]]:
        """Count the runs of each (job, step) or (job, item)."""
        return Counter((job, name) for k, job, name, _ in self.lines() if k == kind)

    def pids(self) -> Iterator[int]:
        """Give the worker of each line."""
        return (int(words[-1]) for words in self.lines())
