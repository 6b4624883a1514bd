"""Find the part of a value that cannot be stored exactly, and say why.

Slow and thorough: the codec comes here only when it has seen that something is wrong.
"""

import math
from collections.abc import Iterable, Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec

from perdure.base.errors import safe_text
from perdure.base.schema import fields_of, is_secret

LONGEST_INT = 4300  # digits that the interpreter agrees to print and to read

_LARGEST_INT = 10**LONGEST_INT
_ATOMS = (bool, bytes, bytearray, memoryview, date, time, timedelta, UUID, Enum, msgspec.Raw)


class Flaw(NamedTuple):
    """What is wrong, and where: `.rows[3].price`."""

    path: str
    why: str


def flaw(value: Any, path: str = "") -> Flaw | None:
    """Find what no JSON can hold."""
    why = _flaw_of_one(value)
    if why:
        return Flaw(path, why)
    return next((found for at, part in _inside(value, path) if (found := flaw(part, at))), None)


def difference(value: Any, back: Any, *, loose: bool = False, path: str = "") -> Flaw | None:
    """Find where a value and what was read back of it are not the same.

    Args:
        value: What was to be stored.
        back: What would be read.
        loose: Tuples may come back as lists, since the declared type says only `Sequence`.
        path: Where both are.
    """
    if not _same_kind(value, back, loose=loose):
        return Flaw(path, _turned_into(value, back))
    mine, theirs = list(_inside(value, path)), dict(_inside(back, path))
    if [at for at, _ in mine] != list(theirs):
        return Flaw(path, _other_parts(value, back))
    if not mine and not _equal(value, back):
        return Flaw(path, f"it would come back as {_shown(back)}")
    pairs = ((at, part, theirs[at]) for at, part in mine)
    found = (difference(one, other, loose=loose, path=at) for at, one, other in pairs)
    return next((each for each in found if each), None)


def _same_kind(value: Any, back: Any, *, loose: bool) -> bool:
    if type(value) is type(back) or _equal(value, back):
        return True
    return loose and isinstance(value, list | tuple) and isinstance(back, list | tuple)


def _flaw_of_one(value: Any) -> str:
    """Say what is wrong with a value, apart from the parts inside of it."""
    if is_secret(type(value)):
        return "it is a secret, and secrets are never stored: read it inside of the step"
    if isinstance(value, str):
        return _flaw_of_text(value)
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"JSON has no number {value}: use None"
    if isinstance(value, Decimal):
        return f"{value} is not even equal to itself: use None" if value.is_nan() else ""
    if isinstance(value, int) and not -_LARGEST_INT < value < _LARGEST_INT:
        return f"it is an int of more than {LONGEST_INT} digits"
    return "" if _is_known(value) else f"{_kind(value)} is no data: {_advice(value)}"


def _flaw_of_text(text: str) -> str:
    if "\0" in text:
        return "the text has a NUL character, which databases refuse: remove it"
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        return "the text has half of a surrogate pair: decode it with errors='replace'"
    return ""


def _is_known(value: Any) -> bool:
    plain = value is None or type(value) in (int, list, tuple, dict, set, frozenset)
    return plain or isinstance(value, _ATOMS) or fields_of(value) is not None


def _inside(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """List the parts of a value, each with its path."""
    if isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            yield f"{path} (key {_shown(key)})", key
            yield (f"{path}.{key}" if _is_name(key) else f"{path}[{_shown(key)}]"), part
    elif isinstance(value, list | tuple):
        yield from _numbered(cast("list[Any]", value), path)
    elif isinstance(value, set | frozenset):
        yield from _numbered(sorted(cast("set[Any]", value), key=repr), path)
    else:
        for name, part in (fields_of(value) or {}).items():
            yield f"{path}.{name}", part


def _numbered(values: Iterable[Any], path: str) -> Iterator[tuple[str, Any]]:
    return ((f"{path}[{index}]", part) for index, part in enumerate(values))


def _equal(value: Any, back: Any) -> bool:
    try:
        return bool(value == back)
    except Exception:  # noqa: BLE001  somebody's broken __eq__ makes them different, no more
        return False


def _other_parts(value: Any, back: Any) -> str:
    if isinstance(value, dict) and isinstance(back, dict):
        mine = cast("dict[Any, Any]", value)
        for key in mine:
            if key not in back and not isinstance(key, str):
                return (
                    f"its key {_shown(key)} would come back as text: declare the type of its keys"
                )
    return "it would come back with other parts"


def _turned_into(value: Any, back: Any) -> str:
    return (
        f"{_kind(value)} would come back as {_kind(back)}: "
        "declare its type in the annotations of the function"
    )


def _advice(value: Any) -> str:
    base = next((each for each in (str, int, float) if isinstance(value, each)), None)
    if base:
        return f"make it a plain {base.__name__}"
    return "use what JSON knows, a dataclass, a Struct or a model"


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__qualname__}"


def _is_name(key: Any) -> bool:
    return isinstance(key, str) and key.isidentifier()


def _shown(value: Any) -> str:
    text = safe_text(value, ascii)
    return text if len(text) <= 40 else f"{text[:37]}…"  # noqa: PLR2004  enough to recognise it
