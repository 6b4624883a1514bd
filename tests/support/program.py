"""A real program in an interpreter of its own, which tests send signals to."""

import contextlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Generator

# Only for a program that hangs: a good one ends as soon as it can.
HANGS = 30

PRELUDE = """
import asyncio
import perdure
from perdure import Settings, process
from perdure.process import Channel, sleep

def say(text):
    print(text, flush=True)

async def wait_forever():
    await Channel().receive()
"""


class Program:
    """A running program."""

    def __init__(self, popen: "subprocess.Popen[str]") -> None:
        self._popen = popen

    def line(self) -> str:
        """Wait for the next line that it says."""
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().rstrip("\n")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._popen.send_signal(number)

    def end(self) -> tuple[int, list[str], str]:
        """Wait for its end; give the exit code, the lines that are left, and what it complains."""
        out, complaints = self._popen.communicate(timeout=HANGS)
        return self._popen.returncode, out.splitlines(), complaints


@contextlib.contextmanager
def program(source: str) -> Generator[Program]:
    """Start a program of this source; it must define an async `main`."""
    text = PRELUDE + textwrap.dedent(source)
    with subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as popen:
        try:
            yield Program(popen)
        finally:
            popen.kill()
