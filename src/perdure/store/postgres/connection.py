"""A connection to the server: how it is opened, and what its errors mean."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec
import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from perdure.base.errors import (
    IllegalTransition,
    JournalConflict,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
    Unstorable,
)
from perdure.base.secret import REMOVED, without_secrets
from perdure.store.statements import Row, load, only

_UNREADABLE: Final = (
    "the URL of the database cannot be read: write postgresql://user:password@host:5432/name, "
    "with what is special in the password encoded (/ is %2F, @ is %40, # is %23, ? is %3F)"
)
_SHORTEST_SECRET: Final = 4  # characters: a shorter one stands within words
_UNKNOWN_OPTION: Final = re.compile(r'query parameter: "(\w+)"')

Pg = psycopg.Connection[tuple[Any, ...]]

_OLDEST: Final = 140000
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# A connection that hangs must not hold its locks for ever, and nobody may wait for ever.
_SESSION: Final = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",
}
# Every statement of ours finds few rows by their keys. The planner would not know it:
# tables that were empty a moment ago look cheap to scan until they are counted again.
_PLANNER: Final = {
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
    "enable_hashjoin": "off",
    "plan_cache_mode": "force_generic_plan",
}
_NETWORK: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "perdure",
}


class Target:
    """Where to connect, and how: what a URL says.

    Raises:
        StoreError: The URL cannot be used.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            raise StoreError(_UNREADABLE) from None
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.schema = options.pop("schema", "perdure")
        self.pooled = options.pop("pgbouncer", "0") == "1"
        if not _SCHEMA.fullmatch(self.schema):
            raise StoreError(f"{self.schema!r} is no name for a schema: use a-z, 0-9 and _")
        try:
            self._given = conninfo_to_dict(
                urlunsplit(parts._replace(query=urlencode(options, quote_via=quote)))
            )
        except psycopg.Error as error:  # its text may hold a part of the password
            named = _UNKNOWN_OPTION.search(str(error))
            why = f": there is no option {named[1]!r}" if named else ""
            raise StoreError(_UNREADABLE + why) from None
        if not _is_plausible(self._given):
            raise StoreError(_UNREADABLE)

    def hide(self, text: str) -> str:
        """Take our own secrets out of a text of the driver or the server."""
        for name in ("password", "sslpassword"):
            secret = str(self._given.get(name) or "")
            for spelled in (secret, quote(secret, safe="")):
                if len(spelled) >= _SHORTEST_SECRET:
                    text = text.replace(spelled, REMOVED)
        return without_secrets(text)

    def __str__(self) -> str:
        """Name the server without any secret."""
        host = self._given.get("host", "localhost")
        return f"PostgreSQL {self._given.get('dbname', '')!r} at {host}"

    def connect(self) -> Pg:
        """Open a connection, in which every statement is its own transaction unless begun.

        Raises:
            StoreUnreachable: It does not answer, or refuses.
            StoreError: It is too old.
        """
        try:
            connection = psycopg.connect(self._spelled(), autocommit=True)
        except psycopg.Error as error:
            raise StoreUnreachable(
                f"{self} cannot be reached: {self.hide(str(error)).strip()}"
            ) from None
        # A pooler gives each transaction another session: nothing may be left in one.
        connection.prepare_threshold = None if self.pooled else 0
        if connection.info.server_version < _OLDEST:
            connection.close()
            raise StoreError(f"{self} is older than version 14, the oldest that perdure can use")
        return connection

    def _spelled(self) -> str:
        """Spell the whole target for libpq; what the URL says stands over what we would say."""
        spelled: dict[str, Any] = _NETWORK | self._given
        if not self.pooled:  # the URL's own options come last, and stand over ours one by one
            options = (self._session_options(), str(self._given.get("options", "")))
            spelled["options"] = " ".join(options).strip()
        return make_conninfo("", **spelled)

    def _session_options(self) -> str:
        settings = {**_SESSION, **_PLANNER, "search_path": self.schema}
        return " ".join(f"-c {name}={value}" for name, value in settings.items())

    def local_settings(self) -> list[bytes]:
        """Spell the settings for one transaction, where a pooler forbids those of a session."""
        if not self.pooled:
            return []
        settings = {**_SESSION, "search_path": self.schema}
        return [f"SET LOCAL {name} = '{value}'".encode() for name, value in settings.items()]


def _is_plausible(given: Mapping[str, Any]) -> bool:
    """Whether a URL was read as it was meant; if not, its password is in what was read."""
    ports = str(given.get("port", "")).replace(",", "")
    names = f"{given.get('host', '')}{given.get('dbname', '')}"
    return (not ports or ports.isdecimal()) and "@" not in names


def translate(error: psycopg.Error, target: Target) -> Exception:
    """Say what an error of PostgreSQL means, and what to do."""
    text = target.hide(error.diag.message_primary or str(error)).strip()
    match error:
        case errors.DiskFull() | errors.OutOfMemory():
            return StoreFull(f"{target} has no room left: {text}; what was acknowledged is safe")
        case errors.ReadOnlySqlTransaction():
            return StoreReadOnly(f"{target} cannot be written: {text}; is it a standby?")
        case psycopg.IntegrityError():
            is_place = error.diag.constraint_name == "journal_place"
            return JournalConflict(text) if is_place else IllegalTransition(text)
        case psycopg.DataError():
            return Unstorable(f"{target} cannot keep this: {text}")
        case psycopg.OperationalError():
            return StoreUnreachable(f"{target} does not answer: {text}")
        case _:
            return StoreError(f"{target} refuses: {text}")


def is_lost(error: psycopg.Error, connection: Pg) -> bool:
    """Tell whether the connection is gone, so that nobody knows what the server still did."""
    return connection.closed or connection.broken or isinstance(error, errors.AdminShutdown)


def is_passing(error: psycopg.Error) -> bool:
    """Tell whether others were in the way: nothing was done, so try again."""
    passing = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
    return isinstance(error, passing)


# The named statements on a PostgreSQL connection.

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
