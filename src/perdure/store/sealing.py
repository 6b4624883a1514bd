"""Which columns are encrypted, and the sessions that encrypt what they write and read it again.

Verbs and everything above them see plain payloads only. A program without keys, on a store without
any, has ordinary sessions: nothing of this runs. Otherwise its sessions are `Sealing`:

* A parameter of a statement is sealed if it is named like an encrypted column of the table that the
  statement writes; a column of a result is opened if it is one of the table that is read.
* The rows of a fenced write are sealed when it is requested (`seal_rows`).
* A value is bound to its place: table, column and all that identifies its row. Moved elsewhere, it
  cannot be opened. Whoever copies rows seals the copies: see `verbs/reseal.py`.

**Who may read.** The store knows which keys were used for it: each is a row of `fact`. A program
that lacks one of them writes no payload (`Locked`), and its workers claim no job: see the part
`readable` of the claims. What it cannot read raises `EncryptionError`; only programs that show jobs
to people (`shows_locked`) get a text that says so in its place.

**Plain text** in an encrypted column is refused: anybody who can write to the database could have
put it there. It is legal while encryption is turned on or off. Then the store has a mark, which is
sealed, so that only a program with a key can set it: one that is told to write plain text (`plain`
before its keys), and the first one with a key on a store that has plain payloads. A rotation that
leaves nothing plain removes the mark.

**What stays plain** is what SQL must find, order and compare: ids, keys, names, labels, states,
times, amounts, hashes of actions, and the audit log, which holds no payloads.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from perdure.base.encryption import (
    TRIVIAL,
    Encryption,
    Keys,
    Locked,
    is_sealed,
    key_of,
    locked_text,
)
from perdure.base.errors import EncryptionError
from perdure.store.statements import Dialect, Row, Session, load

KEY_FACT: Final = "encryption key "
PLAIN_FACT: Final = "plain text is legal"


class SealedTable(NamedTuple):
    """A table with encrypted columns."""

    key: tuple[str, ...]  # the primary key, by which rows are walked through
    columns: tuple[str, ...]
    # What a value is bound to, where that is not the primary key alone.
    row: tuple[str, ...] = ()

    @property
    def bound(self) -> tuple[str, ...]:
        """The columns that a value is bound to."""
        return self.row or self.key


TABLES: Final[Mapping[str, SealedTable]] = {
    "job": SealedTable(("id",), ("input", "plan", "result", "error", "wait", "fingerprint")),
    "lease": SealedTable(("job_id",), ("progress",)),
    "journal": SealedTable(("job_id", "seq"), ("input", "output", "error", "checkpoint")),
    "payload": SealedTable(("job_id", "digest"), ("data",)),
    "event": SealedTable(("no",), ("data",), ("job_id", "no")),
    "message": SealedTable(("no",), ("payload",), ("job_id", "no")),
    "output": SealedTable(("job_id", "topic", "no"), ("data",)),
    "schedule": SealedTable(("tenant", "name"), ("job",)),
    # The number of an effect is given by its insert; its key is unique in the tenant.
    "effect": SealedTable(
        ("job_id", "no"),
        ("target", "details", "result", "problem", "error", "undo"),
        ("job_id", "tenant", "key"),
    ),
    "approval": SealedTable(("id",), ("data",)),
    "notice": SealedTable(("id",), ("data",)),
    "worker_command": SealedTable(("id",), ("data", "answer")),
    "answer": SealedTable(("tenant", "principal", "key"), ("digest", "done", "body")),
    "langgraph_checkpoint": SealedTable(("tenant", "thread", "ns", "id"), ("metadata", "data")),
    "langgraph_value": SealedTable(
        ("tenant", "thread", "ns", "channel", "version"), ("data", "pieces")
    ),
    "langgraph_piece": SealedTable(("tenant", "thread", "digest"), ("data",)),
    "langgraph_write": SealedTable(
        ("tenant", "thread", "ns", "checkpoint", "task", "idx"), ("data",)
    ),
    "langgraph_item": SealedTable(("tenant", "namespace", "key"), ("data", "vectors")),
    "workflow_checkpoint": SealedTable(("tenant", "id"), ("data",)),
}
# Tables whose rows are named by a digest of their data, which a key hides.
_NAMED_BY_DATA: Final = {"insert_payload": "id", "insert_graph_piece": "tenant"}
# Inserts of rows that the database numbers: what is sealed needs its number before.
_NUMBERED: Final = {"insert_event": "event", "insert_message": "message"}
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


_PLAIN_PLACE: Final = f"fact.value of {PLAIN_FACT}"


def place_of(table: str, column: str, row: str) -> str:
    """Return what a value is bound to; `row` is what `spell` returns."""
    return f"{table}.{column} of {row}"


def spell(row: Sequence[Any]) -> str:
    """Return what identifies a row as one text, which is that of no other row of its table."""
    return row[0] if len(row) == 1 else _to_json(row).decode()


def row_of(table: str, values: Mapping[str, Any]) -> str:
    """Return what identifies a row, from its columns or the parameters of a statement."""
    return spell([_given(values, each) for each in TABLES[table].bound])


def _given(values: Mapping[str, Any], column: str) -> Any:
    # Most statements call the job of a row `id`.
    return values["id"] if column == "job_id" and column not in values else values[column]


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

CheckPlain: TypeAlias = Callable[[str], None]


def seal_value(keys: Keys, place: str, column: str, value: Any) -> Any:
    """Return a text, or bytes, as they are stored."""
    if not isinstance(value, str):
        return keys.seal_bytes(place, bytes(value))
    return _changed(column, value, lambda part: keys.seal(place, part))


def open_value(keys: Keys, place: str, column: str, stored: Any, check: CheckPlain) -> Any:
    """Return a text, or bytes, from what is stored; `check` refuses plain text, or lets it pass."""
    if not isinstance(stored, str):
        data = bytes(stored)
        if not key_of(data):
            check(place)
        return keys.open_bytes(place, data)

    def opened(part: str) -> str:
        if not is_sealed(part) and part not in TRIVIAL:
            check(place)
        return keys.open(place, part)

    return _changed(column, stored, opened)


def sealed_by(column: str, stored: str | bytes) -> list[str]:
    """Return the ids of the keys of the parts of a stored value; "" for one that is plain."""
    if isinstance(stored, bytes):
        return [key_of(stored)]
    found: list[str] = []
    _changed(column, stored, lambda part: found.append(part) or part)
    return [key_of(part) for part in found if part not in TRIVIAL]


def _changed(column: str, text: str, change: Callable[[str], str]) -> str:
    """Return a text with what is sealed of it changed: all of it, its lines, or a field."""
    if column == _LINES:
        return "".join(f"{change(each)}\n" for each in text.split("\n")[:-1])
    if column not in _FIELDS or text in TRIVIAL:
        return change(text)
    try:
        found = msgspec.json.decode(text, type=list[dict[str, Any]])
    except msgspec.MsgspecError:  # another version of Perdure wrote it, or nobody of us
        return change(text)
    field = _FIELDS[column]
    named = [each for each in found if isinstance(each.get(field), str)]
    for each in named:
        each[field] = change(each[field])
    return _to_json(found).decode() if named else text


# Rows of a fenced write


def seal_entry(keys: Keys, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the row of a journal entry with its payloads sealed."""
    sealed, place = list(row), spell(row[:2])
    for index, column in _ENTRY:
        if row[index] is not None:
            sealed[index] = keys.seal(place_of("journal", column, place), row[index])
    return tuple(sealed)


