"""Standard output, a line at a time: what threads print does not get mixed up within lines."""

import io
import threading
from typing import TextIO


class WholeLines(io.TextIOBase):
    """Passes on whole lines only, each at once.

    `print` writes a text and the end of its line one after the other,
    and another thread may come between.
    """

    def __init__(self, below: TextIO) -> None:
        """Write to another stream, whose end also ends what is left of a line."""
        self._below = below
        self._lock = threading.Lock()
        self._begun = threading.local()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The encoding of the stream below."""
        return self._below.encoding

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._below.isatty()

    def fileno(self) -> int:
        return self._below.fileno()

    def write(self, text: str, /) -> int:
        lines, end, rest = (getattr(self._begun, "text", "") + text).rpartition("\n")
        self._begun.text = rest
        if end:
            self._pass_on(lines + end)
        return len(text)

    def flush(self) -> None:
        begun, self._begun.text = getattr(self._begun, "text", ""), ""
        if not self._below.closed:  # it may have gone before this one is collected
            self._pass_on(begun)

    def _pass_on(self, text: str) -> None:
        with self._lock:
            self._below.write(text)
            self._below.flush()
