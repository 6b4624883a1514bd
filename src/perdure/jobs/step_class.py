"""Steps that are written as classes: `name`, `execute`, `compensate`, `idempotency_key`.

    class Convert:
        name = "convert"
        timeout = "10m"

        async def execute(self, input: Files, ctx: StepContext) -> Report: ...
        async def compensate(self, input: Files, partial_output: Report | None, ctx) -> None: ...
        def idempotency_key(self, input: Files) -> str: ...

To return is success, to raise is failure, and `Partial(output, checkpoint)` is not done yet.
Every option of a step may be an attribute of the class.
"""

import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, Unpack, cast

from perdure.base.errors import DefinitionError
from perdure.jobs.definition import Step, make_step
from perdure.jobs.option import StepOptions, check_function, check_name, description_of, is_async
from perdure.jobs.parameter import parameters_of, result_type
from perdure.jobs.partial import Partial

I_contra = TypeVar("I_contra", contravariant=True)
O_co = TypeVar("O_co", covariant=True)

_OPTIONS = tuple(key for key in StepOptions.__annotations__ if key != "name")


class StepClass(Protocol[I_contra, O_co]):
    """What a class must have to be a step."""

    name: Any

    async def execute(self, input: I_contra, ctx: Any, /) -> O_co | Partial[O_co]:
        """Do the work."""
        ...


def is_step_class(thing: object) -> bool:
    """Tell whether a thing is a class with `execute`."""
    return inspect.isclass(thing) and callable(getattr(thing, "execute", None))


def step_of_object(thing: Any, **options: Unpack[StepOptions]) -> Step[..., Any]:
    """Make a step of an object that has a name and `execute`.

    Raises:
        DefinitionError: It has not, or it cannot work.
    """
    execute = getattr(thing, "execute", None)
    if inspect.isclass(thing) or not callable(execute):
        raise DefinitionError(
            f"{thing!r} is no step: give an object with `name` and `execute(input, ctx)`, "
            "or decorate a function with `step`"
        )
    given = cast("StepOptions", {**_attributes(thing), **options})
    what = "step " + check_name(given.get("name"), "step")
    check_function(execute, what)
    given.setdefault("description", description_of(None, type(thing)))
    parameters = parameters_of(execute, what, context=-1)
    declared = result_type(execute, what)
    made = make_step(_context_last(execute), parameters, declared, **given)
    _add_compensation(made, thing)
    return made


def _attributes(thing: Any) -> dict[str, Any]:
    name = getattr(thing, "name", None)
    found = {key: getattr(thing, key) for key in _OPTIONS if hasattr(thing, key)}
    return {**found, "name": name() if callable(name) else name}


def _context_last(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Turn `fn(…, ctx)` into `fn(ctx, …)`."""

    async def awaited(ctx: Any, *args: Any) -> Any:
        return await fn(*args, ctx)

    def called(ctx: Any, *args: Any) -> Any:
        return fn(*args, ctx)

    turned = awaited if is_async(fn) else called
    turned.__name__, turned.__qualname__ = fn.__name__, fn.__qualname__
    turned.__module__ = fn.__module__
    return turned


def _add_compensation(step: Step[..., Any], thing: Any) -> None:
    undo = getattr(thing, "compensate", None)
    if undo is not None:
        step.compensate(_context_last(undo))
