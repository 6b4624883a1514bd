"""Encrypt again what is stored: after a change of keys, in bounded batches, while workers run.

A walk through a table reads some rows at a time, locks them, and writes those that are not under
the first key of this program: plain ones, and those under an older key. It may be stopped, killed
and repeated at any time: what is done is recognised by its key.
"""

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from perdure.base.encryption import Keys, missing_text
from perdure.base.errors import EncryptionError
from perdure.jobs.graph_thread import piece_name
from perdure.jobs.payload import chunk_name, stand_in_of
from perdure.store import rows
from perdure.store.sealing import (
    KEY_FACT,
    PLAIN_FACT,
    TABLES,
    CheckPlain,
    chunk_names,
    open_value,
    place_of,
    plain_check,
    row_of,
    seal_value,
    sealed_by,
    used_keys,
    walked_columns,
)
from perdure.store.statements import Row, Session

_PAGE: Final = 200
_NUMBERS: Final = frozenset({"seq", "no", "idx"})
_BEFORE_ALL: Final = -(2**62)

Position = tuple[Any, ...]  # a primary key


class SealedPage(NamedTuple):
    """What a walk found in some rows of a table."""

    position: Position | None  # where to go on; None: that was the end
    changed: int  # rows that were written again
    found: Mapping[str, int]  # values by the id of their key, as they are now; "": plain


def first_position(table: str) -> Position:
    """Return the position before all rows of a table."""
    return tuple(_BEFORE_ALL if each in _NUMBERS else "" for each in TABLES[table].key)


def reseal(
    session: Session, table: str, after: Position | None = None, limit: int = _PAGE
) -> SealedPage:
    """Encrypt rows of a table behind a position with the first key of this program.

    Raises:
        EncryptionError: This program lacks the key of one of them, or one was changed.
    """
    keys = check_keys(session)
    if keys is None:
        raise EncryptionError(missing_text(["(none)"], ()))
    found = _page(session, table, after, limit, locked=True)
    counted, changed = Counter[str](), 0
    session.run("begin_reseal")
    for values in found:
        under = list(_keys_of(table, values))
        if any(each != keys.writes for each in under):
            _reseal_row(session, keys, table, values)
            changed += 1
        counted[keys.writes] += len(under)
    session.run("end_reseal")
    return SealedPage(_last(table, found), changed, counted)


def sealed_page(
    session: Session, table: str, after: Position | None = None, limit: int = 1000
) -> SealedPage:
    """Count by which keys the values of some rows of a table are encrypted."""
    found = _page(session, table, after, limit, locked=False)
    counted = Counter[str]()
    for values in found:
        counted.update(_keys_of(table, values))
    return SealedPage(_last(table, found), 0, counted)


def _page(
    session: Session, table: str, after: Position | None, limit: int, *, locked: bool
) -> list[dict[str, Any]]:
    declared = TABLES[table]
    at = first_position(table) if after is None else after
    given = {f"after_{name}": each for name, each in zip(declared.key, at, strict=True)}
    names = walked_columns(declared)
    found = session.find(f"sealed_{table}", {"locked"} if locked else set(), limit=limit, **given)
    return [dict(zip(names, row, strict=True)) for row in found]


def _last(table: str, found: Sequence[Mapping[str, Any]]) -> Position | None:
    # Fewer rows than asked for are not the end: others may have locked some.
    return tuple(found[-1][name] for name in TABLES[table].key) if found else None


def _keys_of(table: str, values: Mapping[str, Any]) -> Iterator[str]:
    for column in TABLES[table].columns:
        stored = values[column]
        if stored is not None:
            yield from sealed_by(column, stored if isinstance(stored, str) else bytes(stored))


def _reseal_row(session: Session, keys: Keys, table: str, values: Mapping[str, Any]) -> None:
    check = plain_check(session)
    if "digest" not in TABLES[table].key:
        session.run(f"reseal_{table}", **_sealed_again(keys, table, values, values, check))
        return
    # Under its other name; the session seals it.
    where = {name: values[name] for name in TABLES[table].key}
    place = place_of(table, "data", row_of(table, values))
    data = open_value(keys, place, "data", values["data"], check)
    if table == "payload":
        digest = chunk_name(zlib.decompress(data))
        session.run("insert_payload", id=values["job_id"], digest=digest, data=data)
    else:
        given = {**where, "digest": piece_name(data), "data": data}
        session.run("insert_graph_piece", **given)
    session.run(f"reseal_old_{table}", **where)


def _sealed_again(
    keys: Keys,
    table: str,
    values: Mapping[str, Any],
    source: Mapping[str, Any],
    check: CheckPlain,
) -> dict[str, Any]:
    """Return a row whose values were sealed for the row `source`, sealed for itself."""
    again, old, own = dict(values), row_of(table, source), row_of(table, values)
    for column in TABLES[table].columns:
        if values[column] is not None:
            place = place_of(table, column, old)
            plain = open_value(keys, place, column, values[column], check)
            again[column] = seal_value(keys, place_of(table, column, own), column, plain)
    return again


# Copies of rows


