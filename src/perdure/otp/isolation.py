"""What an agent gives away of its state: a copy, unless it is something that nobody can change."""

import datetime as dt
import decimal
import fractions
import uuid
from copy import deepcopy
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePosixPath, PureWindowsPath
from re import Pattern
from types import BuiltinFunctionType, EllipsisType, FunctionType, NoneType
from typing import Any, Final, TypeVar

from msgspec import Struct

from perdure.base.pid import Pid, Ref

T = TypeVar("T")

ATOMS: Final[frozenset[type]] = frozenset(
    {
        *(NoneType, bool, int, float, complex, str, bytes, range, type, EllipsisType),
        *(FunctionType, BuiltinFunctionType, Pattern, Pid, Ref, uuid.UUID),
        *(decimal.Decimal, fractions.Fraction, PurePosixPath, PureWindowsPath),
        *(dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone),
    }
)
"""Types whose values never change, and hold nothing that could."""


def isolated(value: T) -> T:
    """Give the value itself if nobody can change it, else a deep copy.

    Raises:
        TypeError: It can be changed, and cannot be copied.
    """
    if type(value) in ATOMS or is_immutable(value):
        return value
    try:
        return deepcopy(value)
    except Exception as error:
        raise TypeError(
            f"a {type(value).__qualname__} cannot be copied ({error}): return a part of the state "
            "that can, or share the very object with isolate=False"
        ) from error


def is_immutable(value: Any) -> bool:
    """Tell whether nobody can change the value, nor anything in it."""
    if type(value) in ATOMS or isinstance(value, Enum):
        return True
    if type(value) is frozenset or (isinstance(value, tuple) and not hasattr(value, "__dict__")):  # pyright: ignore[reportUnknownArgumentType]
        return all(map(is_immutable, value))  # pyright: ignore[reportUnknownArgumentType]
    names = _frozen_fields(value)
    return names is not None and all(is_immutable(getattr(value, name)) for name in names)  # pyright: ignore[reportUnknownArgumentType]


def _frozen_fields(value: Any) -> tuple[str, ...] | None:
    """Give the fields of a frozen record; None if it is no such thing."""
    if isinstance(value, Struct):
        return value.__struct_fields__ if value.__struct_config__.frozen else None
    if is_dataclass(value) and getattr(value, "__dataclass_params__").frozen:  # noqa: B009
        return tuple(field.name for field in fields(value))
    return None
