"""The rows of a table: how each kind keeps them, and until when. It knows no process."""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable
from enum import StrEnum
from itertools import count
from typing import Any, Generic, TypeVar

from perdure.otp.key import same, strict

FOREVER = float("inf")

# The heap of ends is cleaned of rows that are gone when most of it is, but not for so few.
_FEW_ENDS = 64


class Kind(StrEnum):
    """What a table may hold under one key."""

    SET = "set"  # one value; a new one replaces it
    ORDERED_SET = "ordered_set"  # one value; keys are sorted
    BAG = "bag"  # many different values
    DUPLICATE_BAG = "duplicate_bag"  # many values


class Row:
    """One value under one key, until its time is over."""

    __slots__ = ("end", "key", "value")

    def __init__(self, key: Any, value: Any, end: float) -> None:
        self.key = key
        self.value = value
        self.end = end


C = TypeVar("C", bound=Collection[Row])


class Rows(Generic[C]):
    """The rows of one table. A row whose time is over is never seen, and soon forgotten."""

    def __init__(self, now: Callable[[], float], ttl: float | None) -> None:
        """Begin empty.

        Args:
            now: Tells the time.
            ttl: How long a row lives that is inserted without a time; None: for ever.
        """
        self._now = now
        self._ttl = ttl
        self._by_key: dict[Hashable, C] = {}
        self._ends: list[tuple[float, int, Row]] = []
        self._numbers = count()  # rows that end together are compared by this
        self._size = 0

    # What differs between the kinds

    def place(self, key: Any) -> Hashable:
        """Give what stands for the key."""
        return strict(key)

    def _add(self, row: Row) -> Row:
        """Put a row into its place, and give the one that is there now.

        Raises:
            TypeError: The key is of no use; nothing was changed.
        """
        raise NotImplementedError

    def _drop(self, row: Row) -> None:
        """Forget a row."""
        raise NotImplementedError

    def _in_order(self) -> Iterable[C]:
        return self._by_key.values()

    # What is the same

    def of(self, key: Any) -> list[Row]:
        """Give the rows of a key, oldest first."""
        rows = self._by_key.get(self.place(key), ())
        if not self._ends:  # no row of this table has an end
            return list(rows)
        now = self._now()
        return [row for row in rows if row.end > now]

    def every(self) -> list[Row]:
        """Give all rows."""
        self._sweep()
        return [row for rows in self._in_order() for row in rows]

    def __len__(self) -> int:
        self._sweep()
        return self._size

    def insert(self, key: Any, value: Any, ttl: float | None = None) -> None:
        """Add a value under a key."""
        self._sweep()
        seconds = self._ttl if ttl is None else ttl
        end = FOREVER if seconds is None else self._now() + seconds
        row = self._add(Row(key, value, end))
        if end != FOREVER:
            heapq.heappush(self._ends, (end, next(self._numbers), row))

    def remove(self, key: Any) -> list[Row]:
        """Take all rows of a key out."""
        self._sweep()
        rows = list(self._by_key.get(self.place(key), ()))
        for row in rows:
            self._drop(row)
        return rows

    def clear(self) -> None:
        """Forget everything."""
        self._by_key.clear()
        self._ends.clear()
        self._size = 0

    def _sweep(self) -> None:
        """Forget the rows whose time is over: at each write, so there is nothing to be armed."""
        ends = self._ends
        if not ends:
            return
        now = self._now()
        while ends and ends[0][0] <= now:
            row = heapq.heappop(ends)[2]
            if row.end <= now and self._has(row):  # it was neither renewed nor replaced
                self._drop(row)
        if len(ends) > 2 * self._size + _FEW_ENDS:
            self._ends = [entry for entry in ends if self._is_end_of(entry[0], entry[2])]
            heapq.heapify(self._ends)

    def _has(self, row: Row) -> bool:
        return row in self._by_key.get(self.place(row.key), ())

    def _is_end_of(self, end: float, row: Row) -> bool:
        return row.end == end and self._has(row)


class SetRows(Rows[tuple[Row]]):
    """One row for each key."""

    def _add(self, row: Row) -> Row:
        place = self.place(row.key)
        self._size += place not in self._by_key
        self._by_key[place] = (row,)
        return row

    def _drop(self, row: Row) -> None:
        del self._by_key[self.place(row.key)]
        self._size -= 1


class OrderedRows(SetRows):
    """One row for each key, sorted; keys that compare as equal are the same key."""

    def __init__(self, now: Callable[[], float], ttl: float | None) -> None:
        super().__init__(now, ttl)
        self._order: list[Any] = []

    def place(self, key: Any) -> Hashable:
        if key != key:  # noqa: PLR0124 - NaN has no place in an order
            raise ValueError(f"a key of an ordered table must be equal to itself; {key!r} is not")
        return key

    def _add(self, row: Row) -> Row:
        if self.place(row.key) not in self._by_key:
            self._order.insert(self._index(row.key), row.key)
        return super()._add(row)

    def _drop(self, row: Row) -> None:
        super()._drop(row)
        del self._order[self._index(row.key)]

    def _index(self, key: Any) -> int:
        return bisect_left(self._order, key)

    def _in_order(self) -> Iterable[tuple[Row]]:
        return (self._by_key[key] for key in self._order)

    def clear(self) -> None:
        super().clear()
        self._order.clear()


class DuplicateBagRows(Rows[dict[Row, None]]):
    """Many rows for each key: a dict as ordered set, so that one of many leaves unsought."""

    def _add(self, row: Row) -> Row:
        self._by_key.setdefault(self.place(row.key), {})[row] = None
        self._size += 1
        return row

    def _drop(self, row: Row) -> None:
        place = self.place(row.key)
        rows = self._by_key[place]
        del rows[row]
        self._size -= 1
        if not rows:
            del self._by_key[place]


class BagRows(DuplicateBagRows):
    """Many different rows for each key."""

    def _add(self, row: Row) -> Row:
        for other in self._by_key.get(self.place(row.key), ()):
            if same(other.value, row.value):
                other.end = row.end  # its time begins anew
                return other
        return super()._add(row)


_KINDS: dict[Kind, type[Rows[Any]]] = {
    Kind.SET: SetRows,
    Kind.ORDERED_SET: OrderedRows,
    Kind.BAG: BagRows,
    Kind.DUPLICATE_BAG: DuplicateBagRows,
}


def make_rows(kind: Kind, now: Callable[[], float], ttl: float | None) -> Rows[Any]:
    """Make the rows of an empty table."""
    return _KINDS[kind](now, ttl)
