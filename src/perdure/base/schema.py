"""What the codec needs to know about a declared type, and its JSON Schema.

msgspec reads and writes most types. The rest is decided here: pydantic models, which pydantic reads
(it is never imported for programs that do not use it), and secrets, which are never stored.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import cache, partial
from inspect import signature
from itertools import repeat
from types import NoneType, UnionType
from typing import Annotated, Any, NewType, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect as description

from perdure.base.errors import Unstorable
from perdure.base.secret import Secret

_SECRETS = ("pydantic.types.SecretStr", "pydantic.types.SecretBytes", "pydantic.types.Secret")
_ABSTRACT = "collections.abc"
_PLAIN = (str, int, float, bool, NoneType, bytes)

NEVER_STORED = "a secret is never stored: read it inside the step that needs it"


class _Anything(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return True  # msgspec checks that the value it read is an instance of the stand-in


class Adapted(metaclass=_Anything):
    """Base of the stand-ins for types that pydantic reads instead of msgspec."""

    read: Callable[[bytes], Any]
    describe: Callable[[], dict[str, Any]]


def parts(declared: Any) -> Iterator[Any]:
    """Yield every type that a declaration names, including itself."""
    yield declared
    if isinstance(declared, NewType):
        yield from parts(declared.__supertype__)
        return
    if hasattr(declared, "__value__"):  # `type X = …` of Python 3.12
        yield from parts(declared.__value__)
        return
    arguments = get_args(declared)
    if arguments:
        yield get_origin(declared)
    for part in arguments[:1] if get_origin(declared) is Annotated else arguments:
        yield from parts(part)


def is_model(kind: Any) -> bool:
    """Whether a type is a pydantic model, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def is_secret(kind: Any) -> bool:
    """Whether values of the type must not be stored."""
    if not isinstance(kind, type):
        return False
    return issubclass(kind, Secret) or any(
        f"{base.__module__}.{base.__qualname__}" in _SECRETS for base in kind.__mro__
    )


def holds_secret(value: Any) -> bool:
    """Whether a value contains a secret anywhere, private attributes of models included."""
    kind = cast("Any", type(value))
    if kind in _PLAIN:
        return False
    if is_secret(kind):
        return True
    if isinstance(value, dict):
        both = cast("dict[Any, Any]", value).items()
        return any(holds_secret(part) for pair in both for part in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(holds_secret, cast("Iterable[Any]", value)))
    within = fields_of(value)
    private: dict[str, Any] = getattr(value, "__pydantic_private__", None) or {}
    return within is not None and any(map(holds_secret, (*within.values(), *private.values())))


