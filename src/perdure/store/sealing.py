"""Which columns are encrypted, and the sessions that encrypt what they write and read it again.

Verbs and everything above them see plain payloads only. A program without keys, on a store without
any, has ordinary sessions: nothing of this runs. Otherwise its sessions are `Sealing`:

* A parameter of a statement is sealed if it is named like an encrypted column of the table that the
  statement writes; a column of a result is opened if it is one of the table that is read.
* The rows of a fenced write are sealed when it is requested (`seal_rows`).
* A value is bound to its place: table, column and row. Moved elsewhere, it cannot be opened.

**Who may read.** The store knows which keys were used for it: each is a row of `fact`. A program
that lacks one of them writes no payload (`Locked`), and its workers claim no job: see the part
`readable` of the claims. What it cannot read raises `EncryptionError`; only programs that show jobs
to people (`shows_locked`) get a text that says so in its place.

**What stays plain** is what SQL must find, order and compare: ids, keys, names, labels, states,
times, amounts, hashes of actions, and the audit log, which holds no payloads.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from perdure.base.encryption import TRIVIAL, Encryption, Keys, Locked, is_sealed, key_of
from perdure.base.errors import EncryptionError
from perdure.store.statements import Dialect, Row, load

KEY_FACT: Final = "encryption key "


class SealedTable(NamedTuple):
    """A table with encrypted columns."""

    key: tuple[str, ...]  # the primary key, by which rows are walked through
    row: str  # the column that a value is bound to
    columns: tuple[str, ...]


TABLES: Final[Mapping[str, SealedTable]] = {
    "job": SealedTable(("id",), "id", ("input", "plan", "result", "error", "wait", "fingerprint")),
    "lease": SealedTable(("job_id",), "job_id", ("progress",)),
    "journal": SealedTable(("job_id", "seq"), "job_id", ("input", "output", "error", "checkpoint")),
    "payload": SealedTable(("job_id", "digest"), "job_id", ("data",)),
    "event": SealedTable(("no",), "job_id", ("data",)),
    "message": SealedTable(("no",), "job_id", ("payload",)),
    "output": SealedTable(("job_id", "topic", "no"), "job_id", ("data",)),
    "schedule": SealedTable(("tenant", "name"), "name", ("job",)),
    "effect": SealedTable(
        ("job_id", "no"),
        "job_id",
        ("target", "details", "result", "problem", "error", "undo"),
    ),
    "approval": SealedTable(("id",), "id", ("data",)),
    "notice": SealedTable(("id",), "id", ("data",)),
    "worker_command": SealedTable(("id",), "id", ("data", "answer")),
    "answer": SealedTable(("tenant", "principal", "key"), "key", ("digest", "done", "body")),
    # A thread may be copied within its tenant, so that is all that its rows are bound to.
    "langgraph_checkpoint": SealedTable(
        ("tenant", "thread", "ns", "id"), "tenant", ("metadata", "data")
    ),
    "langgraph_value": SealedTable(
        ("tenant", "thread", "ns", "channel", "version"), "tenant", ("data", "pieces")
    ),
    "langgraph_piece": SealedTable(("tenant", "thread", "digest"), "tenant", ("data",)),
    "langgraph_write": SealedTable(
        ("tenant", "thread", "ns", "checkpoint", "task", "idx"), "tenant", ("data",)
    ),
    "langgraph_item": SealedTable(("tenant", "namespace", "key"), "tenant", ("data", "vectors")),
    "workflow_checkpoint": SealedTable(("tenant", "id"), "id", ("data",)),
}
# Tables whose rows are named by a digest of their data, which a key hides.
_NAMED_BY_DATA: Final = {"insert_payload": "id", "insert_graph_piece": "tenant"}
# Columns of another table that statements read along.
_ALONG: Final = {"job": {"progress": "lease.progress"}}
# Whose columns a statement reads or writes, where its first table is another one.
_TABLE_OF: Final = {
    "claim_unlimited": "job",
    "find_labelled_jobs": "job",
    "link": "approval",
}
_NAMED: Final = re.compile(r"\b(?:INTO|UPDATE|FROM)\s+(\w+)")
_COMMENT: Final = re.compile(r"--.*")
_BRACKETS: Final = re.compile(r"\([^()]*\)")

_ENTRY: Final = tuple(enumerate(("input", "output", "error", "checkpoint"), 7))  # in a row
_OF_EFFECT: Final = TABLES["effect"].columns
_to_json: Final = msgspec.json.Encoder().encode
_from_json: Final = msgspec.json.Decoder().decode


_IN_PARTS: Final = frozenset({"wait", "progress", "done"})


def place_of(table: str, column: str, row: object) -> str:
    """Return what a value is bound to."""
    return f"{table}.{column} of {row}"


def keys_for(keys: Encryption | None, used: Sequence[str]) -> Keys | None:
    """Return how a program with some keys uses a store that has some; None: it is plain."""
    missing = [each for each in used if keys is None or each not in keys.ids]
    if missing:
        return Locked(keys, missing)
    return keys if keys is not None and keys.ids else None


def used_keys(facts: Iterable[Row]) -> list[str]:
    """Return the ids of the keys of a store, from its facts."""
    return [each[0].removeprefix(KEY_FACT) for each in facts]


# Lists of objects of which only one field holds what people wrote: SQL reads the others.
_FIELDS: Final = {"wait": "title", "progress": "note"}
_LINES: Final = "done"  # a column of lines, each sealed by itself: others are appended


def seal_value(keys: Keys, table: str, column: str, row: object, text: str) -> str:
    """Return a text as it is stored."""
    place = place_of(table, column, row)
    if column in _FIELDS:
        return _changed(column, text, lambda part: keys.seal(place, part))
    if column == _LINES:
        return "".join(f"{keys.seal(place, each)}\n" for each in text.split("\n")[:-1])
    return keys.seal(place, text)


def open_value(keys: Keys, table: str, column: str, row: object, stored: str) -> str:
    """Return a text from what is stored."""
    place = place_of(table, column, row)
    if column in _FIELDS:
        return _changed(column, stored, lambda part: keys.open(place, part))
    if column == _LINES:
        return "".join(f"{keys.open(place, each)}\n" for each in stored.split("\n")[:-1])
    return keys.open(place, stored)


def sealed_by(column: str, stored: str | bytes) -> str:
    """Return the id of the key of a stored value; "" if it is plain."""
    parts = _parts(column, stored) if isinstance(stored, str) else [stored]
    return key_of(parts[0]) if parts else ""


def is_worth_sealing(column: str, stored: str | bytes) -> bool:
    """Whether a plain value is one that would be sealed."""
    if isinstance(stored, bytes):
        return True
    return any(each not in TRIVIAL for each in _parts(column, stored))


def _parts(column: str, text: str) -> list[str]:
    if column == _LINES:
        return text.split("\n")[:-1]
    if column not in _FIELDS:
        return [text]
    found: list[str] = []
    _changed(column, text, lambda part: found.append(part) or part)
    return found


def _changed(column: str, text: str, change: Callable[[str], str]) -> str:
    """Return a list of objects with another text in the field that is sealed."""
    field = _FIELDS[column]
    if f'"{field}":' not in text:
        return text
    try:
        found = msgspec.json.decode(text, type=list[dict[str, Any]])
    except msgspec.MsgspecError:  # another version of Perdure wrote it
        return text
    for each in found:
        if each.get(field):
            each[field] = change(each[field])
    return _to_json(found).decode()


# Rows of a fenced write


def seal_entry(keys: Keys, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the row of a journal entry with its payloads sealed."""
    sealed = list(row)
    for index, column in _ENTRY:
        if row[index] is not None:
            sealed[index] = keys.seal(place_of("journal", column, row[0]), row[index])
    return tuple(sealed)


