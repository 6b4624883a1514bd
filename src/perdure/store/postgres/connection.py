"""A connection to the server: how it is opened, what its errors mean, and its statements.

**How it is opened.** Sessions get timeouts, so that a hanging client holds no locks for ever, and
planner settings, since the statistics of a queue are misleading: it is empty when it is analysed,
and a plan made then would scan a table that is large an hour later. Settings in the URL override
ours. Behind a pooler a session is shared, so settings are made in each transaction, nothing is
prepared, and no statement may run outside of a transaction.

**Secrets.** A URL holds a password, and texts of the driver may quote parts of it: they are shown
only without it, and a URL that cannot be parsed is not shown at all.

**Statements.** Many rows go as one JSON parameter that the server takes apart: a tenth of the work
that arrays for each column would be. Statements that are a whole transaction record the number of
that transaction themselves; see `transaction`.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec
import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PipelineStatus

from perdure.base.clock import SystemClock
from perdure.base.encryption import Encryption, Keys
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
from perdure.jobs.audit import AuditDraft
from perdure.jobs.graph_thread import GraphPut, TaskWrites
from perdure.store.sealing import (
    Sealing,
    all_statements,
    chunk_names,
    keys_for,
    seal_parameters,
    used_keys,
)
from perdure.store.statements import Row, only
from perdure.store.verbs.langgraph import graph_rows, lock_name

_UNREADABLE: Final = (
    "the database URL cannot be parsed: write postgresql://user:password@host:5432/name, "
    "with special characters of the password encoded (/ is %2F, @ is %40, # is %23, ? is %3F)"
)
_SHORTEST_SECRET: Final = 4  # characters: a shorter one occurs within words
_UNKNOWN_OPTION: Final = re.compile(r'query parameter: "(\w+)"')

# What one gets from PgBouncer in transaction mode: it takes no options of a session, forgets what
# was prepared and set, and does not pass notifications on.
_OF_POOLER: Final = re.compile(
    r"unsupported startup parameter|prepared statement .* (does not exist|already exists)"
    r"|(LISTEN|UNLISTEN|NOTIFY).*(transaction|pool|support)|pgbouncer",
    re.IGNORECASE,
)
_USE_PGBOUNCER: Final = (
    ". This looks like PgBouncer in transaction mode: add pgbouncer=1 to the URL, and "
    "listen_url= with the URL of the server itself, so that workers are still notified"
)

Pg = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

_CLOCK: Final = SystemClock()
_OPENINGS: Final = 3  # attempts to open a connection
_SILENCE: Final = 1.0  # seconds

_OLDEST: Final = 140000
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# A connection that hangs must not hold its locks for ever, and nobody may wait for ever.
_SESSION: Final = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",
}
# Every statement of ours finds few rows by their keys. The planner does not know that: tables
# that were empty a moment ago look cheap to scan until they are analysed again.
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
        listen_url = options.pop("listen_url", "")
        if not _SCHEMA.fullmatch(self.schema):
            raise StoreError(f"{self.schema!r} is not a valid schema name: use a-z, 0-9 and _")
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
        # Where LISTEN works: the server itself, if a pooler is in between.
        self.direct = Target(_of_schema(listen_url, self.schema)) if listen_url else self

    @property
    def output_notice(self) -> str:
        """What is notified when jobs have only emitted something: no worker needs to look."""
        return f"{self.schema} output"

    @property
    def can_listen(self) -> bool:
        """Whether the server can notify us: not through a pooler in transaction mode."""
        return not self.direct.pooled

    def hide(self, text: str) -> str:
        """Return a text of the driver or the server without our secrets."""
        if self.direct is not self:
            text = self.direct.hide(text)
        for name in ("password", "sslpassword"):
            secret = str(self._given.get(name) or "")
            for spelled in (secret, quote(secret, safe="")):
                if len(spelled) >= _SHORTEST_SECRET:
                    text = text.replace(spelled, REMOVED)
        return without_secrets(text)

    def __str__(self) -> str:
        """Return the name of the server, without any secret."""
        host = self._given.get("host", "localhost")
        return f"PostgreSQL {self._given.get('dbname', '')!r} at {host}"

    def connect(self) -> Pg:
        """Open a connection, in which every statement is its own transaction unless begun.

        Raises:
            StoreUnreachable: It does not answer, or refuses.
            StoreError: It is too old, or something in between drops our settings.
        """
        try:
            connection = psycopg.connect(self._conninfo(), autocommit=True)
            has_settings = self.pooled or self._has_settings(connection)
        except psycopg.Error as error:
            text = self.hide(str(error)).strip()
            raise StoreUnreachable(f"{self} cannot be reached: {text}{self.advice(text)}") from None
        # A pooler gives each transaction another session, so nothing may be kept in one.
        connection.prepare_threshold = None if self.pooled else 0
        if connection.info.server_version < _OLDEST:
            connection.close()
            raise StoreError(f"{self} is older than version 14, the oldest that perdure can use")
        if not has_settings:
            connection.close()
            raise StoreError(f"{self} does not apply the settings of our sessions{_USE_PGBOUNCER}")
        return connection

    def _has_settings(self, connection: Pg) -> bool:
        """Whether the session has our settings: a pooler may be told to ignore them."""
        try:
            found = connection.execute(b"SHOW search_path", prepare=False).fetchone()
        except BaseException:
            connection.close()
            raise
        return found is not None and self.schema in found[0]

    def advice(self, text: str) -> str:
        """Return what to do if an error looks like that of a pooler; "" for any other."""
        return "" if self.pooled or not _OF_POOLER.search(text) else _USE_PGBOUNCER

    def _conninfo(self) -> str:
        """Return the connection string for libpq; what the URL says overrides our settings."""
        info: dict[str, Any] = _NETWORK | self._given
        if not self.pooled:  # the URL's own options come last, so they override ours one by one
            options = (self._session_options(), str(self._given.get("options", "")))
            info["options"] = " ".join(options).strip()
        return make_conninfo("", **info)

    def _session_options(self) -> str:
        settings = {**_SESSION, **_PLANNER, "search_path": self.schema}
        return " ".join(f"-c {name}={value}" for name, value in settings.items())

    def local_settings(self) -> list[bytes]:
        """Return the settings for one transaction, where a pooler forbids those of a session."""
        if not self.pooled:
            return []
        settings = {**_SESSION, "search_path": self.schema}
        return [f"SET LOCAL {name} = '{value}'".encode() for name, value in settings.items()]


def open_patiently(opening: Callable[[], T], target: Target) -> T:
    """Return what `opening` returns, which is called again if its connection is lost meanwhile.

    A server that is restarting may accept a connection and then drop it; a worker that starts at
    that moment must not fail. After a timeout, it is not tried again: that would only take longer.

    Raises:
        StoreError: It failed again, for a while, or for another reason.
    """
    for left in reversed(range(_OPENINGS)):
        since = _CLOCK.monotonic()
        try:
            return opening()
        except (StoreUnreachable, psycopg.OperationalError) as error:
            if left and _CLOCK.monotonic() - since < _SILENCE:
                continue
            if isinstance(error, psycopg.Error):
                raise translate(error, target) from error
            raise
        except psycopg.Error as error:
            raise translate(error, target) from error
    raise AssertionError


def _of_schema(url: str, schema: str) -> str:
    """Return a URL with the schema of another one."""
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


def _is_plausible(given: Mapping[str, Any]) -> bool:
    """Whether a URL was parsed as intended; if not, other parts may contain its password."""
    ports = str(given.get("port", "")).replace(",", "")
    names = f"{given.get('host', '')}{given.get('dbname', '')}"
    return (not ports or ports.isdecimal()) and "@" not in names


def translate(error: psycopg.Error, target: Target) -> Exception:
    """Return a `StoreError` that says what happened and what to do."""
    text = target.hide(error.diag.message_primary or str(error)).strip()
    text += target.advice(text)
    match error:
        case errors.DiskFull() | errors.OutOfMemory():
            return StoreFull(f"{target} has no room left: {text}; what was acknowledged is safe")
        case errors.ReadOnlySqlTransaction():
            return StoreReadOnly(f"{target} cannot be written: {text}; is it a standby?")
        case psycopg.IntegrityError():
            is_place = error.diag.constraint_name == "journal_place"
            return JournalConflict(text) if is_place else IllegalTransition(text)
        case psycopg.DataError():
            return Unstorable(f"{target} cannot store this: {text}")
        case psycopg.OperationalError():
            return StoreUnreachable(f"{target} does not answer: {text}")
        case _:
            return StoreError(f"{target} refuses: {text}")


def is_lost(error: psycopg.Error, connection: Pg) -> bool:
    """Whether the connection is lost, so that it is unknown what the server still did.

    After a fatal error the other end hangs up, also where the driver has not seen that yet. A
    pipeline that was cut off half-way never ends.
    """
    is_fatal = error.diag.severity in ("FATAL", "PANIC") or isinstance(error, errors.AdminShutdown)
    is_stuck = connection.pgconn.pipeline_status != PipelineStatus.OFF
    return connection.closed or connection.broken or is_fatal or is_stuck


def is_transient(error: psycopg.Error) -> bool:
    """Whether other transactions interfered: nothing was done, so it can be retried."""
    transient = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
    return isinstance(error, transient)


_TEXTS = all_statements("postgres")
STATEMENTS = {name: text.encode() for name, text in _TEXTS.items()}
_COLUMNS = (
    *("job_id", "seq", "id", "kind", "name", "state", "attempt"),
    *("input", "output", "error", "checkpoint", "checkpoint_no"),
    *("wake_at", "started_at", "ended_at", "owner", "epoch"),
)
# An entry as JSON, at half the cost of a dict. Few entries have a key, so it is left out.
_json_entry: Callable[..., msgspec.Struct] = msgspec.defstruct(
    "_json_entry", (*_COLUMNS, ("key", str | None, None)), gc=False, omit_defaults=True
)
_encode = msgspec.json.Encoder().encode


def _as_transaction(statement: str) -> str:
    """Return a statement that is a whole transaction: it records its own number."""
    return statement.replace("WITH ", f"WITH numbered AS ({_TEXTS['number_commit']}), ", 1)


def _for_server(statement: str, *names: str) -> bytes:
    """Return a statement in the server's syntax, with its parameters in this order."""
    for place, name in enumerate(("writer", "no", *names), 1):
        statement = statement.replace(f"%({name})s", f"${place}")
    return statement.replace("%%", "%").encode()


