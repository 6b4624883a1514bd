"""Find everything that is wrong with a plan before anything is done; pure."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from perdure.base.errors import DefinitionError, UnknownName
from perdure.base.json_schema import json_schema, kinds, part
from perdure.jobs.definition import Step
from perdure.jobs.option import LONGEST_NAME, check_name
from perdure.jobs.parameter import Parameter, misfit
from perdure.jobs.reference import path_of, refs, split
from perdure.jobs.registry import Registry

MOST_CALLS = 10_000
MOST_PROBLEMS = 100  # that are named: whoever has more mends these first


class Caller(Protocol):
    """What is looked at of a call."""

    step: str
    id: str
    arguments: dict[str, Any]


def problems(name: str, calls: Sequence[Caller], registry: Registry) -> list[str]:
    """Name the reasons why a plan cannot be run, up to a limit; none if it can.

    In time by the length of the plan: a program may have written it.
    """
    found = list(islice(_all_problems(name, calls, registry), MOST_PROBLEMS + 1))
    if len(found) > MOST_PROBLEMS:
        found[MOST_PROBLEMS:] = ["and more: mend these first"]
    return found


def _all_problems(name: str, calls: Sequence[Caller], registry: Registry) -> Iterator[str]:
    yield from _of_the_whole(name, calls)
    if len(calls) > MOST_CALLS:
        return
    known = _Known({call.id for call in calls})
    for call in calls:
        try:
            step = registry.find_step(call.step)
        except UnknownName as error:
            yield f"call {_short(call.id)}: {error}"
            yield from _bad_refs(call, known)
            known.before[call.id] = None
            continue
        yield from _bad_refs(call, known)
        yield from _bad_arguments(call, step, known)
        known.before[call.id] = step


class _Known:
    """What is known of the calls of a plan, while one after the other is checked."""

    def __init__(self, ids: set[str]) -> None:
        self.ids = ids
        self.before: dict[str, Step[..., Any] | None] = {}  # None: there is no such step
        self._schemas: dict[int, dict[str, Any]] = {}
        self._kept: list[Any] = []  # so that an `id` means one type only

    def schema(self, declared: Any) -> dict[str, Any]:
        """Describe a type; each once."""
        found = self._schemas.get(id(declared))
        if found is None:
            found = self._schemas[id(declared)] = json_schema(declared)
            self._kept.append(declared)
        return found


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"


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


def _bad_refs(call: Caller, known: _Known) -> Iterator[str]:
    for path in refs(call.arguments):
        why = _bad_ref(path, known)
        if why:
            yield f"call {_short(call.id)}: the reference {_short(path)!r} {why}"


def _bad_ref(path: str, known: _Known) -> str:
    try:
        found = split(path, known.before)
        if found is None:
            late = split(path, known.ids)
            return "names a call that comes later" if late else "names no call of the plan"
    except ValueError as error:
        return f"is no path: {error}"
    id, parts = found
    step = known.before[id]
    if step is None or part(known.schema(step.result_type), parts) is not None:
        return ""
    return f"names what step {step.name} does not give"


def _bad_arguments(call: Caller, step: Step[..., Any], known: _Known) -> Iterator[str]:
    for problem in step.parameters.misnamed(call.arguments):
        yield f"call {_short(call.id)}: {_short(problem)}"
    for parameter in step.parameters.all:
        if parameter.name in call.arguments:
            value = call.arguments[parameter.name]
            for problem in _bad_value(parameter, value, known):
                yield f"call {_short(call.id)}: {problem}"


def _bad_value(parameter: Parameter, value: Any, known: _Known) -> Iterator[str]:
    what = f"`{parameter.name}`"
    path = path_of(value)
    if path is None:
        # What has references inside of it is checked when they are known.
        if next(refs(value), None) is None:
            yield from misfit(parameter.type, value, what)
        return
    given, taken = _given(path, known), kinds(known.schema(parameter.type))
    if given is None or taken is None or given & _widened(taken):
        return
    yield f"{what} takes {_listed(taken)}, and {path!r} gives {_listed(given)}"


def _given(path: str, known: _Known) -> frozenset[str] | None:
    try:
        found = split(path, known.before)
    except ValueError:
        return None
    if found is None:
        return None
    id, parts = found
    step = known.before[id]
    here = None if step is None else part(known.schema(step.result_type), parts)
    return None if here is None else kinds(here)


def _widened(taken: frozenset[str]) -> frozenset[str]:
    return taken | {"integer"} if "number" in taken else taken


def _listed(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))