def seal_effect(keys: Keys, line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the ledger with its payloads sealed."""
    return line | {
        column: keys.seal(place_of("effect", column, line["id"]), line[column])
        for column in _OF_EFFECT
        if line[column] is not None
    }


def seal_new_jobs(keys: Keys, jobs: str) -> str:
    """Return the rows of new jobs, which are one JSON parameter, with their payloads sealed."""
    rows = _from_json(jobs)
    for row in rows:
        for column in ("input", "plan", "fingerprint"):
            if row[column] is not None:
                row[column] = keys.seal(place_of("job", column, row["id"]), row[column])
        row["data"] = keys.seal(place_of("event", "data", row["id"]), row["data"])
    return _to_json(rows).decode()


def chunk_names(keys: Keys | None, job_id: str, digests: Iterable[str]) -> dict[str, str]:
    """Return the names by which parts of a payload may be stored, each with its digest."""
    if keys is None:
        return {each: each for each in digests}
    return {name: each for each in digests for name in keys.names(job_id, each)}


# Statements

# A walk locks the rows that it reads; those that others have locked are left to a further walk.
_WALK: Final = """
-- name: sealed_{table}
SELECT {columns} FROM {table}
WHERE ({key}) > ({after})
ORDER BY {key}
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_{table}
"""
_CHANGE: Final = "UPDATE {table} SET {changes} WHERE {same}\n"
# A row that is named by its data was inserted again under its other name.
_DELETE: Final = "DELETE FROM {table} WHERE {same}\n"


def all_statements(dialect: Dialect) -> dict[str, str]:
    """Return all statements of one database, with those that walk through encrypted tables."""
    return load(dialect, "".join(_walk(*each) for each in TABLES.items()))


def _walk(table: str, declared: SealedTable) -> str:
    return (_WALK + (_DELETE if "digest" in declared.key else _CHANGE)).format(
        table=table,
        columns=", ".join(walked_columns(declared)),
        key=", ".join(declared.key),
        after=", ".join(f":after_{each}" for each in declared.key),
        changes=", ".join(f"{each} = :{each}" for each in declared.columns),
        same=" AND ".join(f"{each} = :{each}" for each in declared.key),
    )


def walked_columns(declared: SealedTable) -> list[str]:
    """Return which columns of a table are read by a walk."""
    return list(dict.fromkeys((*declared.key, declared.row, *declared.columns)))


@cache
def table_of(name: str, text: str) -> str:
    """Return the table whose columns a statement writes or reads; "" if none is encrypted."""
    text, inner = _COMMENT.sub("", text), 1
    while inner:  # what is inside brackets are other statements, and lists
        text, inner = _BRACKETS.subn("", text)
    found = _NAMED.search(text)
    table = _TABLE_OF.get(name) or (found[1] if found else "")
    # What walks through the rows of a table sees them as they are.
    return table if table in TABLES and not name.startswith(("sealed_", "reseal_")) else ""


def seal_parameters(keys: Keys, name: str, text: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a statement with the payloads among them sealed."""
    if name == "submit_new":
        return {**values, "jobs": seal_new_jobs(keys, values["jobs"])}
    table = table_of(name, text)
    if not table:
        return dict(values)
    sealed = dict(values)
    declared = TABLES[table]
    row = values.get(declared.row, values.get("id"))
    if name in _NAMED_BY_DATA:
        sealed["digest"] = keys.name(values[_NAMED_BY_DATA[name]], values["digest"])
        row = f"{row} {sealed['digest']}"
    for column in declared.columns:
        if (given := values.get(column)) is not None:
            sealed[column] = _sealed(keys, table, column, row, given)
    if name == "note_done":
        sealed["line"] = seal_value(keys, table, _LINES, row, values["line"])
    return sealed


def _sealed(keys: Keys, table: str, column: str, row: object, given: Any) -> Any:
    if isinstance(given, str):
        return seal_value(keys, table, column, row, given)
    return keys.seal_bytes(place_of(table, column, row), bytes(given))


class Opener:
    """Opens the rows of a result."""

    def __init__(self, keys: Keys, table: str, columns: Sequence[str], *, shows: bool) -> None:
        declared = TABLES[table]
        along = {name: tuple(place.split(".")) for name, place in _ALONG.get(table, {}).items()}
        self._keys = keys
        self._row = columns.index(declared.row) if declared.row in columns else None
        self._row_name = declared.row
        self._shows = shows
        self._places = [
            (index, *(along.get(column) or (table, column)))
            for index, column in enumerate(columns)
            if column in declared.columns or column in along
        ]
        named = "digest" in declared.key and "digest" in columns
        self._name = columns.index("digest") if named else None

    def rows(self, found: Sequence[Row], values: Mapping[str, Any]) -> Sequence[Row]:
        """Return rows with their payloads opened."""
        if not self._places:
            return found
        given = values.get(self._row_name, values.get("id"))
        return [self._opened(row, given if self._row is None else row[self._row]) for row in found]

    def _opened(self, row: Row, whose: object) -> Row:
        opened = list(row)
        for index, table, column in self._places:
            stored = row[index]
            if isinstance(stored, str):
                if column in _IN_PARTS or is_sealed(stored):
                    opened[index] = self._text(table, column, whose, stored)
            elif stored is not None:
                named = whose if self._name is None else f"{whose} {row[self._name]}"
                place = place_of(table, column, named)
                opened[index] = self._keys.open_bytes(place, bytes(stored))
        return tuple(opened)

    def _text(self, table: str, column: str, whose: object, stored: str) -> str | None:
        try:
            return open_value(self._keys, table, column, whose, stored)
        except EncryptionError as error:
            if not (self._shows and error.missing and (table, column) in _SHOWN):
                raise
            if column in _FIELDS:
                return _changed(column, stored, lambda _: "(encrypted)")
            return _SHOWN[table, column](f"(encrypted: {error})")


def _as_text(text: str) -> str:
    return _to_json(text).decode()


def _as_failure(text: str) -> str:
    return _to_json({"type": "Encrypted", "message": text}).decode()


def _as_object(text: str) -> str:
    return _to_json({"encrypted": text}).decode()


# What people see in the place of a payload for which there is no key. Documents are not among
# them: an approval or a notice that is not known as a whole is not shown at all.
_SHOWN: Final[Mapping[tuple[str, str], Callable[[str], str | None]]] = {
    **dict.fromkeys([("job", "input"), ("job", "result")], _as_text),
    **dict.fromkeys([("journal", each) for each in ("input", "output", "checkpoint")], _as_text),
    **dict.fromkeys([("effect", each) for each in ("details", "result")], _as_text),
    **dict.fromkeys([(each, "error") for each in ("job", "journal", "effect")], _as_failure),
    **dict.fromkeys([("effect", each) for each in ("target", "problem")], lambda text: text),
    **dict.fromkeys([("effect", "undo"), ("job", "plan")], lambda _: None),
    **dict.fromkeys([("job", "wait"), ("lease", "progress")], lambda _: None),
    ("message", "payload"): _as_text,
    ("event", "data"): _as_object,
    ("output", "data"): lambda text: _to_json([text]).decode(),
}


class Sealing:
    """A session that seals what it writes and opens what it reads; mixed into another."""

    def seal_with(self, keys: Keys, *, shows_locked: bool) -> None:
        """Use these keys from the beginning."""
        self._keys, self._shows_locked = keys, shows_locked
        self._openers: dict[tuple[str, tuple[str, ...]], Opener] = {}

    def cursor(self, text: str, values: Mapping[str, Any]) -> Any:
        """Run a statement, and return its cursor."""
        raise NotImplementedError

    def text(self, name: str, present: set[str] | None = None) -> str:
        """Return the text of a statement."""
        raise NotImplementedError

    def many_sealed(self, name: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """Run a statement for each row of values, which are sealed."""
        raise NotImplementedError

    @property
    def keys(self) -> Keys:
        return self._keys

    @property
    def readable(self) -> str:
        return _to_json(self._keys.ids).decode()

    def one(self, name: str, /, **values: Any) -> Row | None:
        found = self._run(name, self.text(name), values)
        row = found.fetchone()
        return None if row is None else self.opened(name, found, [row], values)[0]

    def all(self, name: str, /, **values: Any) -> Sequence[Row]:
        found = self._run(name, self.text(name), values)
        return self.opened(name, found, found.fetchall(), values)

    def find(self, name: str, present: set[str], /, **values: Any) -> Sequence[Row]:
        found = self._run(name, self.text(name, present), values)
        return self.opened(name, found, found.fetchall(), values)

    def together(self, *asked: tuple[str, Mapping[str, Any]]) -> list[Sequence[Row]]:
        return [self.all(name, **values) for name, values in asked]

    def run(self, name: str, /, **values: Any) -> int:
        return self._run(name, self.text(name), values).rowcount

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        if len(rows) == 1:
            return self.run(name, **rows[0])
        text = self.text(name)
        sealed = [seal_parameters(self._keys, name, text, each) for each in rows]
        return self.many_sealed(name, sealed)

    def change(self, *asked: tuple[str, Sequence[Mapping[str, Any]]]) -> None:
        for name, rows in asked:
            self.many(name, rows)

    def _run(self, name: str, text: str, values: Mapping[str, Any]) -> Any:
        return self.cursor(text, seal_parameters(self._keys, name, text, values))

    def opened(
        self, name: str, cursor: Any, found: Sequence[Row], values: Mapping[str, Any]
    ) -> Sequence[Row]:
        """Return the rows of a result with their payloads opened."""
        table = table_of(name, self.text(name))
        if not table or not found:
            return found
        columns = tuple(each[0] for each in cursor.description)
        opener = self._openers.get((table, columns))
        if opener is None:
            opener = Opener(self._keys, table, columns, shows=self._shows_locked)
            self._openers[table, columns] = opener
        return opener.rows(found, values)