SINGLE_STATEMENTS = {
    name: _as_transaction(_TEXTS[name]).encode() for name in ("claim_unlimited", "submit_new")
}
WRITE = _for_server(_as_transaction(_TEXTS["upsert_entries"]), "entries")
# With lines of the ledger.
WRITE_BOTH = _for_server(_TEXTS["write_both"].format(**_TEXTS), "entries", "effects")
_GRAPH_ROWS: Final = {
    "put_graph_write": "writes",
    "insert_graph_piece": "pieces",
    "put_graph_value": "values",
    "put_graph_checkpoint": "checkpoints",
}
PUT_GRAPH = _for_server(
    _as_transaction(_TEXTS["put_graph"]),
    "tenant",
    "thread",
    "lock",
    "relied",
    *_GRAPH_ROWS.values(),
)


def entries_json(entries: Sequence[tuple[Any, ...]]) -> str:
    """Return journal entries as one parameter: a tenth of the work of eighteen arrays."""
    return _encode([_json_entry(*entry) for entry in entries]).decode()


def effects_json(effects: Sequence[Mapping[str, Any]]) -> str:
    """Return ledger entries as one parameter, with the places that new ones will have.

    Sorted by job, since leases are locked in this order.
    """
    new = Counter[str]()
    lines: list[dict[str, Any]] = []
    for line in sorted(effects, key=itemgetter("id")):
        lines.append({**line, "place": new[line["id"]] + 1})
        # One that ended later than it began has its place already.
        new[line["id"]] += line["ended_at"] in (None, line["called_at"])
    return _encode(lines).decode()


