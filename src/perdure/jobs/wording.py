"""Short texts about jobs for people, on the command line and on pages; pure."""

from datetime import datetime
from typing import Final

from perdure.base.visible import visible
from perdure.jobs.failure import Failure

_DAY: Final = 86_400


def clock_time(moment: float, now: float) -> str:
    """Return a moment in local time, with its date unless it is within a day."""
    local = datetime.fromtimestamp(moment).astimezone()
    return local.strftime("%H:%M:%S" if abs(now - moment) < _DAY else "%Y-%m-%d %H:%M:%S")


def shorten(text: str, most: int) -> str:
    """Return a text on one line, with an ellipsis if it was cut."""
    line = visible(" ".join(text.split()), None)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def short_failure(data: bytes, most: int) -> str:
    """Return a packed failure on one line."""
    return shorten(Failure.unpack(data).summary(), most)
