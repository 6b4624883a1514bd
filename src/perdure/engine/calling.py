"""Where the function of a step runs: on the loop, in a thread, or in another OS process."""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from perdure.engine.away import call_away
from perdure.engine.far_call import call_far
from perdure.engine.threads import Whose, older_calls

if TYPE_CHECKING:
    from perdure.engine.step import StepOperation
    from perdure.engine.step_context import StepContext


_log = logging.getLogger("perdure.worker")


async def call_step(
    operation: "StepOperation[Any]",
    context: "StepContext",
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call the function of a step where its isolation says."""
    step = operation.step
    if step.isolation == "process":
        return await call_far(operation, context)
    if step.isolation == "thread":
        whose = Whose(operation.run.job.id, operation.entry.id, operation.run.epoch)
        await _until_alone(operation, whose)
        return await call_away(step.fn, context, args, kwargs, whose)
    value = step.fn(context, *args, **kwargs)
    return await value if step.is_async else value


async def _until_alone(operation: "StepOperation[Any]", whose: Whose) -> None:
    """Wait for the threads of a run that has lost its lease: a step never runs beside itself here.

    Its time begins after that.
    """
    for ended in older_calls(whose):
        _log.warning(
            "job %s: %s is not started again while a thread of an earlier attempt works on it here",
            *whose[:2],
        )
        operation.disarm()
        await asyncio.shield(asyncio.wrap_future(ended))
        operation.arm()
