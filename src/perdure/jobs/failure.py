"""What the journal keeps of an exception."""

import traceback
from typing import Any

import msgspec
from msgspec import Struct

from perdure.base.errors import JobError, StepFailed, safe_text
from perdure.base.secret import without_secrets

LONGEST_MESSAGE = 4096  # characters; a longer one is somebody's payload
LONGEST_TRACE = 16_384

# Secrets are looked for in so many times as much, so that none is cut in two and missed.
_LOOKED_AT = 4

_OURS = JobError.__module__  # whatever is defined there is imported from `perdure.errors`


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error of a step or a job, as data.

    Attributes:
        type: The class of the exception, with its module unless it is a builtin.
        message: Its text without secrets, cut to `LONGEST_MESSAGE`.
        trace: The end of its traceback, likewise, cut to `LONGEST_TRACE`.
        attempt: Which attempt failed, from 1.
        permanent: It makes no sense to try again.
        outage: Another system failed, and may be well again later.
        step: The entry of the journal that a job stopped at, if it was one.
        standing: Effects that a job leaves in the world, and that nothing undoes.
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
        """Give it as JSON; this never fails."""
        return msgspec.json.encode(self)

    @classmethod
    def unpack(cls, data: bytes) -> "Failure":
        """Read what `pack` gave."""
        return msgspec.json.decode(data, type=cls)

    def as_error(self, step: str) -> StepFailed:
        """Give the exception that a job sees, the same on the first run and on every later one."""
        return StepFailed(step, self.type, self.message, self.attempt, outage=self.outage)

    def summary(self) -> str:
        """Say it in one line."""
        text = f"{self.type}: {self.message}" if self.message else self.type
        return f"{text}; not undone: {', '.join(self.standing)}" if self.standing else text


def failure_of(
    error: BaseException, attempt: int = 1, *, permanent: bool = False, outage: bool = False
) -> Failure:
    """Make data of an exception, whatever it holds."""
    return Failure(
        type=type_name(type(error)),
        message=_clean(safe_text(error, str)[: _LOOKED_AT * LONGEST_MESSAGE])[:LONGEST_MESSAGE],
        trace=_trace(error),
        attempt=attempt,
        permanent=permanent,
        outage=outage,
        step=error.step if isinstance(error, JobError) else "",
    )


def type_name(kind: type[Any]) -> str:
    """Name a class as people import it."""
    module = "perdure.errors" if kind.__module__ == _OURS else kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _trace(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as broken:  # noqa: BLE001  somebody's broken __str__
        return f"(no traceback: {type(broken).__name__})"
    # The end says what happened and where; the way there is cut.
    return _clean(text[-_LOOKED_AT * LONGEST_TRACE :])[-LONGEST_TRACE:]


def _clean(text: str) -> str:
    """Take out secrets, and replace what no store takes."""
    text = without_secrets(text)
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
