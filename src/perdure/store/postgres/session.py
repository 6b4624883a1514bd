"""The named statements on a PostgreSQL connection."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.store.postgres.connection import Pg
from perdure.store.session import Row
from perdure.store.statement import load, only

_TEXTS = load("postgres")
STATEMENTS = {name: text.encode() for name, text in _TEXTS.items()}
_COLUMNS = (
    *("job_id", "seq", "id", "kind", "name", "state", "attempt"),
    *("input", "output", "error", "checkpoint", "checkpoint_no"),
    *("wake_at", "started_at", "ended_at", "owner", "epoch"),
)
_encode = msgspec.json.Encoder().encode

# Alone, the statement is the whole transaction, so it notes its number itself.
_WRITE = f"WITH noted AS ({_TEXTS['set_op']}), {_TEXTS['upsert_entries'].removeprefix('WITH ')}"
# As the server reads it: lane, number and entries in this order.
WRITE = (
    _WRITE.replace("%(lane)s", "$1").replace("%(no)s", "$2").replace("%(entries)s", "$3").encode()
)


def spell_entries(entries: Sequence[tuple[Any, ...]]) -> str:
    """Spell journal entries as one parameter: a tenth of the work of seventeen arrays."""
    return _encode([dict(zip(_COLUMNS, entry, strict=True)) for entry in entries]).decode()


class PgSession:
    """A connection inside a transaction."""

    __slots__ = ("asides", "is_prepared", "moment", "pg", "suspects")

    def __init__(self, pg: Pg, suspects: set[tuple[str, int]]) -> None:
        self.pg = pg
        self.suspects = suspects
        self.is_prepared = False  # the statement that writes entries alone
        self.moment: float | None = None  # the server's time in this transaction
        self.asides: list[tuple[bytes, Mapping[str, Any]]] = []

    def now(self) -> float:
        if self.moment is None:
            found = self.one("clock")
            assert found is not None
            self.moment = float(found[0])
        return self.moment

    def clock(self) -> float:
        return self.now()

    def one(self, name: str, /, **values: Any) -> Row | None:
        return self.pg.execute(STATEMENTS[name], values).fetchone()

    def all(self, name: str, /, **values: Any) -> Sequence[Row]:
        return self.pg.execute(STATEMENTS[name], values).fetchall()

    def run(self, name: str, /, **values: Any) -> int:
        return self.pg.execute(STATEMENTS[name], values).rowcount

    def aside(self, name: str, /, **values: Any) -> None:
        self.asides.append((STATEMENTS[name], values))

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        if len(rows) == 1:
            return self.run(name, **rows[0])
        with self.pg.cursor() as cursor:
            cursor.executemany(STATEMENTS[name], rows)
            return cursor.rowcount

    def find(self, name: str, present: set[str], /, **values: Any) -> Sequence[Row]:
        return self.pg.execute(only(_TEXTS[name], present).encode(), values).fetchall()

    def array(self, values: Sequence[str] | Sequence[int]) -> Any:
        return list(values)

    def lock(self, name: str) -> None:
        self.one("lock", name=name)

    def upsert(self, entries: Sequence[tuple[Any, ...]]) -> int:
        return self.run("upsert_entries", entries=spell_entries(entries))
