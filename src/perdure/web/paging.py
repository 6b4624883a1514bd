"""Cursors: where a list goes on, as an opaque text that clients pass back as it is.

A cursor holds the place of the last item, never a number of items to skip: a page costs the same
however far behind it is, and what is added meanwhile shifts nothing. It opens nothing that its
reader could not read anyway, so it is not signed, but checked like any other text of a stranger.
"""

import base64
import binascii
import math
from typing import Any, Final, TypeVar

import msgspec

from perdure.base.errors import RequestRefused

T = TypeVar("T")

MOST_ITEMS: Final = 1000  # of a page
_LONGEST: Final = 1000  # characters of a cursor
_MOST_NUMBER: Final = 2**53


def cursor_of(place: Any) -> str:
    """Return the cursor of a place in a list."""
    data = msgspec.json.encode(place)
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def place_of(cursor: str, kind: type[T]) -> T:
    """Return the place that a cursor names.

    Raises:
        RequestRefused: It is not a cursor of such a list.
    """
    try:
        if len(cursor) > _LONGEST:
            raise ValueError("too long")  # noqa: TRY301
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(data, type=kind)
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError):
        text = "this cursor is not one of this list: pass `next` of a page, as it is"
        raise RequestRefused(400, "bad_cursor", text) from None


def newest_place(cursor: str | None) -> tuple[float, str] | None:
    """Return the place in a list, newest first, that a cursor names: (created_at, id)."""
    if cursor is None:
        return None
    at, id = place_of(cursor, tuple[float, str])
    _check_place(at, id)
    return at, id


def effect_place(cursor: str | None) -> tuple[float, str, int] | None:
    """Return the place in a list of effects that a cursor names: (called_at, job, no)."""
    if cursor is None:
        return None
    at, job_id, no = place_of(cursor, tuple[float, str, int])
    _check_place(at, job_id)
    return at, job_id, number(no, "cursor")


def _check_place(at: float, id: str) -> None:
    if not math.isfinite(at) or "\0" in id:
        raise RequestRefused(400, "bad_cursor", "this cursor is not one of this list")


def checked_limit(limit: int, most: int = MOST_ITEMS) -> int:
    """Return the number of items of a page.

    Raises:
        RequestRefused: It is not between one and `most`.
    """
    if not 1 <= limit <= most:
        raise RequestRefused(400, "bad_limit", f"`limit` is from 1 to {most}, not {limit}")
    return limit


def number(given: int, name: str) -> int:
    """Return a position that a request names.

    Raises:
        RequestRefused: It is negative, or larger than any position.
    """
    if not 0 <= given < _MOST_NUMBER:
        raise RequestRefused(400, "bad_number", f"`{name}` is not a position: {given}")
    return given


def number_place(cursor: str) -> int:
    """Return the number that a cursor names."""
    return number(place_of(cursor, int), "cursor")
