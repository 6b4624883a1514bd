"""How the logs of the pool and the crash reports of the kernel appear on a terminal."""

import logging
import os
import signal
import sys

COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m"}
PLAIN = "\x1b[0m"


class Line(logging.Formatter):
    """The time since the start and the message, of which a crash report has many lines."""

    def __init__(self, *, whole: bool, colourful: bool) -> None:
        """Show the `whole` message, or its first line."""
        super().__init__()
        self._whole = whole
        self._colourful = colourful

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if not self._whole:
            text = text.partition("\n")[0]
        if self._colourful and record.levelno in COLOURS:
            text = COLOURS[record.levelno] + text + PLAIN
        return f"{record.relativeCreated / 1000:6.2f}s  {text}"


def show_reports(*, verbose: bool) -> None:
    """Print what is logged."""
    if hasattr(signal, "SIGPIPE"):  # when nobody reads any more, as after `| head`, end quietly
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    colourful = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Line(whole=verbose, colourful=colourful))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("examples").setLevel(logging.DEBUG if verbose else logging.INFO)
