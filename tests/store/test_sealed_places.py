"""A sealed value opens in its own place alone, and nothing plain is taken for one.

The first test is made from the declarations: for each encrypted column of each table it puts a
value there that belongs elsewhere, and runs every statement that reads the column.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from perdure import Encryption
from perdure.base.encryption import PLAIN as PLAIN_WORD
from perdure.base.encryption import generate_key
from perdure.base.errors import EncryptionError, IllegalTransition
from perdure.jobs.effect import EffectState
from perdure.jobs.state import StepState
from perdure.store.db_thread import VerbCall
from perdure.store.open import open_store
from perdure.store.postgres.connection import PgSession
from perdure.store.sealing import (
    TABLES,
    all_statements,
    place_of,
    row_of,
    seal_value,
    table_of,
)
from tests.store.test_effects_and_approvals import effect
from tests.support.store import entry, started, write_of

KEYS = Encryption([generate_key()])
BYTES = {
    *(("langgraph_" + each, "data") for each in ("checkpoint", "value", "piece", "write", "item")),
    *(("payload", "data"), ("langgraph_checkpoint", "metadata"), ("langgraph_value", "pieces")),
    *(("langgraph_item", "vectors"), ("workflow_checkpoint", "data")),
}
IN_PARTS = {
    "wait": '[{"kind":"approval","title":"secret"}]',
    "progress": '[{"step":"a#1","note":"secret"}]',
    "done": "secret\n",
}

# A row of each table, without what is encrypted.
PLAIN: Mapping[str, dict[str, Any]] = {
    "job": {"id": "j", "tenant": "t", "user": "u", "name": "n", "version": "1", "state": "FAILED",
            "queue": "q", "priority": 0, "key": "k", "created_at": 1.0, "ended_at": 2.0},
    "lease": {"job_id": "j", "tenant": "t", "queue": "q", "kind": "k", "priority": 0, "tag": 1,
              "ready": 0, "wakes": 0, "epoch": 1, "until": 0.0, "claims": 0, "worked": 0.0,
              "since": 0.0, "news": 0},
    "journal": {"job_id": "j", "seq": 1, "id": "s#1", "kind": "step", "name": "s",
                "state": "SUCCEEDED", "attempt": 1, "checkpoint_no": 0, "key": "k"},
    "payload": {"job_id": "j", "digest": "d"},
    "event": {"no": 1, "job_id": "j", "type": "y", "actor": "a", "at": 1.0},
    "message": {"no": 1, "job_id": "j", "topic": "t", "sent_at": 1.0},
    "output": {"job_id": "j", "topic": "t", "no": 1, "pieces": 1, "step": "", "attempt": 1,
               "part": 0, "size": 1, "at": 1.0},
    "schedule": {"tenant": "t", "name": "n", "cron": "* * * * *", "timezone": "UTC",
                 "catch_up": "one", "paused": 0},
    "effect": {"job_id": "j", "no": 1, "tenant": "t", "key": "k", "step": "s#1", "part": "",
               "ordinal": 1, "generation": 1, "kind": "mail", "state": "DONE", "in_doubt": "ask",
               "key_ttl": 1.0, "proof": "", "called_at": 1.0, "business": "b"},
    "approval": {"id": "a", "tenant": "t", "job_id": "j", "step": "s#1", "state": "PENDING",
                 "action_hash": "h", "no": 1, "created_at": 1.0},
    "notice": {"id": "n", "job_id": "j", "channel": "c", "recipient": "", "kind": "alert.x",
               "state": "WAITING", "due_at": 1.0},
    "worker_command": {"id": "c", "owner": "w", "action": "tree", "asked_by": "a", "asked_at": 1.0,
                       "expires_at": 9e9},
    "answer": {"tenant": "t", "principal": "p", "key": "k", "taker": "x", "at": 1.0},
    "langgraph_checkpoint": {"tenant": "t", "thread": "h", "ns": "", "id": "1", "versions": "{}",
                             "deltas": "[]"},
    "langgraph_value": {"tenant": "t", "thread": "h", "ns": "", "channel": "c", "version": "1"},
    "langgraph_piece": {"tenant": "t", "thread": "h", "digest": "d"},
    "langgraph_write": {"tenant": "t", "thread": "h", "ns": "", "checkpoint": "1", "task": "k",
                        "idx": 1, "path": "", "channel": "c"},
    "langgraph_item": {"tenant": "t", "namespace": "n", "key": "k", "created_at": 1.0,
                       "updated_at": 1.0},
    "workflow_checkpoint": {"tenant": "t", "id": "i", "workflow": "w", "at": 1.0},
}  # fmt: skip

_BY_OWN_ID = {"approval", "lock_approval", "notice_that_asked"}  # not by that of their job
ANY = {
    "limit": 100,
    "until": 9e9,
    "now": 2.0,
    "clock": 0.0,
    "since": 0.0,
    "offset": 0,
    "first": "",
    "behind": "zzz",
    "silence": 0.0,
    "crashes": 0,
}


def plain_of(table: str, column: str) -> str | bytes:
    """Return a payload of a column."""
    if (table, column) in BYTES:
        return b"secret"
    return IN_PARTS.get(column, '{"a":"secret"}')


def row_with(table: str, **changes: Any) -> dict[str, Any]:
    """Return a row whose payloads are sealed for it."""
    row = {**PLAIN[table], **changes}
    sealed = {column: sealed_in(table, column, row) for column in TABLES[table].columns}
    if table == "langgraph_value":  # one of the two
        sealed["pieces"] = None
    if table == "worker_command":
        sealed["answer"] = None
    return {**row, **sealed}


def sealed_in(
    table: str, column: str, row: Mapping[str, Any], into: tuple[str, str] | None = None
) -> Any:
    """Return a payload sealed for a place, in the form of the column that it is put `into`."""
    into = into or (table, column)
    place = place_of(table, column, row_of(table, row))
    return seal_value(KEYS, place, into[1], plain_of(*into))


def alone(table: str, column: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that may have this column."""
    other = {"data": "pieces", "pieces": "data"}.get(column)
    if table == "langgraph_value" and other:
        return {**row, other: None}
    return row


