"""`Ref("extract.rows[0].id")`: the output of an earlier call of a plan, or a part of it."""

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any, cast

from msgspec import Struct

KEY = "$ref"  # in JSON: {"$ref": "extract.rows"}
LONGEST_PATH = 1000  # characters

_END = re.compile(r"[.\[]")  # where an id may end
_PART = re.compile(r"""\.(?P<name>[^.\[\]"]+)|\[(?P<index>\d+)\]|\["(?P<key>[^"]*)"\]""")


class Ref(Struct, frozen=True):
    """Stands in the arguments of a call for what an earlier call gave.

    Attributes:
        path: The id of the call, then names and indexes: `extract`, `extract.rows[0]`,
            `extract["odd key"]`.
    """

    path: str


def refs(value: Any) -> Iterator[str]:
    """List the paths of all references in plain JSON values."""
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
    """Give the path if a plain JSON value is a reference."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    path = fields.get(KEY)
    return path if isinstance(path, str) and len(fields) == 1 else None


def filled(value: Any, outputs: Mapping[str, Any]) -> Any:
    """Put outputs (plain JSON values, by call id) in the place of references.

    Raises:
        LookupError: There is nothing at a path.
    """
    path = path_of(value)
    if path is not None:
        return _at(path, outputs)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key: filled(each, outputs) for key, each in fields.items()}
    if isinstance(value, list):
        return [filled(each, outputs) for each in cast("list[Any]", value)]
    return value


def split(path: str, ids: Container[str]) -> tuple[str, list[str | int]] | None:
    """Split a path into the id of a call and the parts after it; None if no call has that id.

    Names of steps may have dots, so the longest id that fits is meant. However many ids there
    are, only the beginnings of the path are looked up: `ids` is a set or a mapping.

    Raises:
        ValueError: What follows the id is no path, or the path is too long.
    """
    if len(path) > LONGEST_PATH:
        raise ValueError(f"it has {len(path):,} characters, and {LONGEST_PATH:,} are the most")
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
    found = split(path, outputs)
    if found is None:
        raise LookupError(f"there is no output of a call for the reference {path!r}")
    id, parts = found
    value = outputs[id]
    for part in parts:
        try:
            value = value[part]
        except (LookupError, TypeError):
            raise LookupError(f"the reference {path!r} leads nowhere: no {part!r} there") from None
    return value
