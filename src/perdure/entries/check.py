"""Plain values to typed ones: every field by itself, so that all mistakes are found at once."""

from collections.abc import Iterable, Mapping
from datetime import date
from difflib import get_close_matches
from typing import Any, TypeVar, cast, get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

from perdure.base.duration import required_seconds
from perdure.base.errors import Mistake, safe_text
from perdure.entries.document import Place
from perdure.entries.model import Seconds

S = TypeVar("S", bound=Struct)

LONGEST_SHOWN = 60  # characters of a wrong value in a message


def read_struct(kind: type[S], value: object, at: Place, mistakes: list[Mistake]) -> S | None:
    """Read a mapping as a struct, and add its mistakes.

    A bad value is read as if it were not there, so that the rest can be checked further;
    None if it cannot do without.
    """
    if not isinstance(value, Mapping):
        mistakes.append(at.mistake(f"{_what(at)} {shown(value)}: write a mapping"))
        return None
    given = cast("Mapping[str, object]", value)
    known = {field.name: field for field in fields(kind)}
    for key in [key for key in given if key not in known]:
        place = at.inside(key)
        mistakes.append(place.mistake(f"unknown key {_path(place)!r}{instead(str(key), known)}"))
    for field in known.values():
        if field.required and given.get(field.name) is None:
            text = f"{_path(at.inside(field.name))!r} is missing: write {_wanted(field)}"
            mistakes.append(at.mistake(text))
    read = {
        key: _field(known[key], each, at.inside(key), mistakes)
        for key, each in given.items()
        if key in known and each is not None  # nothing behind a key is as good as no key
    }
    good = {key: each for key, each in read.items() if each is not None}
    needed = (field.name for field in known.values() if field.required)
    return kind(**good) if all(name in good for name in needed) else None


def _field(field: FieldInfo, value: object, at: Place, mistakes: list[Mistake]) -> Any:
    kind: Any = field.type
    if isinstance(kind, type) and issubclass(kind, Struct):
        return read_struct(kind, value, at, mistakes)
    try:
        return msgspec.convert(value, cast("Any", kind), dec_hook=_decode)
    except msgspec.ValidationError:
        mistakes.append(at.mistake(f"{_what(at)} {shown(value)}: write {_wanted(field)}"))
        return None


def _decode(kind: type, value: Any) -> Any:
    if kind is Seconds:
        return Seconds(required_seconds(value))
    raise NotImplementedError(kind)


def _wanted(field: FieldInfo) -> str:
    """Give the description of a field's type."""
    for part in (field.type, *get_args(field.type)):
        for meta in getattr(part, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.description:
                return meta.description
    return "a value"


def _path(at: Place) -> str:
    return at.field(2)  # behind `entries` and the index


def _what(at: Place) -> str:
    return f"{_path(at)} is" if _path(at) else "it is"


def shown(value: object) -> str:
    """Spell a wrong value for a message, as it stands in a file."""
    match value:
        case None:
            return "missing"
        case bool():
            return str(value).lower()
        case date():
            return str(value)
        case _:
            text = safe_text(value)
            return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


def instead(wrong: str, known: Iterable[str]) -> str:
    """Say what was perhaps meant by a wrong word, or else all that may stand there."""
    known = list(known)
    near = get_close_matches(wrong, known, n=3)
    if near:
        return f": did you mean {' or '.join(near)}?"
    return f": write one of {', '.join(known)}" if known else ""
