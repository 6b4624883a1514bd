"""Ways to leave a step that will be begun again; none is an error, and none is to be caught."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.engine.step import StepOperation


class Leaving(BaseException):
    """Leaves the function of a step."""

    async def settle(self, operation: "StepOperation[Any]") -> None:
        """Do what is to be done before the step can be begun again."""


class AtSafePoint(Leaving):
    """Leaves a step whose progress is saved, because its worker stops."""
