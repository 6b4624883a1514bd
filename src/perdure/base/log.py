"""Our loggers tell nothing that hides: whatever jobs and people wrote is made visible in them.

A record of ours may carry the text of anybody's exception. Here, the last place before handlers
see it, secrets are taken out, what hides is spelled out, and no line but the first begins at the
margin, where a line that somebody made up would look like a record.
"""

import logging
import re
import traceback
from typing import Final

from perdure.base.scrub import without_secrets
from perdure.base.visible import visible

# All that the package logs by; a test holds that there are no others.
NAMES: Final = (
    "perdure.cli",
    "perdure.host",
    "perdure.jobs",
    "perdure.notify",
    "perdure.otp",
    "perdure.process",
    "perdure.store",
    "perdure.supervisor",
    "perdure.task",
    "perdure.telemetry",
    "perdure.worker",
)

_AT_MARGIN: Final = re.compile(r"\n(?=\S)")


def readable(text: str) -> str:
    """Give a text of several lines as a log may hold it."""
    return _AT_MARGIN.sub("\n  ", visible(without_secrets(text), None, lines=True))


class Readable(logging.Filter):
    """Makes records readable; those that are keep their template and arguments."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, changed if need be."""
        try:
            told = record.getMessage()
        except Exception:  # noqa: BLE001 - the handlers report it
            return True
        shown = readable(told)
        if shown != told:
            record.msg, record.args = shown, None
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            text = "".join(traceback.format_exception(*record.exc_info))
            record.exc_text = readable(text.rstrip())
        return True


for _name in NAMES:
    logging.getLogger(_name).addFilter(Readable())
