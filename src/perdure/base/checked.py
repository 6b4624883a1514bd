"""Records that users fill in, checked when they are made: a wrong value must not fail hours later.

A value of the wrong kind is refused with the name of its field. Where several values are wanted,
any collection will do, but not a text, whose letters would be taken for them.
"""

from collections.abc import Collection, Mapping
from enum import Enum, EnumType
from functools import cache
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from msgspec import Struct

_PLAIN = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
_LONGEST = 60


class Checked(Struct, frozen=True, kw_only=True):
    """Base of such records.

    Raises:
        TypeError: A field has the wrong kind of value; the message names it.
    """

    def __post_init__(self) -> None:
        for name, declared in _hints(type(self)).items():
            if wrong := misfit(getattr(self, name), declared):
                raise TypeError(f"`{name}` of {type(self).__name__} {wrong}")


@cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__struct_fields__}


def misfit(value: Any, declared: Any) -> str:
    """Return what a value must be instead; "" if it is that."""
    options = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    found = [_misfit_of_one(value, each) for each in options]
    if "" in found:
        return ""
    wanted = [each for each in options if each is not NoneType]
    if len(wanted) == 1:
        return found[options.index(wanted[0])]
    return f"must be {' or '.join(map(_named, wanted))}, not a {type(value).__name__}"


def _misfit_of_one(value: Any, declared: Any) -> str:
    kind, inner = get_origin(declared) or declared, get_args(declared)
    if kind in (tuple, frozenset):
        return _misfit_inside(value, inner)
    if kind is Mapping and isinstance(value, Mapping):
        both = cast("Mapping[Any, Any]", value).items()
        wrong = (misfit(*each) for pair in both for each in zip(pair, inner, strict=True))
        return next((f"has a part that {each}" for each in wrong if each), "")
    if value in inner if kind is Literal else _is_one(value, kind):
        return ""
    # What belongs into a secret may have come as a text: only what is no secret is shown.
    shown = repr(value)[:_LONGEST] if kind in (*_PLAIN, Literal) else f"a {type(value).__name__}"
    return f"must be {_named(declared)}, not {shown}"


def _misfit_inside(value: Any, inner: tuple[Any, ...]) -> str:
    if isinstance(value, str) or not isinstance(value, Collection):
        return f"must be a tuple or a set, not a {type(value).__name__}"
    parts = list(cast("Collection[Any]", value))
    alike = len(inner) == 1 or inner[-1] is Ellipsis
    if not alike and len(parts) != len(inner):
        return f"must have {len(inner)} parts, not {len(parts)}"
    wrong = map(misfit, parts, repeat(inner[0]) if alike else inner)
    return next((f"has a part that {each}" for each in wrong if each), "")


def _is_one(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if issubclass(kind, Enum):
        return value in list(kind)
    return isinstance(value, kind)


def _named(declared: Any) -> str:
    kind = get_origin(declared) or declared
    if kind is Literal:
        return f"one of {', '.join(map(str, get_args(declared)))}"
    if isinstance(kind, EnumType):
        return f"one of {', '.join(map(str, cast('type[Enum]', kind)))}"
    return _PLAIN.get(kind) or f"a {getattr(kind, '__name__', kind)}"
