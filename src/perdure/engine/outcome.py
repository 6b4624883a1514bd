"""What came of a step: an exception as its failure, an entry of the journal as its answer."""

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.base.errors import Permanent
from perdure.jobs.failure import Failure
from perdure.jobs.model import Entry
from perdure.jobs.state import StepState

if TYPE_CHECKING:
    from perdure.engine.step import StepOperation


def as_failure(error: BaseException) -> Exception:
    """Give what the user's code raised as a failure of the step, whatever it was."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        failure: Exception = RuntimeError("the step was cancelled by its own code")
    else:
        failure = Permanent(f"the step raised {error!r}")
    failure.__cause__ = error
    return failure


def skipped_or_done(operation: "StepOperation[Any]", entry: Entry) -> None:
    """Settle an operation by what the journal says."""
    if entry.state in (StepState.SUCCEEDED, StepState.SKIPPED):
        output = entry.output
        operation.settle(None if output is None else operation.step.unpack_result(output))
    elif entry.state is StepState.FAILED and entry.error is not None:
        operation.settle(None, Failure.unpack(entry.error).as_error(entry.id))
