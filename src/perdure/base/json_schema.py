"""Declared types as JSON Schema: for people, for programs that write plans, and for checks."""

from typing import Any, cast

import msgspec

from perdure.base.schema import Adapted, adapted, is_model

_DEFINITIONS = "#/$defs/"
_DEEPEST = 50  # levels; a reference chain or a path of more is nobody's intention


def json_schema(declared: Any) -> dict[str, Any]:
    """Describe the JSON of values of a type."""
    return msgspec.json.schema(adapted(declared), schema_hook=_of_model)


def _of_model(kind: type[Any]) -> dict[str, Any]:
    if kind is object:
        return {}
    if issubclass(kind, Adapted):
        return _inlined(cast("Any", kind).describe())
    if is_model(kind):
        return _inlined(cast("Any", kind).model_json_schema(mode="serialization"))
    raise NotImplementedError


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Put definitions where they are used: inside of another schema references lead nowhere."""
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
        return {}  # a type within itself: anything
    if name in definitions:
        return _resolved(definitions[name], definitions, (*within, name))
    return {key: _resolved(each, definitions, within) for key, each in fields.items()}


def part(schema: dict[str, Any], path: list[str | int]) -> dict[str, Any] | None:
    """Describe what is at a path inside of values; None if there can be nothing there.

    An empty schema stands for "anything".
    """
    root, here = schema, schema
    for at in path:
        found = _one_part(here, at, root, 0)
        if found is None:
            return None
        here = found
    return _one_of(here, root)


def kinds(schema: dict[str, Any]) -> frozenset[str] | None:
    """Name the JSON types that values may have; None if that cannot be told."""
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
    """Follow references of msgspec into its definitions."""
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
    """Read what a schema says of parts without a name: a schema, or whether there are any."""
    if schema is False:
        return None
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
