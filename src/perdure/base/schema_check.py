"""Check plain JSON values by a JSON Schema: what msgspec and pydantic write, and no more.

A caller that does not have the code of a job knows only the schema of its arguments. Words that are
not known here allow everything: the worker, which has the types, checks again.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

Schema = dict[str, Any]

_DEEPEST: Final = 100  # levels of a value: deeper ones are not checked


def misfits(schema: Schema, value: Any, what: str) -> list[str]:
    """Return everything that is wrong with a value; `what` is how it is called in messages."""
    return list(_misfits(schema, value, what, 0))


def _misfits(schema: Schema, value: Any, what: str, level: int) -> Iterator[str]:
    here = _resolved(schema)
    if level > _DEEPEST:
        return
    yield from _of_alternatives(here, value, what, level)
    wanted = here.get("type", ())
    wanted = [wanted] if isinstance(wanted, str) else list(wanted)
    if wanted and not any(_KINDS[kind](value) for kind in wanted if kind in _KINDS):
        yield f"{what} must be {_spelled(wanted)}, not {_kind_of(value)}"
        return
    if "const" in here and value != here["const"]:
        yield f"{what} must be {here['const']!r}"
    if "enum" in here and value not in here["enum"]:
        yield f"{what} must be one of {', '.join(map(repr, here['enum']))}"
    yield from _inside(here, value, what, level)


def _inside(here: Schema, value: Any, what: str, level: int) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _of_object(here, cast("Mapping[str, Any]", value), what, level)
    elif isinstance(value, list):
        yield from _of_array(here, cast("Sequence[Any]", value), what, level)
    elif isinstance(value, str):
        yield from _of_text(here, value, what)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _of_number(here, value, what)


def _of_alternatives(schema: Schema, value: Any, what: str, level: int) -> Iterator[str]:
    for word in ("anyOf", "oneOf"):
        found = [list(_within(schema, each, value, what, level)) for each in schema.get(word, ())]
        if found and all(found):
            yield from found[0] if len(found) == 1 else [f"{what} fits none of its alternatives"]
    for each in schema.get("allOf", ()):
        yield from _within(schema, each, value, what, level)


def _resolved(schema: Schema) -> Schema:
    """Return a schema with its reference into `$defs` resolved."""
    definitions: Mapping[str, Schema] = schema.get("$defs", {})
    for _ in range(_DEEPEST):
        name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        if not name:
            break
        schema = {**definitions.get(name, {}), "$defs": definitions}
    return schema


def _of_object(schema: Schema, value: Mapping[str, Any], what: str, level: int) -> Iterator[str]:
    declared: Mapping[str, Any] = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{_field(what, name)} is missing"
    for name, each in value.items():
        part = declared.get(name, others)
        if part is False:
            yield f"there is no {_field(what, name)}"
        elif isinstance(part, dict):
            yield from _within(schema, cast("Schema", part), each, _field(what, name), level)


def _of_array(schema: Schema, value: Sequence[Any], what: str, level: int) -> Iterator[str]:
    first: Sequence[Any] = schema.get("prefixItems", ())
    rest = schema.get("items", True)
    yield from _between(len(value), schema.get("minItems"), schema.get("maxItems"), what, "items")
    for index, each in enumerate(value):
        part = first[index] if index < len(first) else rest
        if isinstance(part, dict):
            yield from _within(schema, cast("Schema", part), each, f"{what}[{index}]", level)


def _of_text(schema: Schema, value: str, what: str) -> Iterator[str]:
    least, most = schema.get("minLength"), schema.get("maxLength")
    yield from _between(len(value), least, most, what, "characters")
    pattern = schema.get("pattern")
    if pattern is not None and not re.search(pattern, value):
        yield f"{what} does not match {pattern!r}"


def _of_number(schema: Schema, value: float, what: str) -> Iterator[str]:
    for word, fits, spelled in _BOUNDS:
        if word in schema and not fits(value, schema[word]):
            yield f"{what} must be {spelled} {schema[word]}"


def _within(whole: Schema, part: Schema, value: Any, what: str, level: int) -> Iterator[str]:
    return _misfits({**part, "$defs": whole.get("$defs", {})}, value, what, level + 1)


def _between(size: int, least: int | None, most: int | None, what: str, unit: str) -> Iterator[str]:
    if least is not None and size < least:
        yield f"{what} must have at least {least} {unit}"
    if most is not None and size > most:
        yield f"{what} must have at most {most} {unit}"


def _field(what: str, name: str) -> str:
    return f"{what}.{name}" if what else f"`{name}`"


_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_ARTICLES: Final = {
    "null": "null",
    "integer": "an integer",
    "array": "an array",
    "object": "an object",
    "unknown": "of another kind",
}
_BOUNDS: Final[Sequence[tuple[str, Callable[[float, float], bool], str]]] = (
    ("minimum", lambda value, bound: value >= bound, "at least"),
    ("maximum", lambda value, bound: value <= bound, "at most"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "greater than"),
    ("exclusiveMaximum", lambda value, bound: value < bound, "less than"),
)


def _kind_of(value: Any) -> str:
    found = next((kind for kind, fits in _KINDS.items() if fits(value)), "unknown")
    return _spelled([found])


def _spelled(names: Sequence[str]) -> str:
    return " or ".join(_ARTICLES.get(name, f"a {name}") for name in names)
