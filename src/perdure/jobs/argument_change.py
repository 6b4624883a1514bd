"""Changes to arguments that people see only in part: each at its own place; pure.

What people are shown of arguments is not what is stored, so a form never sends all of it back. It
names what was changed, and everything else stays as it is stored.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from msgspec import UNSET, Struct, UnsetType

from perdure.base.codec import read_plain
from perdure.base.errors import ArgumentError


class ArgumentChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another value at one place inside arguments.

    Attributes:
        path: Names of fields and places in lists, from the name of an argument on.
        value: What is to be there; without it, the field or item is taken out.
    """

    path: list[str | int]
    value: Any = UNSET


class ArgumentEdit(Struct, frozen=True, kw_only=True):
    """How somebody edits arguments.

    Attributes:
        arguments: Other arguments by name, as a whole; None: none.
        changes: Other values inside of arguments.
    """

    arguments: Mapping[str, Any] | None = None
    changes: tuple[ArgumentChange, ...] = ()

    def of(self, stored: bytes) -> dict[str, Any]:
        """Return the arguments that differ from the stored ones, by name.

        Raises:
            ArgumentError: A change is about a place that is not there.
        """
        given = dict(self.arguments or {})
        if not self.changes:
            return given
        return given | changed_arguments(read_plain(stored), self.changes)


UNEDITED: Final = ArgumentEdit()


def changed_arguments(stored: Any, changes: Iterable[ArgumentChange]) -> dict[str, Any]:
    """Return those of the stored arguments that changes are about, with the changes in them.

    Raises:
        ArgumentError: There is no such place.
    """
    found = cast("dict[str, Any]", stored) if isinstance(stored, dict) else {}
    changed = dict[str, Any]()
    for each in changes:
        match each.path:
            case [str(name)] if not isinstance(each.value, UnsetType):
                changed[name] = each.value
            case [str(name), *rest] if rest and (name in changed or name in found):
                before = changed[name] if name in changed else found[name]
                changed[name] = _with(before, rest, each)
            case _:
                raise _nowhere(each)
    return changed


def _with(value: Any, path: list[str | int], change: ArgumentChange) -> Any:
    """Return a value with a change at a path inside it; the value itself stays as it is."""
    at, rest = path[0], path[1:]
    parts: Any = None
    if isinstance(value, dict) and isinstance(at, str):
        parts = dict(cast("dict[str, Any]", value))
        is_there = at in parts
    elif isinstance(value, list) and isinstance(at, int):
        parts = list(cast("list[Any]", value))
        is_there = 0 <= at < len(parts)
    else:
        is_there = False
    if rest:
        if not is_there:
            raise _nowhere(change)
        parts[at] = _with(parts[at], rest, change)
    elif isinstance(change.value, UnsetType) and is_there:
        del parts[at]
    elif not isinstance(change.value, UnsetType) and (is_there or isinstance(parts, dict)):
        parts[at] = change.value
    else:
        raise _nowhere(change)
    return cast("Any", parts)


def _nowhere(change: ArgumentChange) -> ArgumentError:
    where = ".".join(map(str, change.path))
    return ArgumentError("the changes do not fit the arguments", [f"there is no `{where}`"])