def foreign(table: str, column: str, row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return values that do not belong into a row, each with where it comes from."""
    into, columns = (table, column), TABLES[table].columns
    # Two effects never differ in their numbers alone: their keys are unique.
    for name in TABLES[table].bound:
        value = row[name]
        other = {**row, name: value + 1 if isinstance(value, int) else f"{value}x"}
        yield f"another {name}", sealed_in(table, column, other)
    for each in columns:
        if each != column:
            yield f"the column {each}", sealed_in(table, each, row, into)
    for each, declared in TABLES.items():
        if each != table:
            first = declared.columns[0]
            yield f"the table {each}", sealed_in(each, first, PLAIN[each], into)
    yield "plain text", plain_of(table, column)


# Statements


class Reading:
    """Runs statements on rows that were put into the tables past them."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._pg = isinstance(session, PgSession)
        self._texts = all_statements("postgres" if self._pg else "sqlite")

    @contextmanager
    def only(self, table: str, row: Mapping[str, Any]) -> Generator[None, None, None]:
        """Put a row into a table for the block."""
        names = ", ".join(f'"{name}"' for name in row)
        marks = ", ".join(["%s" if self._pg else "?"] * len(row))
        override = "OVERRIDING SYSTEM VALUE " if self._pg else ""
        insert = f"INSERT INTO {table} ({names}) {override}VALUES ({marks})"
        self._execute("SAVEPOINT here")
        try:
            self._execute(insert, tuple(row.values()))
            yield
        finally:
            self._execute("ROLLBACK TO here")

    def _execute(self, text: str, values: Any = ()) -> Any:
        if self._pg:
            return self._session.pg.execute(text.encode(), values)
        return self._session.database.execute(text, values)

    def readers(self, table: str, column: str, row: Mapping[str, Any]) -> list[str]:
        """Return the statements that read this column of this row."""
        with self.only(table, row):
            return [name for name in self._names(table) if self.read(name, table, column, row)]

    def _names(self, table: str) -> list[str]:
        return [
            name
            for name, text in self._texts.items()
            if table_of(name, text) == table and text.startswith("SELECT")
        ]

    def read(self, name: str, table: str, column: str, row: Mapping[str, Any]) -> bool:
        """Run a statement; return whether it has found the column of a row."""
        values = self._values(name, row)
        if values is None:
            return False
        self._execute("SAVEPOINT read")
        try:
            found = self._session.find(name, {"whole"}, **values)
            text = self._session.text(name, {"whole"})
            cursor = self._session.cursor(text, values)
            columns = [each[0] for each in cursor.description]
        finally:
            self._execute("ROLLBACK TO read")
        at = columns.index(column) if column in columns else None
        return at is not None and any(each[at] is not None for each in found)

    def _values(self, name: str, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return parameters by which a statement may find a row; None if there are none."""
        text = self._session.text(name, {"whole"})
        wanted = set(re.findall(r"%\((\w+)\)s" if self._pg else r"(?<![:\w]):([a-z_]+)", text))
        job_id = row.get("job_id", row.get("id"))
        ids = {"ids": self._session.array([job_id]), "id": row.get("id", job_id)}
        if "job_id" in row and name not in _BY_OWN_ID:
            ids["id"] = job_id
        digests = {"digests": self._session.array([row.get("digest", "")])}
        channel = {str(row.get("channel")): row.get("version")}
        versions = {"versions": msgspec.json.encode(channel).decode()}
        after = {"after": "" if "action_hash" in row else -1}
        given = {**ANY, **after, **row, **ids, **digests, **versions}
        return {each: given[each] for each in wanted} if wanted <= set(given) else None


def findings(session: Any, table: str, column: str) -> list[str]:
    """Return what is wrong with how a column is read."""
    reading, row = Reading(session), row_with(table)
    row = alone(table, column, {**row, column: sealed_in(table, column, row)})
    readers = reading.readers(table, column, row)
    found = [] if readers else [f"no statement reads {table}.{column}"]
    for origin, value in foreign(table, column, row):
        with reading.only(table, {**row, column: value}):
            for name in readers:
                try:
                    reading.read(name, table, column, row)
                except EncryptionError as error:
                    place = place_of(table, column, row_of(table, row))
                    if place not in str(error) or "secret" in str(error):
                        found.append(f"{name} says of {table}.{column}: {error}")
                else:
                    found.append(f"{name} takes a value from {origin} for {table}.{column}")
    return found


COLUMNS = [(table, column) for table, each in TABLES.items() for column in each.columns]
# Which nobody reads by a table of its own: it comes along with its job.
ALONG = [("lease", "progress")]


@pytest.mark.parametrize(("table", "column"), [each for each in COLUMNS if each not in ALONG])
async def test_what_belongs_elsewhere_is_refused_and_so_is_plain_text(
    url: str, table: str, column: str
) -> None:
    store = open_store(url, encryption=KEYS)
    await store.open()
    try:
        assert await store.writer.call(VerbCall(findings, (table, column), {})) == []
    finally:
        await store.close()


# What never changes

OLD, NEW = generate_key(), generate_key()
SETTINGS = {
    "no keys": (Encryption(()), Encryption(())),
    "one key": (Encryption([OLD]), Encryption([OLD])),
    "key changed": (Encryption([OLD, NEW]), Encryption([NEW, OLD])),
    "turned on": (Encryption([PLAIN_WORD, OLD]), Encryption([OLD])),
    "turned off": (Encryption([OLD]), Encryption([PLAIN_WORD, OLD])),
}


@pytest.mark.parametrize("setting", SETTINGS)
async def test_a_result_that_is_written_again_stays_as_it_is(url: str, setting: str) -> None:
    """The answer to its first write was lost; meanwhile it may have been encrypted again."""
    first, then = (open_store(url, encryption=each) for each in SETTINGS[setting])
    await first.open()
    await then.open()
    try:
        claim = await started(first)
        done = effect().to(EffectState.DONE, 1.0, result=b'"done"')
        entries = [entry(1, output=b'"kept"'), entry(2, output=b"null")]
        for store in (first, then, first, then):
            for each in entries:
                await store.write(write_of(claim, each))
            await store.write(write_of(claim, effects=(effect(), done)))
        undone = [replace(each, state=StepState.COMPENSATING) for each in entries]
        await then.write(write_of(claim, *undone))
        await first.write(write_of(claim, *undone))
        found = await then.journal("a")
        assert [(each.state, each.output) for each in found] == [
            (StepState.COMPENSATING, b'"kept"'),
            (StepState.COMPENSATING, b"null"),
        ]
        assert [line.result for line in await then.effects("a")] == [b'"done"']
    finally:
        await then.close()
        await first.close()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("trivial", [False, True])
async def test_another_result_is_never_stored(url: str, setting: str, trivial: bool) -> None:
    """It is refused wherever the database can see that it is another one."""
    first, then = (open_store(url, encryption=each) for each in SETTINGS[setting])
    await first.open()
    await then.open()
    other = b"null" if trivial else b'"other"'
    try:
        claim = await started(first)
        done = effect().to(EffectState.DONE, 1.0, result=b'"done"')
        await first.write(write_of(claim, entry(1, output=b'"kept"'), effects=(done,)))
        seen = trivial or setting in ("no keys", "one key")
        for state in (StepState.SUCCEEDED, StepState.COMPENSATING):
            with pytest.raises(IllegalTransition) if seen else nullcontext():
                await then.write(write_of(claim, entry(1, state, output=other)))
        with pytest.raises(IllegalTransition) if seen else nullcontext():
            await then.write(write_of(claim, effects=(replace(done, result=other),)))
        assert [each.output for each in await then.journal("a")] == [b'"kept"']
        assert [line.result for line in await then.effects("a")] == [b'"done"']
    finally:
        await then.close()
        await first.close()
