"""A step in its own OS process whose exception is an outcome."""

from perdure.engine.registry import JobRegistry
from perdure.engine.steps.step_context import StepContext

steps = JobRegistry()


class DeclinedThere(Exception):
    """Cannot be pickled: its parameters are not its `args`."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"declined: {reason}")
        self.code = code
        self.reason = reason


@steps.step(isolation="process", raises=(DeclinedThere,))
async def pay_there(ctx: StepContext, usd: int) -> str:
    """Raise the outcome."""
    raise DeclinedThere(usd, reason="no money")