def copy_sealed(
    session: Session, table: str, source: Mapping[str, str], copy: Mapping[str, str]
) -> None:
    """Seal rows for themselves that were copied as they are, from others of the same table.

    Args:
        session: The transaction of the copy.
        table: Which one.
        source: The first columns of the primary key, of the rows that were copied.
        copy: The same columns of the copies. A row that was there before is left alone.
    """
    keys = session.keys
    if keys is None:
        return
    check = plain_check(session)
    session.run("begin_reseal")
    after: Position | None = (*copy.values(), *first_position(table)[len(copy) :])
    while after is not None:
        page = _page(session, table, after, _PAGE, locked=False)
        mine = [row for row in page if all(row[name] == each for name, each in copy.items())]
        for values in mine:
            again = _rebound(keys, table, values, {**values, **source}, check)
            session.run(f"reseal_{table}", **again)
        after = _last(table, mine)
    session.run("end_reseal")


def _rebound(
    keys: Keys,
    table: str,
    values: Mapping[str, Any],
    source: Mapping[str, Any],
    check: CheckPlain,
) -> dict[str, Any]:
    try:
        return _sealed_again(keys, table, values, source, check)
    except EncryptionError as error:
        if error.missing:
            raise
        # It was there before the copy, and is sealed for itself; or it was moved.
        return _sealed_again(keys, table, values, values, check)


# Which keys a store needs


def check_keys(session: Session) -> Keys | None:
    """Return the keys of this program.

    Raises:
        EncryptionError: It lacks a key that was used for this store.
    """
    keys, used = session.keys, used_keys(session.all("key_facts"))
    missing = [each for each in used if keys is None or each not in keys.ids]
    if missing:
        raise EncryptionError(missing_text(missing, keys.ids if keys else ()), missing=missing)
    return keys


def own_keys(session: Session) -> dict[str, bool]:
    """Return the ids of the keys of this program, each with whether it is the one that writes."""
    keys = session.keys
    return {} if keys is None else {each: each == keys.writes for each in keys.ids}


def store_keys(session: Session) -> list[str]:
    """Return the ids of the keys that were used for this store and are not taken back."""
    return used_keys(session.all("key_facts"))


def forget_keys(session: Session, ids: Sequence[str]) -> None:
    """Record that nothing is encrypted with these keys any more.

    If this program encrypts, nothing is plain either: plain text is refused from now on.
    """
    for each in ids:
        session.run("forget_fact", name=KEY_FACT + each)
    if session.keys is not None and session.keys.writes:
        session.run("forget_fact", name=PLAIN_FACT)


# Rules that look into payloads


class SealedRule(NamedTuple):
    """What is wrong with an encrypted entry of a journal."""

    rule: str
    job_id: str
    what: str


def sealed_violations(session: Session, limit: int) -> list[SealedRule]:
    """Return violations of the rules whose SQL cannot see encrypted payloads."""
    found: list[SealedRule] = []
    after: Position | None = None
    while session.keys is not None and len(found) < limit:
        at = ("", -1) if after is None else after
        page = session.all("sealed_entries", job=at[0], seq=at[1], limit=1000)
        if not page:
            break
        for row in page:
            broken = list(_checked(session, session.keys, row))
            # What belongs to an entry is read after it, and both may be deleted in between.
            if broken and session.one("entry_id", id=row[0], seq=row[1]) is not None:
                found += broken
        after = page[-1][0], page[-1][1]
    return found[:limit]


def _checked(session: Session, keys: Keys, row: Row) -> Iterator[SealedRule]:
    job_id, seq, id, *rest, given, output, job_state = row
    whose, check = row_of("journal", {"job_id": job_id, "seq": seq}), plain_check(session)
    try:
        opened = [
            None
            if each is None
            else open_value(keys, place_of("journal", column, whose), column, each, check)
            for column, each in (("input", given), ("output", output))
        ]
    except EncryptionError as error:
        if error.missing:
            raise
        yield SealedRule("payloads", job_id, f"{id}: {error}")
    else:
        yield from _broken(session, (job_id, id, *rest, *opened, job_state))


def _broken(session: Session, row: Row) -> Iterator[SealedRule]:
    job_id, id, kind, state, given, output, job_state = row
    for what, text in (("arguments", given), ("result", output)):
        stand_in = stand_in_of(rows.payload(text))
        if stand_in is not None and not _has_chunks(session, job_id, stand_in.chunks):
            yield SealedRule("payloads", job_id, f"{id} lacks a part of its {what}")
    if kind != "undo":
        return
    if job_state == "COMPENSATED" and output is not None and output.startswith('{"left_undone"'):
        yield SealedRule("unfinished_undo", job_id, f"{id} is {state} and the job is COMPENSATED")
    child = rows.child_of(given) if state == "SUCCEEDED" else None
    ended = None if child is None else session.one("has_ended", id=child)
    if ended is not None and ended[0] not in ("COMPENSATED", "FAILED"):
        yield SealedRule(
            "standing_work", job_id, f"{id} is {state} and child {child} is {ended[0]}"
        )


def _has_chunks(session: Session, job_id: str, digests: Sequence[str]) -> bool:
    names = chunk_names(session.keys, job_id, digests)
    stored = session.all("payload_names", id=job_id, digests=session.array(list(names)))
    return {names[each[0]] for each in stored} == set(digests)
