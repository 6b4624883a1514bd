"""The named statements on a SQLite connection."""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from perdure.base.clock import BootClock, Clock, SystemClock
from perdure.jobs.effect import EffectState
from perdure.store.session import Row
from perdure.store.statement import load, only

Statements = Mapping[int, str]  # by the number of rows

_STATEMENTS = load("sqlite")
# An entry with all its columns, and one without error, checkpoint, wake-up and key: most have none,
# and None is the dearest of all parameters.
_FULL = f"({', '.join('?' * 18)})"
_LEAN = f"({', '.join('?' * 9)}, NULL, NULL, ?, NULL, ?, ?, ?, ?, NULL)"


def _upserts(entry: str) -> Statements:
    """Spell the upsert of many rows: each statement lets other threads run, and waits for its turn.

    Few sizes, so that they stay prepared.
    """
    return {
        size: _STATEMENTS["upsert_entries"].format(entries=", ".join([entry] * size))
        for size in (64, 8, 1)
    }


_UPSERT_FULL, _UPSERT_LEAN = _upserts(_FULL), _upserts(_LEAN)
_KEEP_EFFECT, _CHANGE_EFFECT = _STATEMENTS["keep_effect"], _STATEMENTS["change_effect"]
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
        if len(entries) == 1:
            return self.upsert_one(entries[0])
        lean = [_lean(entry) for entry in entries if _is_lean(entry)]
        full = [entry for entry in entries if not _is_lean(entry)]
        return self._upsert_many(_UPSERT_FULL, full) + self._upsert_many(_UPSERT_LEAN, lean)

    def _upsert_many(self, statements: Statements, entries: Sequence[tuple[Any, ...]]) -> int:
        done, first = 0, 0
        for size, statement in statements.items():
            while len(entries) - first >= size:
                values = tuple(chain.from_iterable(entries[first : first + size]))
                done += self.database.execute(statement, values).rowcount
                first += size
        return done

    def keep(self, lines: Sequence[Mapping[str, Any]]) -> int:
        return sum(self._keep_one(line) for line in lines)

    def _keep_one(self, line: Mapping[str, Any]) -> int:
        # Most lines that are no intents were such before: to change one is a third of the work.
        if line["state"] != EffectState.INTENT:
            done = self.database.execute(_CHANGE_EFFECT, line).rowcount
            if done:
                return done
        return self.database.execute(_KEEP_EFFECT, line).rowcount

    def upsert_one(self, entry: tuple[Any, ...]) -> int:
        """Write one entry; alone, that is a transaction of its own."""
        if _is_lean(entry):
            return self.database.execute(_UPSERT_LEAN[1], _lean(entry)).rowcount
        return self.database.execute(_UPSERT_FULL[1], entry).rowcount


def _is_lean(entry: tuple[Any, ...]) -> bool:
    return entry[9] is entry[10] is entry[12] is entry[17] is None


def _lean(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*entry[:9], entry[11], *entry[13:17])
