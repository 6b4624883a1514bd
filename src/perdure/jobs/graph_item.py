"""Long-term memory of LangGraph as the store keeps it; pure.

An item is a JSON object under a key in a namespace. A namespace is a sequence of labels, and its
text is each label as JSON with a comma behind it. So a namespace is below another one if and only
if its text begins with that of the other, and all that are below it are one range of the index.

What an item says is filtered and ranked here, not by the database: payloads may be encrypted.
"""

import json
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

Labels = tuple[str, ...]
Vector = Sequence[float]

_BEHIND: Final = {",": "-", "": "#"}  # the character that follows the end of a text


class GraphItem(Struct, frozen=True, kw_only=True):
    """An item as it is stored."""

    namespace: str
    key: str
    data: bytes
    vectors: bytes | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    ttl: float | None = None  # minutes


# Namespaces


def namespace_text(labels: Sequence[str]) -> str:
    """Return a namespace as it is stored."""
    return "".join(f"{json.dumps(label)}," for label in labels)


def labels_of(text: str) -> Labels:
    """Return the labels of a namespace."""
    return tuple(json.loads(f"[{text[:-1]}]"))


def range_below(labels: Sequence[str]) -> tuple[str, str]:
    """Return the range of the texts of a namespace and of all below it, without its end."""
    first = namespace_text(labels)
    return first, first[:-1] + _BEHIND[first[-1:]]


def ends_match(labels: Labels, path: Sequence[str], *, suffix: bool) -> bool:
    """Whether a namespace begins, or ends, with a path; `*` in it stands for any label."""
    if len(labels) < len(path):
        return False
    part = labels[len(labels) - len(path) :] if suffix else labels
    return all(wanted in ("*", label) for label, wanted in zip(part, path, strict=False))


# Filters


def matches(found: Any, wanted: Any) -> bool:
    """Whether a value is as a filter wants it.

    Raises:
        ValueError: There is no such operator.
    """
    if isinstance(wanted, Mapping):
        given: Mapping[str, Any] = wanted  # pyright: ignore[reportUnknownVariableType]  of a user
        if any(name.startswith("$") for name in given):
            return all(_holds(name, found, value) for name, value in given.items())
        return isinstance(found, Mapping) and all(
            matches(found.get(name), value)  # pyright: ignore[reportUnknownMemberType]  JSON
            for name, value in given.items()
        )
    if isinstance(wanted, list | tuple):
        items: Sequence[Any] = wanted  # pyright: ignore[reportUnknownVariableType]  of a user
        return (
            isinstance(found, list)
            and len(found) == len(items)  # pyright: ignore[reportUnknownArgumentType]  JSON
            and all(map(matches, found, items))  # pyright: ignore[reportUnknownArgumentType]  JSON
        )
    return found == wanted


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def _holds(name: str, found: Any, wanted: Any) -> bool:
    if name == "$eq":
        return found == wanted
    if name == "$ne":
        return found != wanted
    compare = _COMPARISONS.get(name)
    if compare is None:
        known = ", ".join(("$eq", "$ne", *_COMPARISONS))
        raise ValueError(f"there is no operator {name} for filters; use one of {known}")
    first, second = _number(found), _number(wanted)
    if first is not None and second is not None:
        return compare(first, second)
    return isinstance(found, str) and isinstance(wanted, str) and compare(found, wanted)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


# Vectors


def pack_vectors(vectors: Sequence[Vector]) -> bytes | None:
    """Return vectors of one length as they are stored, each of length 1; None if there are none."""
    if not vectors:
        return None
    numbers = [number for vector in vectors for number in unit(vector)]
    return struct.pack(f"<I{len(numbers)}f", len(vectors[0]), *numbers)


def unit(vector: Vector) -> list[float]:
    """Return a vector of length 1 in the direction of another one."""
    length = math.hypot(*vector) or 1.0
    return [number / length for number in vector]


def similarity(packed: bytes | None, query: Vector) -> float | None:
    """Return the cosine of the angle between a vector of length 1 and the nearest of an item.

    None: the item has no vectors, or those of another embedding.
    """
    if packed is None or struct.unpack_from("<I", packed)[0] != len(query):
        return None
    numbers = struct.unpack_from(f"<{len(packed) // 4 - 1}f", packed, 4)
    size = len(query)
    return max(
        sum(map(operator.mul, query, numbers[first : first + size]))
        for first in range(0, len(numbers), size)
    )
