"""Functions that can be spawned by an id: what a layer above has loaded."""

from collections.abc import Callable, Coroutine, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from perdure.base.errors import SpawnError


class Entry(NamedTuple):
    """A function with an id, and what its spawn need not say."""

    function: Callable[..., Coroutine[Any, Any, Any]]
    host: str | None = None
    args: tuple[Any, ...] = ()


def find_entry(entries: Mapping[str, Entry], id: str) -> Entry:
    """Give the entry of an id.

    Raises:
        SpawnError: There is none; the text has the ids that are near.
    """
    entry = entries.get(id)
    if entry is not None:
        return entry
    near = get_close_matches(id, entries)
    if near:
        raise SpawnError(f"unknown entry {id!r}: did you mean {' or '.join(map(repr, near))}?")
    raise SpawnError(f"unknown entry {id!r}: no entry of that id is loaded")
