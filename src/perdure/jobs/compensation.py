"""How a step is undone."""

import inspect
from collections.abc import Callable
from typing import Any, Unpack

from msgspec import Struct

from perdure.base.backoff import Retry
from perdure.base.errors import DefinitionError
from perdure.jobs.option import (
    CompensationOptions,
    Isolation,
    check_function,
    check_isolation,
    check_retry,
    check_seconds,
    is_async,
)
from perdure.jobs.parameter import Parameters


class Compensation(Struct, frozen=True, kw_only=True):
    """A function that undoes a step: `fn(ctx, *arguments of the step, output)`.

    The output is None if the step failed or was interrupted, the output of a `Partial` if
    that is how far it came. `retry`, `timeout` and `isolation` are as those of a step.
    """

    fn: Callable[..., Any]
    is_async: bool
    retry: Retry | None = None
    timeout: float | None = None
    isolation: Isolation = "inline"

    def __call__(self, ctx: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Call the function with the arguments and the output of the step."""
        return self.fn(ctx, *args, output, **kwargs)


def compensation_of(
    fn: Callable[..., Any],
    parameters: Parameters,
    what: str,
    **options: Unpack[CompensationOptions],
) -> Compensation:
    """Make the compensation of a step with these parameters.

    Raises:
        DefinitionError: The function does not take the step's parameters and the output.
    """
    whose = f"the compensation of {what}"
    check_function(fn, whose)
    _check_signature(fn, parameters, whose)
    return Compensation(
        fn=fn,
        is_async=is_async(fn),
        retry=check_retry(options.get("retry"), whose),
        timeout=check_seconds(options.get("timeout"), f"timeout of {whose}"),
        isolation=check_isolation(options.get("isolation"), fn, whose),
    )


def _check_signature(fn: Callable[..., Any], parameters: Parameters, whose: str) -> None:
    values = [None for each in parameters.all if each.by_position]
    named = {each.name: None for each in parameters.all if not each.by_position}
    try:
        inspect.signature(fn).bind(None, *values, None, **named)
    except TypeError as error:
        names = [each.name for each in parameters.all]
        wanted = ", ".join(["ctx", *names, "output"])
        raise DefinitionError(f"{whose} must take ({wanted}): {error}") from None
