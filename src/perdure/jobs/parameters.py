"""What a step returns when it is not done yet."""

import inspect
import types
from collections.abc import Callable, Mapping
from typing import (
    Any,
    Generic,
    Never,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import astuple

from perdure.base.codec import LIMITS, Codec, PayloadLimits, on_one_line, parse
from perdure.base.errors import ArgumentError, DefinitionError, Drift, WrongType
from perdure.base.schema import adapted, is_abstract, json_schema

R_co = TypeVar("R_co", covariant=True)


class Partial(Struct, Generic[R_co], frozen=True):
    """So much is done: the step is called again and goes on from the checkpoint.

    Attributes:
        output: What there is already; a compensation gets it if the step never ends.
        checkpoint: What `previous_checkpoint` of the next call gives.
    """

    output: R_co
    checkpoint: Any


# The parameters of a step or job: how a call becomes JSON, and JSON a call.
#
# Everything is prepared when the function is defined. A call is then one struct, made, written and
# read in C; only a call that does not fit is looked at in Python, in order to name every reason.

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Parameter(Struct, frozen=True):
    """One parameter that is stored."""

    name: str
    type: Any
    default: Any = NODEFAULT
    by_position: bool = True


class Parameters:
    """All parameters of a function but its context.

    Attributes:
        all: The parameters, in order: those by position first.
        what: Whose they are, for messages: "step convert".
    """

    __slots__ = ("_codec", "_positions", "_struct", "all", "what")

    def __init__(self, parameters: tuple[Parameter, ...], what: str) -> None:
        self.all = parameters
        self.what = what
        self._positions = sum(parameter.by_position for parameter in parameters)
        for parameter in parameters:
            _check(parameter, what)
        self._struct = _struct_of(parameters)
        loose = any(is_abstract(parameter.type) for parameter in parameters)
        whose = f"the arguments of {what}"
        self._codec: Codec[Any] = Codec(self._struct, whose, "argument", loose=loose)

    def pack(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limits: PayloadLimits = LIMITS
    ) -> bytes:
        """Give a call's arguments as a JSON object by parameter name, defaults included.

        Raises:
            ArgumentError: They do not fit; every reason is named.
            Unstorable, PayloadTooLarge: They fit, and cannot be stored.
        """
        try:
            call = self._struct(*args, **kwargs)
            return self._codec.encode(call, limits)
        except (TypeError, WrongType):
            self._refuse(args, kwargs, limits)

    def pack_json(self, text: bytes | str, limits: PayloadLimits = LIMITS) -> bytes:
        """Do as `pack` with arguments that somebody wrote as a JSON object.

        Raises:
            ArgumentError: They do not fit; every reason is named.
            Unstorable: It is no JSON, or it cannot be stored.
        """
        written = parse(text, f"the arguments of {self.what}")
        if not isinstance(written, dict):
            raise ArgumentError(self._whose(), ["they must be a JSON object, by parameter name"])
        fields = cast("dict[str, Any]", written)
        problems = self.problems(fields)
        if problems:
            raise ArgumentError(self._whose(), problems)
        return self._codec.encode(self._codec.decode(msgspec.json.encode(fields)), limits)

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the arguments of a stored call, typed by the annotations.

        Raises:
            Drift: They were stored for other parameters.
        """
        values = astuple(self._codec.decode(data))
        if len(values) == self._positions:
            return values, {}
        names = (parameter.name for parameter in self.all[self._positions :])
        args = values[: self._positions]
        return args, dict(zip(names, values[self._positions :], strict=True))

    def schema(self) -> dict[str, Any]:
        """Describe the JSON object of arguments: for people, and for programs that write it."""
        return json_schema(self._struct)

    def problems(self, written: Mapping[str, Any]) -> list[str]:
        """Name everything that is wrong with arguments in the form of plain JSON."""
        found = self.misnamed(written)
        for parameter in self.all:
            if parameter.name in written:
                found += misfit(parameter.type, written[parameter.name], f"`{parameter.name}`")
        return found

    def _refuse(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limits: PayloadLimits
    ) -> NoReturn:
        names = [parameter.name for parameter in self.all if parameter.by_position]
        given = dict(zip(names, args, strict=False)) | dict(kwargs)
        problems = self.misnamed(given)
        if len(args) > len(names):
            problems.append(f"{len(args)} positional arguments where there are {len(names)}")
        problems += [f"`{name}` is given twice" for name in names[: len(args)] if name in kwargs]
        for parameter in self.all:
            if parameter.name in given:
                problems += _wrong_type(parameter, given[parameter.name], limits)
        raise ArgumentError(self._whose(), problems) from None

    def misnamed(self, given: Mapping[str, Any]) -> list[str]:
        """Name arguments that are missing, and those that there is no parameter for."""
        needed = [each.name for each in self.all if each.default is NODEFAULT]
        known = {parameter.name for parameter in self.all}
        missing = [f"`{name}` is missing" for name in needed if name not in given]
        return missing + [f"there is no parameter `{name}`" for name in given if name not in known]

    def _whose(self) -> str:
        return f"the arguments of {self.what} do not fit"


def misfit(declared: Any, written: Any, what: str) -> list[str]:
    """Tell, as a list of one or none, that a piece of plain JSON is no value of a type."""
    try:
        Codec[Any](declared, what).decode(msgspec.json.encode(written))
    except Drift as error:
        return [f"{what} has the wrong type: {on_one_line(error.__cause__)}"]
    return []


def parameters_of(fn: Callable[..., Any], what: str, *, context: int = 0) -> Parameters:
    """Read the signature of a function; the parameter at `context` is not stored.

    Raises:
        DefinitionError: It has no context, has `*args` or `**kwargs`, or a type cannot be stored.
    """
    found = list(inspect.signature(fn).parameters.values())
    if not found or any(each.kind in _MANY for each in found):
        raise DefinitionError(
            f"{what} must take a context and then parameters with names; `*args` and `**kwargs` "
            "cannot be stored by name"
        )
    if found[context].kind not in _BY_POSITION:
        raise DefinitionError(f"{what} must take its context by position")
    del found[context]
    types_ = _annotations(fn, [each.name for each in found], what)
    parameters = (
        Parameter(
            each.name,
            types_.get(each.name, Any),
            NODEFAULT if each.default is inspect.Parameter.empty else each.default,
            each.kind in _BY_POSITION,
        )
        for each in found
    )
    return Parameters(tuple(parameters), what)


def result_type(fn: Callable[..., Any], what: str) -> Any:
    """Give the declared type of the result without `Partial`; Any if there is none."""
    declared = _annotations(fn, ["return"], what).get("return", Any)
    if declared in (NoReturn, Never):
        return Any
    if get_origin(declared) is Partial:
        return get_args(declared)[0]
    if get_origin(declared) not in (Union, types.UnionType):
        return Any if declared is Partial else declared
    whole = [part for part in get_args(declared) if (get_origin(part) or part) is not Partial]
    return Union[tuple(whole)] if whole else Any  # noqa: UP007  made of a tuple


def _annotations(fn: Callable[..., Any], names: list[str], what: str) -> dict[str, Any]:
    """Resolve some annotations; that of the context may be known to type checkers alone."""
    function: Any = inspect.unwrap(getattr(fn, "__func__", fn))
    written = cast("dict[str, Any]", getattr(function, "__annotations__", {}))
    carrier = types.SimpleNamespace(__annotations__={n: written[n] for n in names if n in written})
    scope = getattr(function, "__globals__", {})
    try:
        return get_type_hints(carrier, globalns=scope, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise DefinitionError(
            f"an annotation of {what} cannot be resolved: {error}; "
            "types must be importable names of the module, not for type checkers alone"
        ) from None


def _struct_of(parameters: tuple[Parameter, ...]) -> Callable[..., Any]:
    """Make the struct that a call becomes; unknown names in stored calls are a drift."""
    fields = [_field(each) for each in parameters if each.by_position]
    made = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True)
    named = [_field(each) for each in parameters if not each.by_position]
    if named:
        made = msgspec.defstruct("Arguments", named, bases=(made,), kw_only=True)
    return made


def _field(parameter: Parameter) -> Any:
    declared = adapted(parameter.type)
    if parameter.default is NODEFAULT:
        return parameter.name, declared
    default = parameter.default
    return parameter.name, declared, msgspec.field(default_factory=lambda: default)


def _check(parameter: Parameter, what: str) -> None:
    """Refuse a type that cannot be stored, and a default that is not of its type."""
    codec: Codec[Any] = Codec(parameter.type, f"the parameter `{parameter.name}` of {what}")
    if parameter.default is NODEFAULT:
        return
    try:
        codec.encode(parameter.default)
    except ValueError as error:
        raise DefinitionError(f"the default cannot be stored: {error}") from None


def _wrong_type(parameter: Parameter, value: Any, limits: PayloadLimits) -> list[str]:
    try:
        Codec[Any](parameter.type, f"`{parameter.name}`", "argument").encode(value, limits)
    except ValueError as error:
        return [str(error)]
    return []
