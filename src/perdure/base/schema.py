"""What the codec must know of a declared type before it can read values of it."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, NewType, cast, get_args, get_origin

import msgspec
from msgspec import inspect as description

from perdure.base.secret import Secret

_SECRETS = ("pydantic.types.SecretStr", "pydantic.types.SecretBytes", "pydantic.types.Secret")
_ABSTRACT = "collections.abc"


class _Anything(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return True  # msgspec asks whether what was read is a stand-in


class Adapted(metaclass=_Anything):
    """Base of the stand-ins for types that pydantic reads, not msgspec."""

    read: Callable[[bytes], Any]
    describe: Callable[[], dict[str, Any]]


def parts(declared: Any) -> Iterator[Any]:
    """List every type that a declaration names, itself included."""
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
    """Tell whether a type is a pydantic model, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def is_secret(kind: Any) -> bool:
    """Tell whether values of the type must not be stored."""
    if not isinstance(kind, type):
        return False
    return issubclass(kind, Secret) or any(
        f"{base.__module__}.{base.__qualname__}" in _SECRETS for base in kind.__mro__
    )


def is_abstract(declared: Any) -> bool:
    """Tell whether a declaration leaves the kind of collection open, as `Sequence` does."""
    return any(getattr(part, "__module__", "") == _ABSTRACT for part in parts(declared))


def adapted(declared: Any) -> Any:
    """Replace a declaration that holds pydantic models by one that msgspec can read."""
    if not any(is_model(part) for part in parts(declared)):
        return declared
    pydantic = sys.modules["pydantic"]
    try:
        adapter = pydantic.TypeAdapter(declared)
    except pydantic.errors.PydanticSchemaGenerationError:
        return declared  # a struct that holds models: msgspec reads it, and asks us for the models
    describe = partial(adapter.json_schema, mode="serialization")
    members = {"read": staticmethod(adapter.validate_json), "describe": staticmethod(describe)}
    return _Anything("Adapted", (Adapted,), members)


def write_unknown(value: Any) -> Any:
    """Give msgspec what stands for a value that it does not know."""
    if is_model(type(value)):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} cannot be stored")


def read_unknown(kind: type[Any], value: Any) -> Any:
    """Make a value of a type that msgspec does not know."""
    if kind is object:
        return value
    text = msgspec.json.encode(value)
    if issubclass(kind, Adapted):
        return kind.read(text)
    return cast("Any", kind).model_validate_json(text)


def check(declared: Any) -> None:
    """Refuse a type of which no value can be stored.

    Raises:
        TypeError: It, or a part of it, is no data.
    """
    for part in parts(declared):
        if is_secret(part):
            raise TypeError("a secret is never stored: read it inside of the step that needs it")
    _check_custom(description.type_info(declared))


def _check_custom(info: description.Type) -> None:
    """Look for types that msgspec leaves to us: only pydantic's models are known."""
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
        raise TypeError("a secret is never stored: read it inside of the step that needs it")
    if kind is not object and not is_model(kind) and not issubclass(kind, Adapted):
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} is not a type of data: "
            "declare a dataclass, a Struct, a model, or what JSON knows"
        )
