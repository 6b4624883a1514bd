"""An exception as data, as the journal keeps it: without secrets, and cut to a size."""

import traceback
from typing import Any

import msgspec
from msgspec import Struct

from perdure.base.errors import JobError, StepFailed, safe_text
from perdure.base.secret import without_secrets

LONGEST_MESSAGE = 4096  # characters; a longer message holds a payload
LONGEST_TRACE = 16_384

# Secrets are removed before a text is cut, in a piece this many times longer than what is kept:
# a secret that the cut splits in two would not be recognised.
_SCANNED = 4

_ERRORS_MODULE = JobError.__module__  # users import what it defines from `perdure.errors`


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error of a step or a job, as data.

    Attributes:
        type: The class of the exception, with its module unless it is a builtin.
        message: Its text without secrets, cut to `LONGEST_MESSAGE`.
        trace: The end of its traceback without secrets, cut to `LONGEST_TRACE`.
        attempt: Which attempt failed, from 1.
        permanent: Trying again cannot help.
        outage: Another system failed and may recover.
        step: The journal entry at which the job stopped, if any.
        standing: Effects that the job leaves behind and that nothing undoes.
    """

    type: str
    message: str
    trace: str = ""
    attempt: int = 1
    permanent: bool = False
    outage: bool = False
    step: str = ""
    standing: tuple[str, ...] = ()

    def pack(self) -> bytes:
        """Return the failure as JSON; this never raises."""
        return msgspec.json.encode(self)

    @classmethod
    def unpack(cls, data: bytes) -> "Failure":
        """Read what `pack` returned."""
        return msgspec.json.decode(data, type=cls)

    def as_error(self, step: str) -> StepFailed:
        """Return the exception that the job sees, the same on the first run and on every replay."""
        return StepFailed(step, self.type, self.message, self.attempt, outage=self.outage)

    def summary(self) -> str:
        """Return one line for people."""
        text = f"{self.type}: {self.message}" if self.message else self.type
        return f"{text}; not undone: {', '.join(self.standing)}" if self.standing else text


def failure_of(
    error: BaseException, attempt: int = 1, *, permanent: bool = False, outage: bool = False
) -> Failure:
    """Return an exception as data, whatever it holds."""
    return Failure(
        type=type_name(type(error)),
        message=_clean(safe_text(error, str)[: _SCANNED * LONGEST_MESSAGE])[:LONGEST_MESSAGE],
        trace=_trace(error),
        attempt=attempt,
        permanent=permanent,
        outage=outage,
        step=error.step if isinstance(error, JobError) else "",
    )


def type_name(kind: type[Any]) -> str:
    """Return the name of a class as users import it."""
    module = "perdure.errors" if kind.__module__ == _ERRORS_MODULE else kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _trace(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as broken:  # noqa: BLE001  a broken __str__
        return f"(no traceback: {type(broken).__name__})"
    # The end says what happened and where, so the beginning is what goes.
    return _clean(text[-_SCANNED * LONGEST_TRACE :])[-LONGEST_TRACE:]


def _clean(text: str) -> str:
    """Remove secrets, and replace characters that no store accepts."""
    text = without_secrets(text)
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
