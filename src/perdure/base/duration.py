"""Durations as people write them, converted to seconds where they enter the program."""

import re
import reprlib
import sys
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

Duration: TypeAlias = float | int | timedelta | str | None
"""A number of seconds, a `timedelta`, text such as `"1m30s"`, or None for no limit."""

LONGEST_TEXT = 64  # nobody writes a longer duration, and such text must not fill the cache
CACHED_TEXTS = 512  # a program has far fewer durations in its source

_ACCEPTED = (
    "use a number of seconds, a timedelta, or a string with units"
    ' such as "100ms" or "1m30s" (ns us \u00b5s ms s m h)'
)
_LARGEST = sys.float_info.max
_NANOSECONDS = 10**9
_UNITS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "\u00b5s": Fraction(1, 10**6),  # the micro sign
    "\u03bcs": Fraction(1, 10**6),  # the Greek letter, which looks the same
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_DAY = 86_400.0
_DAYS = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9})?)d(.*)", re.ASCII | re.DOTALL)
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([^0-9.]*)")


def seconds(duration: Duration) -> float | None:
    """Return the duration in seconds; None, which means no limit, stays None.

    Raises:
        ValueError: It is negative, not finite, or text that is not a duration.
        TypeError: It is neither a number nor text nor a timedelta.
    """
    return None if duration is None else required_seconds(duration)


def required_seconds(duration: Duration) -> float:
    """Return the duration in seconds where "no limit" has no meaning.

    Raises:
        ValueError: It is negative, not finite, or text that is not a duration.
        TypeError: It is None, or neither a number nor text nor a timedelta.
    """
    # Timers on hot paths pass plain numbers; a bool is an int only to isinstance.
    if type(duration) is float or type(duration) is int:
        if 0 <= duration <= _LARGEST:  # false for NaN too
            return float(duration)
        raise ValueError(_sentence(duration, _flaw(duration)))
    if isinstance(duration, str):
        return _parsed(duration)
    if isinstance(duration, timedelta):
        return required_seconds(duration.total_seconds())
    if isinstance(duration, float | int) and not isinstance(duration, bool):
        plain = float if isinstance(duration, float) else int  # of a subclass, such as an IntEnum
        return required_seconds(plain(duration))
    why = (
        "a limit is needed here"
        if duration is None
        else f"{type(duration).__name__} is not a duration"
    )
    raise TypeError(_sentence(duration, why))


def job_seconds(duration: Duration) -> float | None:
    """Return the seconds of a duration in a job, which may be in days: `"3d"`, `"1d12h"`.

    A day has 24 hours. Otherwise the same as `seconds`.
    """
    if isinstance(duration, str) and (found := _DAYS.match(duration)):
        days, rest = found.groups()
        return float(days) * _DAY + (required_seconds(rest) if rest else 0.0)
    return seconds(duration)


def named_seconds(name: str, duration: Duration) -> float:
    """Like `required_seconds`, with an error that begins with the name of the parameter."""
    try:
        return required_seconds(duration)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}") from None


def spell(duration: Duration) -> str:
    """Return a duration as text, exact to the nanosecond: `1m30s`, `250ms`, `2h`."""
    total = round(Fraction(required_seconds(duration)) * _NANOSECONDS)
    if 0 < total < _NANOSECONDS:
        unit, size = next(u for u in (("ms", 10**6), ("us", 10**3), ("ns", 1)) if total >= u[1])
        return _decimal(total, size) + unit
    minutes, rest = divmod(total, 60 * _NANOSECONDS)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else ""]
    if rest or not total:
        parts.append(_decimal(rest, _NANOSECONDS) + "s")
    return "".join(parts)


@lru_cache(maxsize=CACHED_TEXTS)
def _parsed(text: str) -> float:
    """Return the seconds; parts are added as fractions, so that only the sum is rounded."""
    if len(text) > LONGEST_TEXT:
        raise ValueError(_sentence(text, f"longer than {LONGEST_TEXT} characters"))
    if text.startswith("-"):
        raise ValueError(_sentence(text, "negative"))
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.removeprefix("+"):
        raise ValueError(_sentence(text, "not a sequence of numbers with units"))
    return float(sum(Fraction(number) * _unit(text, unit) for number, unit in parts))


def _unit(text: str, unit: str) -> Fraction:
    if unit in _UNITS:
        return _UNITS[unit]
    raise ValueError(_sentence(text, f"unknown unit {unit!r}" if unit else "a unit is missing"))


def _decimal(amount: int, size: int) -> str:
    """Return `amount / size` as text, where size is a power of ten."""
    whole, rest = divmod(amount, size)
    digits = str(size + rest)[1:].rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def _flaw(number: float) -> str:
    if number < 0:
        return "negative"
    return "not a number" if number != number else "too large"  # noqa: PLR0124  only NaN differs from itself


def _sentence(duration: object, why: str) -> str:
    # The interpreter refuses to print an int with very many digits.
    huge = isinstance(duration, int) and abs(duration) > _LARGEST
    shown = "a huge int" if huge else reprlib.repr(duration)
    return f"bad duration {shown}: {why}; {_ACCEPTED}"
