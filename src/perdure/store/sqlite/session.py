"""The named statements on a SQLite connection."""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from perdure.base.clock import BootClock, Clock, SystemClock
from perdure.store.session import Row
from perdure.store.statement import load, only

_STATEMENTS = load("sqlite")
_COLUMNS = 17
_ENTRY = f"({', '.join('?' * _COLUMNS)})"
# Many rows in one statement: each lets other threads run, and must then wait for its turn again.
# Few sizes, so that they stay prepared.
_UPSERTS = [
    (size, _STATEMENTS["upsert_entries"].format(entries=", ".join([_ENTRY] * size)))
    for size in (64, 8, 1)
]
_UPSERT_ONE = _UPSERTS[-1][1]
_WALL = SystemClock()
_to_json = msgspec.json.Encoder().encode


class SqliteSession:
    """A connection inside a transaction."""

    __slots__ = ("_clock", "database", "suspects")

    def __init__(
        self, database: sqlite3.Connection, clock: Clock | None, suspects: set[tuple[str, int]]
    ) -> None:
        self.database = database
        self.suspects = suspects
        self._clock = clock

    def now(self) -> float:
        return (self._clock or _WALL).time()

    def clock(self) -> float:
        return BootClock.seconds() if self._clock is None else self._clock.monotonic()

    def one(self, name: str, /, **values: Any) -> Row | None:
        return self.database.execute(_STATEMENTS[name], values).fetchone()

    def all(self, name: str, /, **values: Any) -> Sequence[Row]:
        return self.database.execute(_STATEMENTS[name], values).fetchall()

    def run(self, name: str, /, **values: Any) -> int:
        return self.database.execute(_STATEMENTS[name], values).rowcount

    def aside(self, name: str, /, **values: Any) -> None:
        self.run(name, **values)

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        return self.database.executemany(_STATEMENTS[name], rows).rowcount

    def find(self, name: str, present: set[str], /, **values: Any) -> Sequence[Row]:
        return self.database.execute(only(_STATEMENTS[name], present), values).fetchall()

    def array(self, values: Sequence[str] | Sequence[int]) -> Any:
        return _to_json(values).decode()

    def lock(self, name: str) -> None:
        """Nothing to do: a transaction that writes is alone."""

    def upsert(self, entries: Sequence[tuple[Any, ...]]) -> int:
        done, first = 0, 0
        for size, statement in _UPSERTS:
            while len(entries) - first >= size:
                values = tuple(chain.from_iterable(entries[first : first + size]))
                done += self.database.execute(statement, values).rowcount
                first += size
        return done

    def upsert_one(self, entry: tuple[Any, ...]) -> int:
        """Write one entry, outside of any transaction."""
        return self.database.execute(_UPSERT_ONE, entry).rowcount