def graph_texts(
    keys: Keys | None,
    tenant: str,
    thread: str,
    wrote: Sequence[TaskWrites],
    put: GraphPut | None,
) -> list[str]:
    """Return the parameters of `PUT_GRAPH`, with payloads sealed."""
    where = {"tenant": tenant, "thread": thread}
    rows: dict[str, list[dict[str, Any]]] = dict(graph_rows(where, wrote, put))
    if keys is not None:
        rows = {
            name: [seal_parameters(keys, name, _TEXTS[name], row) for row in given]
            for name, given in rows.items()
        }
    lock, relied = "", list[Sequence[str]]()
    if put is not None and (put.pieces or put.relied):
        lock = lock_name(tenant, thread)
        relied = [list(chunk_names(keys, tenant, [digest])) for digest in put.relied]
    given = [relied, *(rows.get(name, ()) for name in _GRAPH_ROWS)]
    return [tenant, thread, lock, *(_encode(each).decode() for each in given)]


class PgSession:
    """A connection inside a transaction."""

    __slots__ = ("moment", "notes", "pg", "postponed", "prepared", "unproven_claims")

    def __init__(self, pg: Pg, unproven_claims: set[tuple[str, int]]) -> None:
        self.pg = pg
        self.unproven_claims = unproven_claims
        self.prepared: set[bytes] = set()  # the names of statements that the server has prepared
        self.moment: float | None = None  # the server's time in this transaction
        self.postponed: list[tuple[bytes, Mapping[str, Any]]] = []  # until nothing waits for it
        self.notes: list[AuditDraft] = []  # for the end of this transaction: their lock comes last

    @property
    def keys(self) -> Keys | None:
        return None

    @property
    def readable(self) -> str | None:
        return None

    def now(self) -> float:
        if self.moment is None:
            found = self.one("clock")
            assert found is not None
            self.moment = float(found[0])
        return self.moment

    def clock(self) -> float:
        return self.now()

    def single(self, name: str, values: Mapping[str, Any]) -> Sequence[Row]:
        """Run a statement that is a whole transaction; return its rows."""
        return self.pg.execute(SINGLE_STATEMENTS[name], values).fetchall()

    def one(self, name: str, /, **values: Any) -> Row | None:
        return self.pg.execute(STATEMENTS[name], values).fetchone()

    def all(self, name: str, /, **values: Any) -> Sequence[Row]:
        return self.pg.execute(STATEMENTS[name], values).fetchall()

    def run(self, name: str, /, **values: Any) -> int:
        return self.pg.execute(STATEMENTS[name], values).rowcount

    def best_effort(self, name: str, /, **values: Any) -> None:
        self.postponed.append((STATEMENTS[name], values))

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        if len(rows) == 1:
            return self.run(name, **rows[0])
        with self.pg.cursor() as cursor:
            cursor.executemany(STATEMENTS[name], rows)
            return cursor.rowcount

    def change(self, *asked: tuple[str, Sequence[Mapping[str, Any]]]) -> None:
        """Run statements with one round trip."""
        if self.pg.prepare_threshold is None:  # behind a pooler: without pipelines
            for name, rows in asked:
                self.many(name, rows)
            return
        with self.pg.pipeline():
            for name, rows in asked:
                for values in rows:
                    self.pg.execute(STATEMENTS[name], values)

    def find(self, name: str, present: set[str], /, **values: Any) -> Sequence[Row]:
        return self.pg.execute(only(_TEXTS[name], present).encode(), values).fetchall()

    def together(self, *asked: tuple[str, Mapping[str, Any]]) -> list[Sequence[Row]]:
        """Run statements with one round trip, and with it read the clock if nobody has."""
        if self.pg.prepare_threshold is None:  # behind a pooler: without pipelines
            return [self.all(name, **values) for name, values in asked]
        with self.pg.pipeline():
            clock = self.pg.execute(STATEMENTS["clock"]) if self.moment is None else None
            found = [self.pg.execute(STATEMENTS[name], values) for name, values in asked]
        if clock is not None:
            self.moment = float(clock.fetchall()[0][0])
        return [each.fetchall() for each in found]

    def array(self, values: Sequence[str] | Sequence[int]) -> Any:
        return list(values)

    def lock(self, name: str) -> None:
        self.one("lock", name=name)

    def note(self, draft: AuditDraft) -> None:
        self.notes.append(draft)

    def write_entries(self, entries: Sequence[tuple[Any, ...]]) -> int:
        return self.run("upsert_entries", entries=entries_json(entries))

    def write_effects(self, effects: Sequence[Mapping[str, Any]]) -> int:
        return self.run("upsert_effects", effects=effects_json(effects))


