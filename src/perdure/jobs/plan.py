"""Plans: jobs that are data, not code; a program, or a language model, may write them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from perdure.base.codec import depth, parse
from perdure.base.errors import PlanError, Unstorable
from perdure.base.schema import write_unknown
from perdure.base.storable import flaw
from perdure.jobs.definition import Step
from perdure.jobs.plan_check import Caller, problems
from perdure.jobs.reference import KEY, Ref, filled, refs, split
from perdure.jobs.registry import Registry

LARGEST_PLAN = 1024 * 1024  # bytes of its JSON; what is large is stored elsewhere, and referred to
DEEPEST_PLAN = 100  # levels of its JSON, which has three of its own

_TOO_DEEP = f"is nested deeper than {DEEPEST_PLAN} levels"


class Call:
    """One call of a plan: `Call("load", rows=Ref("extract.rows"))`.

    Attributes:
        step: The full name of the step.
        id: What references to its output begin with; the step's name if it is not given.
        arguments: By parameter name, as plain JSON values; references are `{"$ref": path}`.
    """

    __slots__ = ("arguments", "id", "step")

    def __init__(self, step: str, /, *, id: str | None = None, **arguments: Any) -> None:
        """Take the arguments by name; for a parameter that is called `id` see `Call.of`."""
        self._fill(step, id, arguments)

    @classmethod
    def of(cls, step: str, arguments: Mapping[str, Any], id: str | None = None) -> "Call":
        """Make a call whose arguments have any names."""
        made = cls.__new__(cls)
        made._fill(step, id, arguments)  # noqa: SLF001  instead of __init__
        return made

    def _fill(self, step: str, id: str | None, arguments: Mapping[str, Any]) -> None:
        self.step = step
        self.id = step if id is None else id
        self.arguments: dict[str, Any] = _plain(dict(arguments), step)

    def __repr__(self) -> str:
        return f"Call({self.step!r}, id={self.id!r}, {self.arguments!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Call):
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


class Plan(Struct, frozen=True):
    """Calls of steps, one after the other; what one gives, later ones may refer to.

    The result of the job is the output of the last call.
    """

    name: str
    calls: Sequence[Call]

    def __post_init__(self) -> None:
        force_setattr(self, "calls", tuple(self.calls))

    @classmethod
    def from_json(cls, text: bytes | str) -> "Plan":
        """Read a plan: `{"name": …, "calls": [{"step": …, "arguments": {…}, "id": …}, …]}`.

        Raises:
            PlanError: It is no JSON, or not of this form.
        """
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        try:
            _check_size(data)
            parsed = parse(text, "the plan")
            _check_depth(data)  # only now: to count in what is no JSON may take for ever
            written = msgspec.convert(parsed, _WrittenPlan)
        except (Unstorable, msgspec.ValidationError) as error:
            raise PlanError([str(error)]) from None
        calls = (Call.of(each.step, each.arguments, each.id) for each in written.calls)
        return cls(written.name, tuple(calls))

    def to_json(self) -> bytes:
        """Write the plan in the form that `from_json` reads."""
        calls = [
            _Written(call.step, call.arguments, None if call.id == call.step else call.id)
            for call in self.calls
        ]
        return msgspec.json.encode(_WrittenPlan(self.name, calls))

    def check(self, registry: Registry) -> None:
        """Check the plan against the steps that it calls.

        Raises:
            PlanError: It cannot be run; every reason is named.
        """
        try:
            data = self.to_json()
            _check_size(data)
            _check_depth(data)
        except Unstorable as error:
            raise PlanError([str(error)]) from None
        found = problems(self.name, cast("Sequence[Caller]", self.calls), registry)
        if found:
            raise PlanError(found)

    def resolve(
        self, call: Call, outputs: Mapping[str, Any], step: Step[..., Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the arguments of a call, typed, with outputs in the place of references.

        Args:
            call: One of this plan.
            outputs: What the calls before it gave, by id.
            step: The step that it calls.

        Raises:
            PlanError: A reference leads nowhere in what was really given.
            ArgumentError: What was given does not fit.
        """
        found = (split(path, outputs) for path in refs(call.arguments))
        needed = {each[0] for each in found if each}
        try:
            arguments = filled(call.arguments, {id: _plain(outputs[id], id) for id in needed})
        except LookupError as error:
            raise PlanError([f"call {call.id}: {error}"]) from None
        parameters = step.parameters
        return parameters.unpack(parameters.pack_json(msgspec.json.encode(arguments)))


def _plain(value: Any, whose: str) -> Any:
    """Turn values into plain JSON ones, references into `{"$ref": path}`."""
    try:
        found = flaw(value)
        if found is not None:
            raise Unstorable(f"{whose}, at {found.path.strip('. ')}: {found.why}")
        return msgspec.to_builtins(_spelled(value), str_keys=True, enc_hook=write_unknown)
    except RecursionError:
        raise Unstorable(f"{whose}: {_TOO_DEEP}, or holds itself") from None


def _check_size(data: bytes) -> None:
    """Refuse a plan that is too large before anything is made of it."""
    if len(data) > LARGEST_PLAN:
        raise Unstorable(f"it has {len(data):,} bytes, and {LARGEST_PLAN:,} are the most")


def _check_depth(data: bytes) -> None:
    if depth(data) > DEEPEST_PLAN:
        raise Unstorable(f"it {_TOO_DEEP}")


def _spelled(value: Any) -> Any:
    if isinstance(value, Ref):
        return {KEY: value.path}
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return {key: _spelled(each) for key, each in fields.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in cast("Iterable[Any]", value)]
    return value
