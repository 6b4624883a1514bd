"""The parameters and the result of a step or job: how a call becomes JSON, and JSON a call.

Everything is prepared when the function is defined. A call is then one struct that msgspec makes,
writes and reads in C. Only a call that does not fit is examined in Python, to name every reason.
"""

import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import (
    Any,
    ClassVar,
    Final,
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

from perdure.base.codec import (
    LIMITS,
    Codec,
    PayloadKind,
    PayloadLimits,
    decode,
    encode,
    on_one_line,
    parse,
    read_plain,
    write_plain,
)
from perdure.base.errors import ArgumentError, DefinitionError, Drift, Unstorable, WrongType
from perdure.base.schema import adapted, is_abstract, json_schema
from perdure.jobs.payload import is_same, is_stand_in
from perdure.jobs.redaction import refuse_markers

R_co = TypeVar("R_co", covariant=True)


class Partial(Struct, Generic[R_co], frozen=True):
    """What a step returns when it is not done: it is called again, from the checkpoint.

    Attributes:
        output: The output so far; a compensation gets it if the step never finishes.
        checkpoint: What the next call finds in `ctx.load_checkpoint()`.
    """

    output: R_co
    checkpoint: Any


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Parameter(Struct, frozen=True):
    """One parameter whose argument is stored."""

    name: str
    type: Any
    default: Any = NODEFAULT
    by_position: bool = True
    by_name: bool = True


class Parameters:
    """The parameters of a function, without its context.

    Attributes:
        all: The parameters in order, positional ones first.
        what: The function they belong to, for messages: "step 'convert'".
    """

    __slots__ = ("_codec", "_positions", "_struct", "all", "what")

    def __init__(
        self, parameters: tuple[Parameter, ...], what: str, kind: PayloadKind = "argument"
    ) -> None:
        self.all: tuple[Parameter, ...] = parameters
        self.what: str = what
        self._positions = sum(parameter.by_position for parameter in parameters)
        for parameter in parameters:
            _check(parameter, what)
        self._struct = _struct_of(parameters)
        loose = any(is_abstract(parameter.type) for parameter in parameters)
        whose = f"the arguments of {what}"
        self._codec: Codec[Any] = Codec(self._struct, whose, kind, loose=loose)

    def pack(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limits: PayloadLimits = LIMITS
    ) -> bytes:
        """Return the arguments of a call as a JSON object by parameter name, defaults included.

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
        """Like `pack`, for arguments that somebody wrote as a JSON object.

        Raises:
            ArgumentError: They do not fit; every reason is named.
            Unstorable: The text is not JSON, or cannot be stored.
        """
        written = parse(text, f"the arguments of {self.what}")
        if not isinstance(written, dict):
            raise ArgumentError(
                self._whose(), ["they must be a JSON object with one field per parameter"]
            )
        fields = cast("dict[str, Any]", written)
        problems = self.problems(fields)
        if problems:
            raise ArgumentError(self._whose(), problems)
        return self._codec.encode(self._codec.decode(write_plain(fields)), limits)

    def pack_plain(
        self, given: Mapping[str, Any] | Sequence[Any], limits: PayloadLimits = LIMITS
    ) -> bytes:
        """Like `pack_json`, for plain values: by name, or in a sequence by position."""
        if isinstance(given, Mapping):
            return self.pack_json(write_plain(dict(given)), limits)
        names = self.positional()
        if len(given) > len(names):
            text = f"{len(given)} positional arguments were given, but it takes {len(names)}"
            raise ArgumentError(self._whose(), [text])
        return self.pack_json(write_plain(dict(zip(names, given, strict=False))), limits)

    def edited(
        self, stored: bytes, changed: Mapping[str, Any], limits: PayloadLimits = LIMITS
    ) -> bytes:
        """Return a stored call with other arguments: those that are not named stay as stored.

        Args:
            stored: The call, as `pack` returned it.
            changed: The other arguments by name, as values of the function or as plain JSON.
            limits: The largest payloads.

        Raises:
            ArgumentError: They do not fit, or are what people saw in the place of a value.
            Unstorable, PayloadTooLarge: They fit, and cannot be stored.
        """
        whose = f"the arguments of {self.what}"
        before = read_plain(stored)
        if not isinstance(before, dict):
            refuse_markers(stored, whose)  # this program has no key to read them with
            raise ArgumentError(whose, ["none are stored by name"])
        given = {name: self._as_plain(name, value, limits) for name, value in changed.items()}
        packed = self.pack_json(write_plain({**cast("Any", before), **given}), limits)
        refuse_markers(packed, whose)
        return packed

    def _as_plain(self, name: str, value: Any, limits: PayloadLimits) -> Any:
        """Return one argument as plain JSON: it may be that already, or a value of its type."""
        kind = self._codec.kind
        with suppress(Unstorable):
            return read_plain(encode(value, what=f"`{name}`", kind=kind, limits=limits))
        declared = next((each.type for each in self.all if each.name == name), Any)
        try:
            return read_plain(encode(value, declared, what=f"`{name}`", kind=kind, limits=limits))
        except WrongType as error:
            raise ArgumentError(self._whose(), [str(error)]) from None

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a stored call as the annotated types.

        Raises:
            Drift: They were stored for other parameters.
        """
        values = astuple(self._codec.decode(data))
        if len(values) == self._positions:
            return values, {}
        names = (parameter.name for parameter in self.all[self._positions :])
        args = values[: self._positions]
        return args, dict(zip(names, values[self._positions :], strict=True))

    def unpack_json(self, text: bytes | str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what somebody wrote as a JSON object as the annotated types.

        What they left out stays left out, so that a default is never taken for something given.

        Raises:
            ArgumentError: They do not fit; every reason is named.
            Unstorable: The text is not JSON, or cannot be stored.
        """
        values = self._codec.decode(self.pack_json(text))
        written = cast("dict[str, Any]", parse(text, f"the arguments of {self.what}"))
        args: dict[str, Any] = {}
        for each in self.all:
            if not each.by_position or (each.by_name and each.name not in written):
                break
            args[each.name] = getattr(values, each.name)
        rest = {name: getattr(values, name) for name in written if name not in args}
        return tuple(args.values()), rest

    def is_same_call(self, kept: bytes, packed: bytes, given: Collection[str]) -> bool:
        """Whether a call was given the same before, whatever defaults have filled in since.

        A parameter may be new, or have another default, and so may a field of an argument be new.
        Of large arguments only the digest was kept: then only new parameters are recognised.

        Args:
            kept: The arguments that were stored.
            packed: Those of the call now.
            given: The names of those that its caller gave.
        """
        now = cast("dict[str, Any]", read_plain(packed))
        filled = [name for name in now if name not in given]
        if is_stand_in(kept):
            return any(is_same(kept, write_plain(_without(now, new))) for new in _subsets(filled))
        before = cast("dict[str, Any]", read_plain(kept)) | {name: now[name] for name in filled}
        try:
            return self._codec.encode(self._codec.decode(write_plain(before))) == packed
        except (Drift, Unstorable):  # it was stored for other parameters
            return False

    def by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by parameter name, unchecked but for their number.

        Raises:
            ArgumentError: There are too many, or one is given twice.
        """
        names = [parameter.name for parameter in self.all if parameter.by_position]
        given = dict(zip(names, args, strict=False)) | dict(kwargs)
        if len(given) < len(args) + len(kwargs):
            raise ArgumentError(self._whose(), self._miscounted(args, kwargs))
        return given

    def _miscounted(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
        names = [parameter.name for parameter in self.all if parameter.by_position]
        found = [f"`{name}` is given twice" for name in names[: len(args)] if name in kwargs]
        if len(args) > len(names):
            found.append(f"{len(args)} positional arguments were given, but it takes {len(names)}")
        return found

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments, for people and for programs that write them."""
        return json_schema(self._struct)

    def positional(self) -> tuple[str, ...]:
        """Return the names of the parameters that may be given by position, in order."""
        return tuple(each.name for each in self.all if each.by_position)

    def defaults(self) -> dict[str, Any]:
        """Return the defaults by name, as plain JSON."""
        return {
            each.name: decode(encode(each.default, each.type))
            for each in self.all
            if each.default is not NODEFAULT
        }

    def problems(self, written: Mapping[str, Any]) -> list[str]:
        """Return everything that is wrong with arguments given as plain JSON."""
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
        problems = [*self.misnamed(given), *self._miscounted(args, kwargs)]
        for parameter in self.all:
            if parameter.name in given:
                problems += self._wrong_type(parameter, given[parameter.name], limits)
        raise ArgumentError(self._whose(), problems) from None

    def _wrong_type(self, parameter: Parameter, value: Any, limits: PayloadLimits) -> list[str]:
        kind = self._codec.kind
        try:
            Codec[Any](parameter.type, f"`{parameter.name}`", kind).encode(value, limits)
        except ValueError as error:
            return [str(error)]
        return []

    def misnamed(self, given: Mapping[str, Any]) -> list[str]:
        """Return which arguments are missing, and which have no parameter."""
        needed = [each.name for each in self.all if each.default is NODEFAULT]
        known = {parameter.name for parameter in self.all}
        missing = [f"`{name}` is missing" for name in needed if name not in given]
        return missing + [f"there is no parameter `{name}`" for name in given if name not in known]

    def _whose(self) -> str:
        return f"the arguments of {self.what} do not fit"


class InputParameter(Parameters):
    """The one parameter of a closure: its `input`, any plain JSON value.

    An object is stored as it is, so that people and rules see its fields as arguments.
    """

    __slots__ = ()
    _NAME: ClassVar = "input"

    def __init__(self, what: str) -> None:
        super().__init__((Parameter(self._NAME, Any, None),), what)

    def pack(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limits: PayloadLimits = LIMITS
    ) -> bytes:
        """Return the input as a JSON object."""
        (value,) = args
        if type(value) is not dict or set(cast("dict[str, Any]", value)) == {self._NAME}:
            return super().pack(args, kwargs, limits)
        whose = f"the arguments of {self.what}"
        return Codec[Any](Any, whose, "argument").encode(value, limits)

    def pack_json(self, text: bytes | str, limits: PayloadLimits = LIMITS) -> bytes:
        """Like `pack`, for an input that somebody wrote as a JSON object."""
        written = parse(text, f"the arguments of {self.what}")
        if not isinstance(written, dict):
            raise ArgumentError(self._whose(), ["they must be a JSON object"])
        return self.pack((cast("Any", written),), {}, limits)

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the input of a stored call."""
        found = cast("dict[str, Any]", read_plain(data))
        return (found[self._NAME] if set(found) == {self._NAME} else found,), {}

    def is_same_call(self, kept: bytes, packed: bytes, given: Collection[str]) -> bool:
        """Whether it is the same; an input has no defaults."""
        del given
        return is_same(kept, packed)


_MOST_FILLED: Final = 8  # names that were not given, of which each may be new


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield what may be new of these names, the fewest first."""
    for count in range(1, min(len(names), _MOST_FILLED) + 1):
        yield from combinations(names[:_MOST_FILLED], count)


def _without(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def misfit(declared: Any, written: Any, what: str) -> list[str]:
    """Return the problem, if plain JSON is not a value of a type, as a list of at most one."""
    try:
        Codec[Any](declared, what).decode(write_plain(written))
    except Drift as error:
        return [f"{what} has the wrong type: {on_one_line(error.__cause__)}"]
    return []


class Context:
    """The base of the contexts that steps and jobs may take as their first parameter.

    Attributes:
        of: What takes such a context, for messages.
    """

    __slots__ = ()
    of: ClassVar[str] = "a step or job"


# A context whose type is not known at run time, or not written at all, is recognised by its name.
_CONTEXT_NAMES = ("ctx", "context")


def context_of(fn: Callable[..., Any]) -> type[Context] | None:
    """Return the type of context that a function takes first; None if it takes none.

    A first parameter is a context if it is annotated as one, or if it is named `ctx` or `context`
    and its annotation is missing, `Any`, or not known at run time.
    """
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    if first is None or first.kind not in _BY_POSITION:
        return None
    declared = _first_annotation(fn, first)
    for each in (declared, *get_args(declared)):
        if isinstance(each, type) and issubclass(each, Context):
            return each
    return Context if declared is Any and first.name in _CONTEXT_NAMES else None


def _first_annotation(fn: Callable[..., Any], first: inspect.Parameter) -> Any:
    """Return the annotation of a first parameter; Any if it has none, or one that is not known."""
    if first.annotation is inspect.Parameter.empty:
        return Any
    try:
        return _annotations(fn, [first.name], "").get(first.name, first.annotation)
    except DefinitionError:
        return Any


def parameters_of(
    fn: Callable[..., Any],
    what: str,
    *,
    context: int | None = None,
    kind: PayloadKind = "argument",
) -> Parameters:
    """Return the parameters of a function; the one at position `context` is not stored.

    Raises:
        DefinitionError: It takes `*args` or `**kwargs`, has no such context, or has a parameter
            whose type cannot be stored.
    """
    found = list(inspect.signature(fn).parameters.values())
    if any(each.kind in _MANY for each in found):
        raise DefinitionError(
            f"{what} must take named parameters: `*args` and `**kwargs` cannot be stored by name"
        )
    if context is not None:
        if not found or found[context].kind not in _BY_POSITION:
            raise DefinitionError(f"{what} must take its context by position")
        del found[context]
    types_ = _annotations(fn, [each.name for each in found], what)
    parameters = (
        Parameter(
            each.name,
            types_.get(each.name, Any),
            NODEFAULT if each.default is inspect.Parameter.empty else each.default,
            each.kind in _BY_POSITION,
            each.kind is not inspect.Parameter.POSITIONAL_ONLY,
        )
        for each in found
    )
    return Parameters(tuple(parameters), what, kind)


def result_type(fn: Callable[..., Any], what: str) -> Any:
    """Return the declared type of the result, without `Partial`; Any if none is declared."""
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
    """Resolve the annotations of these names; that of the context may be for type checkers only."""
    function: Any = inspect.unwrap(getattr(fn, "__func__", fn))
    written = cast("dict[str, Any]", getattr(function, "__annotations__", {}))
    carrier = types.SimpleNamespace(__annotations__={n: written[n] for n in names if n in written})
    scope = getattr(function, "__globals__", {})
    try:
        return get_type_hints(carrier, globalns=scope, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise DefinitionError(
            f"an annotation of {what} cannot be resolved: {error}; import its type at run "
            "time, not only under TYPE_CHECKING"
        ) from None


def _struct_of(parameters: tuple[Parameter, ...]) -> Callable[..., Any]:
    """Make the struct that a call becomes; it refuses unknown names in stored calls."""
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
    """Raise DefinitionError if the type cannot be stored or the default is not of that type."""
    codec: Codec[Any] = Codec(parameter.type, f"the parameter `{parameter.name}` of {what}")
    if parameter.default is NODEFAULT:
        return
    try:
        codec.encode(parameter.default)
    except ValueError as error:
        raise DefinitionError(f"the default cannot be stored: {error}") from None