def seal_effect(keys: Keys, line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the ledger with its payloads sealed."""
    row = row_of("effect", line)
    return line | {
        column: keys.seal(place_of("effect", column, row), line[column])
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
UPDATE {table} SET {changes} WHERE {same}
"""
# A row that is named by its data was inserted again under its other name.
_DELETE: Final = """
-- name: reseal_old_{table}
DELETE FROM {table} WHERE {same}
"""


def all_statements(dialect: Dialect) -> dict[str, str]:
    """Return all statements of one database, with those that walk through encrypted tables."""
    made = "".join(_walk(*each) for each in TABLES.items())
    some = " OR ".join(map("EXISTS (SELECT 1 FROM {})".format, TABLES))
    return load(dialect, f"{made}\n-- name: sealed_any\nSELECT 1 WHERE {some}\n")


def _walk(table: str, declared: SealedTable) -> str:
    return (_WALK + (_DELETE if "digest" in declared.key else "")).format(
        table=table,
        columns=", ".join(walked_columns(declared)),
        key=", ".join(declared.key),
        after=", ".join(f":after_{each}" for each in declared.key),
        changes=", ".join(f"{each} = :{each}" for each in declared.columns),
        same=" AND ".join(f"{each} = :{each}" for each in declared.key),
    )


def walked_columns(declared: SealedTable) -> list[str]:
    """Return which columns of a table are read by a walk."""
    return list(dict.fromkeys((*declared.key, *declared.bound, *declared.columns)))


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
    if name in _NAMED_BY_DATA:
        sealed["digest"] = keys.name(values[_NAMED_BY_DATA[name]], values["digest"])
    given = {each: each for each in TABLES[table].columns if values.get(each) is not None}
    if name == "note_done":
        given["line"] = _LINES
    for name_given, column in given.items():
        value = values[name_given]
        if isinstance(value, str) and value in TRIVIAL:
            continue  # its row may have no number yet
        # A program that lacks a key seals nothing, wherever that would be.
        row = row_of(table, sealed) if keys.writes else ""
        sealed[name_given] = seal_value(keys, place_of(table, column, row), column, value)
    return sealed


class Opener:
    """Opens the rows of a result."""

    def __init__(self, keys: Keys, table: str, columns: Sequence[str], *, shows: bool) -> None:
        declared = TABLES[table]
        along = {name: tuple(place.split(".")) for name, place in _ALONG.get(table, {}).items()}
        self._keys = keys
        self._shows = shows
        # What identifies a row: columns of the result, or parameters of the statement.
        self._row = [(each, _index(columns, each)) for each in declared.bound]
        self._places = [
            (index, *(along.get(column) or (table, column)))
            for index, column in enumerate(columns)
            if column in declared.columns or column in along
        ]

    def rows(
        self, found: Sequence[Row], values: Mapping[str, Any], check: CheckPlain
    ) -> Sequence[Row]:
        """Return rows with their payloads opened."""
        if not self._places:
            return found
        return [self._opened(row, values, check) for row in found]

    def _opened(self, row: Row, values: Mapping[str, Any], check: CheckPlain) -> Row:
        opened, whose = list(row), None
        for index, table, column in self._places:
            stored = row[index]
            if stored is None or (isinstance(stored, str) and stored in TRIVIAL):
                continue
            if whose is None:
                whose = spell(
                    [_given(values, name) if at is None else row[at] for name, at in self._row]
                )
            opened[index] = self._value(table, column, whose, stored, check)
        return tuple(opened)

    def _value(self, table: str, column: str, whose: str, stored: Any, check: CheckPlain) -> Any:
        try:
            return open_value(self._keys, place_of(table, column, whose), column, stored, check)
        except EncryptionError as error:
            if not (self._shows and error.missing and (table, column) in _SHOWN):
                raise
            if column in _FIELDS:
                return _changed(column, stored, lambda _: locked_text())
            return _SHOWN[table, column](locked_text(error))


def _index(columns: Sequence[str], name: str) -> int | None:
    return columns.index(name) if name in columns else None


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


# Whether plain text is legal


def register(session: Session) -> None:
    """Record what a program that begins to write does: with which key, and whether it is plain."""
    for name, value in unregistered(session).items():
        session.run("put_fact", name=name, value=value)


def unregistered(session: Session) -> dict[str, str]:
    """Return what is to be recorded before a program writes, and is not yet; mostly nothing."""
    keys = session.keys
    if not isinstance(keys, Encryption):
        return {}
    wanted, used = dict[str, str](), used_keys(session.all("key_facts"))
    if not keys.writes or (not used and _is_plain(session)):
        mark = keys.sign(_PLAIN_PLACE, PLAIN_FACT)
        found = session.one("fact", name=PLAIN_FACT)
        if found is None or found[0] != mark:
            wanted[PLAIN_FACT] = mark
    if keys.writes and keys.writes not in used:
        wanted[KEY_FACT + keys.writes] = ""
    return wanted


def _is_plain(session: Session) -> bool:
    """Whether a store that has no keys has payloads, and none of its jobs is encrypted.

    If one is, somebody has deleted the record of the keys: that must not make plain text legal.
    """
    return session.one("sealed_any") is not None and session.one("sealed_jobs") is None


def plain_check(session: Session) -> CheckPlain:
    """Return what refuses plain text, or lets it pass; the store is asked once, when it is met."""
    asked: list[bool] = []

    def check(place: str) -> None:
        if not asked:
            asked.append(_accepts_plain(session))
        if not asked[0]:
            raise EncryptionError(
                f"{place} is not encrypted, but this store is: somebody without the key has "
                "written it. Restore it from a backup; if it comes from a program of yours that "
                "had no key, put `plain` before the keys once more, and turn on encryption again"
            )

    return check


def _accepts_plain(session: Session) -> bool:
    keys = session.keys
    # Told so by its settings; or it has no key, and can verify nothing.
    if keys is None or not keys.ids or (isinstance(keys, Encryption) and not keys.writes):
        return True
    found = session.one("fact", name=PLAIN_FACT)
    return (
        found is not None
        and is_sealed(found[0])
        and keys.open(_PLAIN_PLACE, found[0]) == PLAIN_FACT
    )


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

    def numbers(self, table: str, count: int) -> Sequence[int]:
        """Return the numbers of the next rows of a table; nobody else gets them."""
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
        if self.needs_numbers(name, values):
            return ()
        found = self._run(name, self.text(name), values)
        return self.opened(name, found, found.fetchall(), values)

    def find(self, name: str, present: set[str], /, **values: Any) -> Sequence[Row]:
        found = self._run(name, self.text(name, present), values)
        return self.opened(name, found, found.fetchall(), values)

    def together(self, *asked: tuple[str, Mapping[str, Any]]) -> list[Sequence[Row]]:
        return [self.all(name, **values) for name, values in asked]

    def run(self, name: str, /, **values: Any) -> int:
        name, (given,) = self._numbered(name, [values])
        return self._run(name, self.text(name), given).rowcount

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        name, rows = self._numbered(name, rows)
        text = self.text(name)
        if len(rows) == 1:
            return self._run(name, text, rows[0]).rowcount
        sealed = [seal_parameters(self._keys, name, text, each) for each in rows]
        return self.many_sealed(name, sealed)

    def _numbered(
        self, name: str, rows: Sequence[Mapping[str, Any]]
    ) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """Return an insert whose rows have their numbers, if something in them is to be sealed."""
        table = _NUMBERED.get(name)
        if table is None or not self._keys.writes:
            return name, rows
        (column,) = TABLES[table].columns
        if all(each[column] in TRIVIAL for each in rows):
            return name, rows
        numbers = self.numbers(table, len(rows))
        given = [{**row, "no": no} for row, no in zip(rows, numbers, strict=True)]
        return f"insert_numbered_{table}", given

    def needs_numbers(self, name: str, values: Mapping[str, Any]) -> bool:
        """Whether a statement cannot do it: it would number events that are to be sealed."""
        if name != "submit_new" or not self._keys.writes:
            return False
        return any(each["data"] not in TRIVIAL for each in _from_json(values["jobs"]))

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
        try:
            return opener.rows(found, values, plain_check(cast("Session", self)))
        except EncryptionError:
            if name != "claim_unlimited":
                raise
            # They are claimed all the same. Its last column says whether a job need not be loaded:
            # each is, and the one that cannot be read is parked.
            return [(*row[:-1], False) for row in found]
