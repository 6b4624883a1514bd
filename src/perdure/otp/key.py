"""Keys that differ where Python's own do not: 1, 1.0 and True are three keys."""

from collections.abc import Hashable
from typing import cast


def strict(key: Hashable) -> Hashable:
    """Give what stands for the key in a dict: its type and its value, also inside of tuples.

    Raises:
        TypeError: The key cannot be hashed.
    """
    kind = type(key)
    if kind is tuple:
        return (kind, *map(strict, cast("tuple[Hashable, ...]", key)))
    if kind is frozenset:
        return kind, frozenset(map(strict, cast("frozenset[Hashable]", key)))
    hash(key)  # at the border: an error here names the key and not the pair
    return kind, key


def same(one: object, other: object) -> bool:
    """Tell whether two values are equal and of one type."""
    return type(one) is type(other) and one == other
