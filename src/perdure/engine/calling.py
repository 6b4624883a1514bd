"""Where the function of a step runs: on the loop, in a thread, or in another OS process."""

from typing import TYPE_CHECKING, Any

from perdure.engine.away import call_away
from perdure.engine.far_call import call_far

if TYPE_CHECKING:
    from perdure.engine.step import StepOperation
    from perdure.engine.step_context import StepContext


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
        return await call_away(step.fn, context, args, kwargs)
    value = step.fn(context, *args, **kwargs)
    return await value if step.is_async else value
