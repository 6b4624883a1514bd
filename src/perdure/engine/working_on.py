"""What the code that runs now works on: for log records, and for whoever else wants to know."""

from contextvars import ContextVar
from typing import NamedTuple


class WorkingOn(NamedTuple):
    """The job of the code that runs, and its step if it is one; without a step, `step` is empty."""

    job: str
    name: str
    tenant: str
    worker: str
    step: str = ""
    attempt: int = 0


working_on: ContextVar[WorkingOn | None] = ContextVar("perdure.working_on", default=None)
