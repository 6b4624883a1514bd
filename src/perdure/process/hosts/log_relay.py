"""What code in an OS process logs is logged by its parent, as the program has configured it."""

import logging
import traceback
from typing import Any

from perdure.process.hosts import signals
from perdure.process.hosts.stand_in import Wire


class LogRelay(logging.Handler):
    """Sends records to the parent."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record, as text: its arguments may be anything."""
        try:
            self._wire.post(signals.Log(_told(record)))
        except Exception:  # noqa: BLE001 - a log must not break what it logs
            self.handleError(record)


def _told(record: logging.LogRecord) -> dict[str, Any]:
    told = {
        key: value for key, value in vars(record).items() if isinstance(value, str | int | float)
    }
    told |= {"msg": record.getMessage(), "args": None, "exc_info": None}
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        told["exc_text"] = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    return told
