"""Plans: jobs that are data, not code; a program or a language model may write them.

    Plan(extract("2026-11-16"), load(Ref("extract.rows")), name="report")

A plan is made of the same calls as the code of a job. Programs that do not have the steps write
`PlanCall("extract", day="2026-11-16")`, or JSON.

A plan is checked as a whole before anything runs: unknown steps, arguments that do not fit and
references that lead nowhere are all named, so that its author can correct them in one go. The
limits and the time of the check are linear in its size, since nobody has vouched for the writer.
"""

import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct

from perdure.base.codec import depth, flaw, parse
from perdure.base.errors import DefinitionError, PlanError, UnknownName, Unstorable
from perdure.base.schema import json_schema, kinds, write_unknown
from perdure.base.schema import part as schema_part
from perdure.jobs.definition import LONGEST_NAME, Call, Step, StepCall, check_name
from perdure.jobs.parameters import Parameter, misfit
from perdure.jobs.registry import DefinitionTable

REF_KEY = "$ref"  # in JSON: {"$ref": "extract.rows"}
LONGEST_PATH = 1000  # characters of a reference
LARGEST_PLAN = 1024 * 1024  # bytes of JSON; store larger data elsewhere and refer to it
DEEPEST_PLAN = 100  # levels of JSON, three of which are the plan's own
MOST_CALLS = 10_000
MOST_PROBLEMS = 100  # that are named at once

_TOO_DEEP = f"is nested deeper than {DEEPEST_PLAN} levels"
_END = re.compile(r"[.\[]")  # where an id may end
_PART = re.compile(r"""\.(?P<name>[^.\[\]"]+)|\[(?P<index>\d+)\]|\["(?P<key>[^"]*)"\]""")


class PlanReference(Struct, frozen=True):
    """What `Ref` returns."""

    path: str


def Ref(path: str) -> Any:  # noqa: N802  it reads as a value, and fits any parameter
    """Return what stands in the arguments of a call for the output of an earlier call.

    Args:
        path: The id of that call, then names and indexes: `extract`, `extract.rows[0]`,
            `extract["odd key"]`.
    """
    return PlanReference(path)