def fields_of(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of an object whose class declares them; None for any other."""
    kind = cast("Any", type(value))
    if is_model(kind):
        return {**value.__dict__, **(value.model_extra or {})}
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    elif hasattr(kind, "__attrs_attrs__"):
        names = tuple(field.name for field in kind.__attrs_attrs__)
    else:
        return None
    return {name: getattr(value, name, None) for name in names}


def is_abstract(declared: Any) -> bool:
    """Whether a declaration leaves the collection type open, as `Sequence` does."""
    return any(getattr(part, "__module__", "") == _ABSTRACT for part in parts(declared))


def fitted(value: Any, declared: Any) -> Any:
    """Return a value with lists for tuples, and tuples for lists, where its type says so.

    Nothing is lost by that: `ctx.gather` returns a tuple, and a job may declare a list.
    """
    declared = _plain_type(declared)
    kind, inner = get_origin(declared) or declared, get_args(declared)
    given = cast("Any", type(value))
    if given in (list, tuple) and kind in (list, tuple):
        alike = kind is list or not inner or inner[-1] is Ellipsis
        each = repeat((*inner, Any)[0]) if alike else inner
        return cast("Any", kind)(map(fitted, value, each))
    if given is dict and kind is dict and inner:
        both = cast("dict[Any, Any]", value).items()
        return {key: fitted(part, inner[1]) for key, part in both}
    if isinstance(kind, type) and given is kind and not is_model(kind):
        return _fitted_fields(value, given)
    return value


def _plain_type(declared: Any) -> Any:
    """Return a type without its annotations, its new name, and None beside it."""
    if isinstance(declared, NewType):
        return _plain_type(declared.__supertype__)
    if hasattr(declared, "__value__"):  # `type X = …` of Python 3.12
        return _plain_type(declared.__value__)
    inner = [each for each in get_args(declared) if each is not NoneType]
    if get_origin(declared) is Annotated:
        return _plain_type(inner[0])
    if get_origin(declared) in (Union, UnionType) and len(inner) == 1:
        return _plain_type(inner[0])
    return declared


def _fitted_fields(value: Any, kind: type[Any]) -> Any:
    """Return an object with fields that fit their types; a copy if one of them has changed."""
    fields = fields_of(value)
    if not fields:
        return value
    try:
        hints = get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001  a type that is not known at run time
        return value
    fit = {name: fitted(part, hints.get(name, Any)) for name, part in fields.items()}
    changed = {name: part for name, part in fit.items() if part is not fields[name]}
    made = copy(value) if changed else value
    put = msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name, part in changed.items():
        put(made, name, part)
    return made


def adapted(declared: Any) -> Any:
    """Return a declaration that msgspec can read; pydantic models become stand-ins."""
    if not any(is_model(part) for part in parts(declared)):
        return declared
    pydantic = sys.modules["pydantic"]
    try:
        adapter = pydantic.TypeAdapter(declared)
    except pydantic.errors.PydanticSchemaGenerationError:
        return declared  # a Struct with models inside: msgspec reads it, and asks us for the models
    by_alias = any(is_model(part) and _writes_aliases(part) for part in parts(declared))
    describe = partial(adapter.json_schema, mode="serialization", by_alias=by_alias)
    read = partial(adapter.validate_json, **_by_both(pydantic.BaseModel))
    members = {"read": staticmethod(read), "describe": staticmethod(describe)}
    return _Anything("Adapted", (Adapted,), members)


def write_unknown(value: Any) -> Any:
    """Return the plain form of a value that msgspec does not know (its `enc_hook`)."""
    if is_model(type(value)):
        if holds_secret(value):  # a custom serializer could reveal it
            raise Unstorable(NEVER_STORED)
        return value.model_dump(mode="json")
    if isinstance(value, str) and not is_secret(type(value)):  # a kind of text, as libraries have
        return str.__str__(value)
    if isinstance(value, float):  # a kind of float, as numpy has
        return float.__float__(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be stored")


def read_unknown(kind: type[Any], value: Any) -> Any:
    """Return a value of a type that msgspec does not know (its `dec_hook`)."""
    if kind is object:
        return value
    text = msgspec.json.encode(value)
    if issubclass(kind, Adapted):
        return kind.read(text)
    return cast("Any", kind).model_validate_json(
        text, **_by_both(sys.modules["pydantic"].BaseModel)
    )


def _writes_aliases(model: Any) -> bool:
    """Whether a model is written with the aliases of its fields; by default their names are."""
    return bool(model.model_config.get("serialize_by_alias"))


@cache
def _by_both(base: Any) -> dict[str, bool]:
    """Return how fields are read: by their names, as they are written, and by their aliases.

    An older pydantic reads them only as the model says.
    """
    knows = "by_name" in signature(base.model_validate_json).parameters
    return {"by_name": True, "by_alias": True} if knows else {}


def check(declared: Any) -> None:
    """Check that values of a type can be stored.

    Raises:
        TypeError: They cannot.
    """
    for part in parts(declared):
        if is_secret(part):
            raise TypeError(NEVER_STORED)
    _check_custom(description.type_info(declared))


def _check_custom(info: description.Type) -> None:
    """Check the types that msgspec leaves to us; only pydantic models are supported."""
    seen: set[int] = set()
    todo: list[Any] = [info]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, description.CustomType):
            _check_one(node.cls)
        elif isinstance(node, tuple | list):
            todo.extend(cast("list[Any]", node))
        elif isinstance(node, msgspec.Struct):
            todo.extend(getattr(node, name) for name in node.__struct_fields__)


def _check_one(kind: type[Any]) -> None:
    if is_secret(kind):
        raise TypeError(NEVER_STORED)
    if kind is not object and not is_model(kind) and not issubclass(kind, Adapted):
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} cannot be stored: "
            "declare a dataclass, a Struct, a model, or a plain JSON type"
        )


# Declared types as JSON Schema: for people, for programs that write plans, and for their check.

_DEFINITIONS = "#/$defs/"
_DEEPEST = 50  # levels of references and of a path; deeper ones are not written on purpose


def json_schema(declared: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type."""
    return msgspec.json.schema(adapted(declared), schema_hook=_of_model)


def _of_model(kind: type[Any]) -> dict[str, Any]:
    if kind is object:
        return {"description": "anything"}  # msgspec takes an empty one for none
    if issubclass(kind, Adapted):
        return inlined(cast("Any", kind).describe())
    if is_model(kind):
        by_alias = _writes_aliases(kind)
        describe = cast("Any", kind).model_json_schema
        return inlined(describe(mode="serialization", by_alias=by_alias))
    raise NotImplementedError


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its definitions in place: inside another schema, `$ref` would break."""
    definitions = schema.get("$defs", {})
    whole = {key: value for key, value in schema.items() if key != "$defs"}
    return _resolved(whole, definitions, ())


def _resolved(node: Any, definitions: dict[str, Any], within: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_resolved(each, definitions, within) for each in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    fields = cast("dict[str, Any]", node)
    name = str(fields.get("$ref", "")).removeprefix(_DEFINITIONS)
    if name in within:
        return {}  # a recursive type: anything
    if name in definitions:
        return _resolved(definitions[name], definitions, (*within, name))
    return {key: _resolved(each, definitions, within) for key, each in fields.items()}


def part(schema: dict[str, Any], path: list[str | int]) -> dict[str, Any] | None:
    """Return the schema of the values at a path; None if there can be none.

    An empty schema means "anything".
    """
    root, here = schema, schema
    for at in path:
        found = _one_part(here, at, root, 0)
        if found is None:
            return None
        here = found
    return _one_of(here, root)


def kinds(schema: dict[str, Any]) -> frozenset[str] | None:
    """Return the JSON types that values may have; None if the schema does not say."""
    if "const" in schema or "enum" in schema:
        return None
    declared = schema.get("type")
    if declared is not None:
        listed = cast("list[str]", declared) if isinstance(declared, list) else [str(declared)]
        return frozenset(listed)
    options = [kinds(each) for each in _alternatives(schema)]
    if not options or None in options:
        return None
    return frozenset(kind for option in options if option for kind in option)


def _one_part(
    schema: dict[str, Any], at: str | int, root: dict[str, Any], level: int
) -> dict[str, Any] | None:
    here = _one_of(schema, root)
    if level > _DEEPEST:
        return {}
    alternatives = _alternatives(here)
    if alternatives:
        found = [_one_part(each, at, root, level + 1) for each in alternatives]
        return next((each for each in found if each is not None), None)
    if not kinds(here):
        return {}
    return _element(here, at) if isinstance(at, int) else _property(here, at)


def _one_of(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its reference into `$defs` resolved."""
    for _ in range(_DEEPEST):
        name = str(schema.get("$ref", "")).removeprefix(_DEFINITIONS)
        if not name:
            break
        schema = root.get("$defs", {}).get(name, {})
    return (
        schema if "$defs" in schema or "$defs" not in root else {**schema, "$defs": root["$defs"]}
    )


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    words = ("anyOf", "oneOf", "allOf")
    nothing: list[dict[str, Any]] = []
    return next((schema[word] for word in words if schema.get(word)), nothing)


def _property(schema: dict[str, Any], name: str) -> dict[str, Any] | None:
    if schema.get("type") != "object":
        return None
    declared = schema.get("properties", {})
    if name in declared:
        return declared[name]
    return _others(schema.get("additionalProperties", not declared))


def _element(schema: dict[str, Any], index: int) -> dict[str, Any] | None:
    if schema.get("type") != "array":
        return None
    first = schema.get("prefixItems", [])
    if index < len(first):
        return first[index]
    return _others(schema.get("items", {}))


def _others(schema: Any) -> dict[str, Any] | None:
    """Return the schema of unnamed parts; None if there are none."""
    if schema is False:
        return None
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
