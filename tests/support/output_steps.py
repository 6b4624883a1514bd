"""A step that emits from another OS process: it stands at the top of a module, so it is found."""

from perdure import Retry
from perdure.engine.registry import JobRegistry
from perdure.engine.steps.step_context import StepContext, SyncStepContext

steps = JobRegistry()


@steps.step(isolation="process", retry=Retry(attempts=2, initial_delay="1ms"))
async def tell(ctx: StepContext, words: list[str]) -> int:
    for number, word in enumerate(words):
        ctx.emit(word)
        if number == len(words) // 2 and ctx.attempt == 1:
            raise RuntimeError("in the middle")
    return len(words)


@steps.step(isolation="process")
def tell_sync(ctx: SyncStepContext, words: list[str]) -> int:
    for word in words:
        ctx.emit(word)
    return len(words)
