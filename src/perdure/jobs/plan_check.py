"""Find everything that is wrong with a plan before anything is done; pure."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from perdure.base.errors import DefinitionError, UnknownName
from perdure.base.json_schema import json_schema, kinds, part
from perdure.jobs.definition import Step
from perdure.jobs.option import check_name
from perdure.jobs.parameter import Parameter, misfit
from perdure.jobs.reference import path_of, refs, split
from perdure.jobs.registry import Registry

MOST_CALLS = 10_000


class Caller(Protocol):
    """What is looked at of a call."""

    step: str
    id: str
    arguments: dict[str, Any]


def problems(name: str, calls: Sequence[Caller], registry: Registry) -> list[str]:
    """Name every reason why a plan cannot be run; none if it can."""
    found = list(_of_the_whole(name, calls))
    ids = [call.id for call in calls]
    steps: dict[str, Step[..., Any]] = {}  # of the calls before, by id
    for number, call in enumerate(calls):
        try:
            step = registry.find_step(call.step)
        except UnknownName as error:
            found.append(f"call {call.id}: {error}")
            found += _bad_refs(call, ids[:number], ids[number:], steps)
            continue
        found += _bad_refs(call, ids[:number], ids[number:], steps)
        found += _bad_arguments(call, step, steps)
        steps[call.id] = step
    return found


def _of_the_whole(name: str, calls: Sequence[Caller]) -> Iterator[str]:
    if not calls:
        yield "it has no calls"
    if len(calls) > MOST_CALLS:
        yield f"it has {len(calls)} calls, and {MOST_CALLS} are the most"
    seen: set[str] = set()
    for text in (name, *(call.id for call in calls)):
        try:
            check_name(text, "plan or call")
        except DefinitionError as error:
            yield str(error)
    for call in calls:
        if call.id in seen:
            yield f"two calls have the id {call.id}: give one of them another with `id`"
        seen.add(call.id)


def _bad_refs(
    call: Caller, before: list[str], after: list[str], steps: dict[str, Step[..., Any]]
) -> Iterator[str]:
    for path in refs(call.arguments):
        why = _bad_ref(path, before, after, steps)
        if why:
            yield f"call {call.id}: the reference {path!r} {why}"


def _bad_ref(
    path: str, before: list[str], after: list[str], steps: dict[str, Step[..., Any]]
) -> str:
    try:
        found = split(path, before)
        if found is None:
            late = split(path, after)
            return "names a call that comes later" if late else "names no call of the plan"
    except ValueError as error:
        return f"is no path: {error}"
    id, parts = found
    step = steps.get(id)
    if step is None or part(json_schema(step.result_type), parts) is not None:
        return ""
    return f"names what step {step.name} does not give"


def _bad_arguments(
    call: Caller, step: Step[..., Any], steps: dict[str, Step[..., Any]]
) -> Iterator[str]:
    for problem in step.parameters.misnamed(call.arguments):
        yield f"call {call.id}: {problem}"
    for parameter in step.parameters.all:
        if parameter.name in call.arguments:
            value = call.arguments[parameter.name]
            for problem in _bad_value(parameter, value, steps):
                yield f"call {call.id}: {problem}"


def _bad_value(parameter: Parameter, value: Any, steps: dict[str, Step[..., Any]]) -> Iterator[str]:
    what = f"`{parameter.name}`"
    path = path_of(value)
    if path is None:
        # What has references inside of it is checked when they are known.
        if next(refs(value), None) is None:
            yield from misfit(parameter.type, value, what)
        return
    given, taken = _given(path, steps), kinds(json_schema(parameter.type))
    if given is None or taken is None or given & _widened(taken):
        return
    yield f"{what} takes {_listed(taken)}, and {path!r} gives {_listed(given)}"


def _given(path: str, steps: dict[str, Step[..., Any]]) -> frozenset[str] | None:
    try:
        found = split(path, steps)
    except ValueError:
        return None
    if found is None:
        return None
    id, parts = found
    here = part(json_schema(steps[id].result_type), parts)
    return None if here is None else kinds(here)


def _widened(taken: frozenset[str]) -> frozenset[str]:
    return taken | {"integer"} if "number" in taken else taken


def _listed(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))
