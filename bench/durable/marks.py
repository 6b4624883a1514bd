"""The marks that steps leave: a file that outlives whoever wrote it.

A mark is one small append, which survives a kill and costs next to nothing beside a commit.
The clock is the monotonic one, which all processes of a machine share.
"""

import os
import struct
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_RECORD = struct.Struct("<qii")
_AT_ONCE = _RECORD.size << 16
_READY = -1
_POLL = 0.001


class Mark(NamedTuple):
    """One step of one job ran at this time, in nanoseconds."""

    at: int
    job: int
    step: int


class MarkWriter:
    """The end that appends."""

    def __init__(self) -> None:
        self._file = -1

    def open(self, path: Path) -> None:
        """Append to this file from now on."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def mark(self, job: int, step: int) -> None:
        """Record that a step runs now."""
        os.write(self._file, _RECORD.pack(time.monotonic_ns(), job, step))

    def ready(self) -> None:
        """Record that the worker takes jobs from now on."""
        self.mark(_READY, 0)


# A worker process has one writer; contenders call these two.
_WRITER = MarkWriter()
open_marks = _WRITER.open
mark = _WRITER.mark
ready = _WRITER.ready


class MarkReader:
    """The end that reads the file while it grows."""

    def __init__(self, path: Path) -> None:
        self.steps: list[Mark] = []
        self.ready = 0
        self.ready_at = 0  # the last time
        self._file = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
        self._read = 0

    def read(self) -> None:
        """Read what is new."""
        data = os.pread(self._file, _AT_ONCE, self._read)
        data = data[: len(data) // _RECORD.size * _RECORD.size]
        self._read += len(data)
        for record in _RECORD.iter_unpack(data):
            if record[1] == _READY:
                self.ready += 1
                self.ready_at = record[0]
            else:
                self.steps.append(Mark(*record))

    def wait(self, reached: Callable[[], bool], limit: float, check: Callable[[], None]) -> bool:
        """Read until something is reached; return False if the time is up before.

        Args:
            reached: Whether it is.
            limit: Seconds.
            check: Is called again and again, and raises if it is no use to wait any longer.
        """
        end = time.monotonic() + limit
        while not reached():
            if time.monotonic() > end:
                return False
            check()
            time.sleep(_POLL)
            self.read()
        return True

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@contextmanager
def reading(path: Path) -> Generator[MarkReader]:
    """Read the marks in a file during a block."""
    marks = MarkReader(path)
    try:
        yield marks
    finally:
        marks.close()