class PlanCall:
    """One call of a plan, by the name of its step: `PlanCall("load", rows=Ref("extract.rows"))`.

    Attributes:
        step: The full name of the step.
        id: What references to its output begin with; by default the name of the step.
        arguments: By parameter name, as plain JSON values; references are `{"$ref": path}`.
    """

    __slots__ = ("arguments", "id", "step")

    def __init__(self, step: str, /, *, id: str | None = None, **arguments: Any) -> None:
        """Take the arguments by name; if the step has a parameter `id`, use `PlanCall.of`."""
        self._fill(step, id, arguments)

    @classmethod
    def of(cls, step: str, arguments: Mapping[str, Any], id: str | None = None) -> "PlanCall":
        """Make a call whose arguments may have any name."""
        made = cls.__new__(cls)
        made._fill(step, id, arguments)  # noqa: SLF001  instead of __init__
        return made

    def _fill(self, step: str, id: str | None, arguments: Mapping[str, Any]) -> None:
        self.step: str = step
        self.id: str = step if id is None else id
        self.arguments: dict[str, Any] = _plain(dict(arguments), step)

    def __repr__(self) -> str:
        return f"PlanCall({self.step!r}, id={self.id!r}, {self.arguments!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlanCall):
            return NotImplemented
        mine = (self.step, self.id, self.arguments)
        return mine == (other.step, other.id, other.arguments)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class _Written(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A call as JSON."""

    step: str
    arguments: dict[str, Any] = {}
    id: str | None = None


class _WrittenPlan(Struct, forbid_unknown_fields=True):
    """A plan as JSON."""

    name: str
    calls: list[_Written]


class Plan:
    """Calls of steps, one after the other; later calls may refer to the output of earlier ones.

    The result of the job is the output of the last call.

    Attributes:
        name: The name of the job.
        calls: The calls, by the names of their steps.
    """

    __slots__ = ("_definitions", "calls", "name")

    def __init__(self, *calls: "StepCall[Any] | PlanCall", name: str = "plan") -> None:
        """Take calls of steps; the id of each is the step's name unless `options(id=…)` sets it.

        Raises:
            DefinitionError: A call is not one of a step, or has options that a plan cannot keep.
            ArgumentError: A call has too many arguments.
        """
        self.name = name
        self.calls: tuple[PlanCall, ...] = tuple(_planned(call) for call in calls)
        # The steps of calls that were not given by name; see `named`.
        self._definitions = {
            place: cast("Step[..., Any]", call.definition)
            for place, call in enumerate(calls)
            if isinstance(call, Call)
        }

    def __repr__(self) -> str:
        return f"<Plan {self.name}: {', '.join(call.id for call in self.calls)}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return (self.name, self.calls) == (other.name, other.calls)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def named(self, registry: DefinitionTable) -> "Plan":
        """Return the plan with the full names of its steps in a registry.

        Raises:
            UnknownName: A step is not registered there.
        """
        if not self._definitions:
            return self
        full = {place: registry.name(step) for place, step in self._definitions.items()}
        calls = (
            PlanCall.of(full.get(place, call.step), call.arguments, call.id)
            for place, call in enumerate(self.calls)
        )
        return Plan(*calls, name=self.name)

    @classmethod
    def from_json(cls, text: bytes | str) -> "Plan":
        """Read a plan: `{"name": …, "calls": [{"step": …, "arguments": {…}, "id": …}, …]}`.

        Raises:
            PlanError: The text is not JSON, or not of this form.
        """
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        try:
            _check_size(data)
            parsed = parse(text, "the plan")
            _check_depth(data)  # after parsing: counting in text that is not JSON may never end
            written = msgspec.convert(parsed, _WrittenPlan)
        except (Unstorable, msgspec.ValidationError) as error:
            raise PlanError([str(error)]) from None
        calls = (PlanCall.of(each.step, each.arguments, each.id) for each in written.calls)
        return cls(*calls, name=written.name)

    def to_json(self) -> bytes:
        """Return the plan in the form that `from_json` reads."""
        calls = [
            _Written(call.step, call.arguments, None if call.id == call.step else call.id)
            for call in self.calls
        ]
        return msgspec.json.encode(_WrittenPlan(self.name, calls))

    def check(self, registry: DefinitionTable) -> None:
        """Check the plan against the steps that it calls.

        Raises:
            PlanError: It cannot run; every reason is named.
        """
        self._check(registry.find_step)

    def check_by_names(self, steps: Collection[str]) -> None:
        """Check the plan where the code of its steps is not: all but their arguments.

        Args:
            steps: The names of the steps that workers know.

        Raises:
            PlanError: It cannot run; every reason is named.
        """

        def find(name: str) -> None:
            if name not in steps:
                raise UnknownName(f"no worker knows the step {_short(name)!r}")

        self._check(find)

    def _check(self, find: "_FindStep") -> None:
        try:
            data = self.to_json()
            _check_size(data)
            _check_depth(data)
        except Unstorable as error:
            raise PlanError([str(error)]) from None
        found = _problems(self.name, self.calls, find)
        if found:
            raise PlanError(found)

    def resolve(
        self, call: PlanCall, outputs: Mapping[str, Any], step: Step[..., Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call as typed values, with outputs in place of references.

        Args:
            call: One of this plan.
            outputs: The outputs of earlier calls, by id.
            step: The step that it calls.

        Raises:
            PlanError: A reference leads nowhere in the actual outputs.
            ArgumentError: The values do not fit the parameters.
        """
        found = (split_path(path, outputs) for path in refs(call.arguments))
        needed = {each[0] for each in found if each}
        try:
            arguments = fill_refs(call.arguments, {id: _plain(outputs[id], id) for id in needed})
        except LookupError as error:
            raise PlanError([f"call {call.id}: {error}"]) from None
        return step.parameters.unpack_json(msgspec.json.encode(arguments))


def _planned(given: object) -> PlanCall:
    """Return a call by the name of its step."""
    if isinstance(given, PlanCall):
        return given
    call = cast("Call[Any]", given)
    if not isinstance(given, Call) or not isinstance(call.definition, Step):
        raise DefinitionError(f"a plan is made of calls of steps, such as `load(3)`, not {call!r}")
    step, options = call.use().definition, call.given
    if options.timeout is not None or options.retry is not None:
        raise DefinitionError(
            f"{call!r}: a plan keeps no option of a call but `id`; set the others in @app.step"
        )
    return PlanCall.of(step.name, step.parameters.by_name(call.args, call.kwargs), options.id)


def _plain(value: Any, whose: str) -> Any:
    """Return values as plain JSON, and references as `{"$ref": path}`."""
    try:
        found = flaw(value)
        if found is not None:
            raise Unstorable(f"{whose}, at {found.path.strip('. ')}: {found.why}")
        return msgspec.to_builtins(_spelled(value), str_keys=True, enc_hook=write_unknown)
    except RecursionError:
        raise Unstorable(f"{whose} {_TOO_DEEP}, or contains itself") from None


def _check_size(data: bytes) -> None:
    """Raise Unstorable if a plan is too large, before it is parsed."""
    if len(data) > LARGEST_PLAN:
        raise Unstorable(f"it has {len(data):,} bytes; at most {LARGEST_PLAN:,} are allowed")


def _check_depth(data: bytes) -> None:
    if depth(data) > DEEPEST_PLAN:
        raise Unstorable(f"it {_TOO_DEEP}")


def _spelled(value: Any) -> Any:
    if isinstance(value, PlanReference):
        return {REF_KEY: value.path}
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return {key: _spelled(each) for key, each in fields.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in cast("Iterable[Any]", value)]
    return value


# References: `extract.rows[0].id` is the output of an earlier call, or a part of it.


def refs(value: Any) -> Iterator[str]:
    """Yield the paths of all references in plain JSON values."""
    path = path_of(value)
    if path is not None:
        yield path
    elif isinstance(value, dict):
        for each in cast("dict[str, Any]", value).values():
            yield from refs(each)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from refs(each)


def path_of(value: Any) -> str | None:
    """Return the path if a plain JSON value is a reference, else None."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    path = fields.get(REF_KEY)
    return path if isinstance(path, str) and len(fields) == 1 else None


def fill_refs(value: Any, outputs: Mapping[str, Any]) -> Any:
    """Return a value with outputs (plain JSON, by call id) in place of its references.

    Raises:
        LookupError: There is nothing at a path.
    """
    path = path_of(value)
    if path is not None:
        return _at(path, outputs)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key: fill_refs(each, outputs) for key, each in fields.items()}
    if isinstance(value, list):
        return [fill_refs(each, outputs) for each in cast("list[Any]", value)]
    return value


def split_path(path: str, ids: Container[str]) -> tuple[str, list[str | int]] | None:
    """Split a path into the id of a call and the parts after it; None if no call has that id.

    Names of steps may contain dots, so the longest matching id wins. Only the beginnings of the
    path are looked up, however many ids there are.

    Raises:
        ValueError: What follows the id is not a path, or the path is too long.
    """
    if len(path) > LONGEST_PATH:
        raise ValueError(f"it has {len(path):,} characters; at most {LONGEST_PATH:,} are allowed")
    ends = [len(path), *(found.start() for found in reversed([*_END.finditer(path)]))]
    id = next((path[:end] for end in ends if path[:end] in ids), None)
    return None if id is None else (id, _parts(path[len(id) :]))


def _parts(text: str) -> list[str | int]:
    found: list[str | int] = []
    end = 0
    while end < len(text):
        match = _PART.match(text, end)
        if match is None:
            raise ValueError(f"{text[end:]!r} is neither .name nor [index]")
        index = match["index"]
        found.append(int(index) if index else match["name"] or match["key"] or "")
        end = match.end()
    return found


def _at(path: str, outputs: Mapping[str, Any]) -> Any:
    found = split_path(path, outputs)
    if found is None:
        raise LookupError(f"the reference {path!r} does not name an earlier call")
    id, parts = found
    value = outputs[id]
    for part in parts:
        try:
            value = value[part]
        except (LookupError, TypeError):
            raise LookupError(f"the reference {path!r} leads nowhere: no {part!r}") from None
    return value


# Checking a plan.


# Returns a step; None if only its name is known here.
_FindStep: TypeAlias = Callable[[str], Step[..., Any] | None]


def _problems(name: str, calls: Sequence[PlanCall], find: _FindStep) -> list[str]:
    """Return the reasons why a plan cannot run, up to a limit; none if it can.

    Takes time linear in the size of the plan.
    """
    found = list(islice(_all_problems(name, calls, find), MOST_PROBLEMS + 1))
    if len(found) > MOST_PROBLEMS:
        found[MOST_PROBLEMS:] = ["and more: correct these first"]
    return found


def _all_problems(name: str, calls: Sequence[PlanCall], find: _FindStep) -> Iterator[str]:
    yield from _of_the_whole(name, calls)
    if len(calls) > MOST_CALLS:
        return
    known = _Known({call.id for call in calls})
    for call in calls:
        try:
            step = find(call.step)
        except UnknownName as error:
            yield f"call {_short(call.id)}: {error}"
            yield from _bad_refs(call, known)
            known.before[call.id] = None
            continue
        yield from _bad_refs(call, known)
        if step is not None:
            yield from _bad_arguments(call, step, known)
        known.before[call.id] = step


class _Known:
    """What is known about the earlier calls while the calls of a plan are checked in turn."""

    def __init__(self, ids: set[str]) -> None:
        self.ids = ids
        self.before: dict[str, Step[..., Any] | None] = {}  # None: the step is unknown
        self._schemas: dict[int, dict[str, Any]] = {}
        self._kept: list[Any] = []  # keeps the types alive, so that each `id()` stays unique

    def schema(self, declared: Any) -> dict[str, Any]:
        """Return the JSON schema of a type, computed once."""
        found = self._schemas.get(id(declared))
        if found is None:
            found = self._schemas[id(declared)] = json_schema(declared)
            self._kept.append(declared)
        return found


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"


def _of_the_whole(name: str, calls: Sequence[PlanCall]) -> Iterator[str]:
    if not calls:
        yield "it has no calls"
    if len(calls) > MOST_CALLS:
        yield f"it has {len(calls):,} calls; at most {MOST_CALLS:,} are allowed"
    seen: set[str] = set()
    for text in (name, *(call.id for call in calls)):
        try:
            check_name(text, "plan or call")
        except DefinitionError as error:
            yield str(error)
    for call in calls:
        if call.id in seen:
            yield f"two calls have the id {call.id!r}: give one of them another `id`"
        seen.add(call.id)


def _bad_refs(call: PlanCall, known: _Known) -> Iterator[str]:
    for path in refs(call.arguments):
        why = _bad_ref(path, known)
        if why:
            yield f"call {_short(call.id)}: the reference {_short(path)!r} {why}"


def _bad_ref(path: str, known: _Known) -> str:
    try:
        found = split_path(path, known.before)
        if found is None:
            late = split_path(path, known.ids)
            return "names a later call" if late else "names no call of the plan"
    except ValueError as error:
        return f"is not a path: {error}"
    id, parts = found
    step = known.before[id]
    if step is None or schema_part(known.schema(step.result_type), parts) is not None:
        return ""
    return f"names what step {step.name!r} does not return"


def _bad_arguments(call: PlanCall, step: Step[..., Any], known: _Known) -> Iterator[str]:
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
        # A value with references inside is checked when their outputs are known.
        if next(refs(value), None) is None:
            yield from misfit(parameter.type, value, what)
        return
    given, taken = _given(path, known), kinds(known.schema(parameter.type))
    if given is None or taken is None or given & _widened(taken):
        return
    yield f"{what} takes {_listed(taken)}, but {path!r} is {_listed(given)}"


def _given(path: str, known: _Known) -> frozenset[str] | None:
    try:
        found = split_path(path, known.before)
    except ValueError:
        return None
    if found is None:
        return None
    id, parts = found
    step = known.before[id]
    here = None if step is None else schema_part(known.schema(step.result_type), parts)
    return None if here is None else kinds(here)


def _widened(taken: frozenset[str]) -> frozenset[str]:
    return taken | {"integer"} if "number" in taken else taken


def _listed(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))