class SealedPgSession(Sealing, PgSession):
    """A session on a store whose payloads are encrypted."""

    def __init__(self, plain: PgSession, keys: Keys, *, shows_locked: bool) -> None:
        super().__init__(plain.pg, plain.unproven_claims)
        self.seal_with(keys, shows_locked=shows_locked)

    def many_sealed(self, name: str, rows: Sequence[Mapping[str, Any]]) -> int:
        return PgSession.many(self, name, rows)

    def numbers(self, table: str, count: int) -> Sequence[int]:
        return [no for (no,) in self.all(f"next_{table}_no", count=count)]

    def cursor(self, text: str, values: Mapping[str, Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.pg.execute(text.encode(), values)

    def text(self, name: str, present: set[str] | None = None) -> str:
        return _TEXTS[name] if present is None else only(_TEXTS[name], present)

    def single(self, name: str, values: Mapping[str, Any]) -> Sequence[Row]:
        if self.needs_numbers(name, values):
            return ()
        sealed = seal_parameters(self.keys, name, self.text(name), values)
        found = self.pg.execute(SINGLE_STATEMENTS[name], sealed)
        return self.opened(name, found, found.fetchall(), values)


def with_keys(
    plain: PgSession, keys: Encryption | None, *, shows_locked: bool = False
) -> PgSession:
    """Return a session that encrypts, if the program has keys or the store has."""
    found = keys_for(keys, used_keys(plain.all("key_facts")))
    return plain if found is None else SealedPgSession(plain, found, shows_locked=shows_locked)
