"""The named statements on a PostgreSQL connection."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
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
# Half of the work of a dict. Few entries have a key: to the others it is not even spelled.
_spelled: Callable[..., msgspec.Struct] = msgspec.defstruct(
    "_spelled", (*_COLUMNS, ("key", str | None, None)), gc=False, omit_defaults=True
)
_encode = msgspec.json.Encoder().encode


def _noting(statement: str) -> str:
    """Let a statement note its number itself, as it is the whole transaction."""
    return statement.replace("WITH ", f"WITH noted AS ({_TEXTS['set_op']}), ", 1)


_WRITE = _noting(_TEXTS["upsert_entries"])
WHOLE = {name: _noting(_TEXTS[name]).encode() for name in ("take", "submit_all")}
_WRITE_BOTH = _TEXTS["write_both"].format(**_TEXTS)


def _numbered(statement: str) -> bytes:
    """Spell a statement as the server reads it, with these parameters in this order."""
    for place, name in enumerate(("lane", "no", "entries", "lines"), 1):
        statement = statement.replace(f"%({name})s", f"${place}")
    return statement.encode()


WRITE = _numbered(_WRITE)
WRITE_BOTH = _numbered(_WRITE_BOTH)  # with lines of the ledger


def spell_entries(entries: Sequence[tuple[Any, ...]]) -> str:
    """Spell journal entries as one parameter: a tenth of the work of eighteen arrays."""
    return _encode([_spelled(*entry) for entry in entries]).decode()


def spell_lines(lines: Sequence[Mapping[str, Any]]) -> str:
    """Spell lines of the ledger likewise, with the places that new ones of each job will have.

    Sorted, since leases are locked in this order.
    """
    new = Counter[str]()
    spelled: list[dict[str, Any]] = []
    for line in sorted(lines, key=itemgetter("id")):
        spelled.append({**line, "place": new[line["id"]] + 1})
        # One that ended later than it began has its place already.
        new[line["id"]] += line["ended_at"] in (None, line["called_at"])
    return _encode(spelled).decode()


class PgSession:
    """A connection inside a transaction."""

    __slots__ = ("asides", "moment", "pg", "prepared", "suspects")

    def __init__(self, pg: Pg, suspects: set[tuple[str, int]]) -> None:
        self.pg = pg
        self.suspects = suspects
        self.prepared: set[bytes] = set()  # which of the statements that are written alone
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

    def keep(self, lines: Sequence[Mapping[str, Any]]) -> int:
        return self.run("keep_effects", lines=spell_lines(lines))
