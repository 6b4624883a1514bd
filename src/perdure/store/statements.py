"""The SQL: named statements in `sql/*.sql`, written once for both databases.

A statement begins with `-- name: its_name`. A line that ends in `-- sqlite` or `-- postgres` exists
for that database only; a line that ends in `-- if word` is kept only where the caller gives a value
of that name; a line `-- use: name` stands for the text that begins with `-- part: name`. Nearly all
of the SQL is the same for both, so the few lines that differ are next to each other, and a change
of one does not forget the other.

`Session` is what a verb sees of a database: one connection inside one transaction, on which it
runs statements by name. The verbs in `verbs/` are written against it alone.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal, Protocol

from perdure.base.encryption import Keys
from perdure.jobs.audit import AuditDraft
from perdure.jobs.model import Write

Dialect = Literal["sqlite", "postgres"]
Row = Sequence[Any]
# A write, with the rows of its journal entries and of its lines of the ledger.
EncodedWrite = tuple[Write, Sequence[tuple[Any, ...]], Sequence[Mapping[str, Any]]]

_NAME = re.compile(r"^-- (name: \w+|part: \w+)\n", re.MULTILINE)
_USE = re.compile(r"^ *-- use: (\w+)$", re.MULTILINE)
_MARK = re.compile(r"\s*-- (sqlite|postgres)?(?: ?if (\w+))?$")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


class Session(Protocol):
    """A connection inside a transaction."""

    # What encrypts payloads here, and the ids of its keys as a JSON list; None: nothing does.
    @property
    def keys(self) -> Keys | None: ...
    @property
    def readable(self) -> str | None: ...

    # Claims (job, epoch) of jobs whose previous claim made no progress: the first progress must be
    # recorded, which takes a statement that other writes need not pay for.
    unproven_claims: set[tuple[str, int]]

    def now(self) -> float:
        """Return UNIX seconds by the store's clock."""
        ...

    def clock(self) -> float:
        """Return seconds by the clock of the leases, which setting the wall clock cannot move."""
        ...

    def one(self, name: str, /, **values: Any) -> Row | None:
        """Run a statement and return its first row."""
        ...

    def all(self, name: str, /, **values: Any) -> Sequence[Row]:
        """Run a statement and return its rows."""
        ...

    def run(self, name: str, /, **values: Any) -> int:
        """Run a statement and return how many rows it changed."""
        ...

    def best_effort(self, name: str, /, **values: Any) -> None:
        """Run a statement that nothing waits for, and whose loss does no harm."""
        ...

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        """Run a statement once for each row of values; return how many rows they changed."""
        ...

    def change(self, *asked: tuple[str, Sequence[Mapping[str, Any]]]) -> None:
        """Run several statements, each once for each of its rows of values."""
        ...

    def find(self, name: str, present: set[str], /, **values: Any) -> Sequence[Row]:
        """Run a statement with only those optional lines whose word is given; return its rows."""
        ...

    def together(self, *asked: tuple[str, Mapping[str, Any]]) -> list[Sequence[Row]]:
        """Run statements that do not need each other's rows; return the rows of each."""
        ...

    def array(self, values: Sequence[str] | Sequence[int]) -> Any:
        """Return many values as one parameter."""
        ...

    def lock(self, name: str) -> None:
        """Keep other transactions from locking this name until the end of this one."""
        ...

    def note(self, draft: AuditDraft) -> None:
        """Append an entry to the audit log before the transaction ends."""
        ...

    def write_entries(self, entries: Sequence[tuple[Any, ...]]) -> int:
        """Write journal entries, each fenced; return how many were written."""
        ...

    def write_effects(self, effects: Sequence[Mapping[str, Any]]) -> int:
        """Write lines of the ledger, each fenced; return how many were written."""
        ...


def load(dialect: Dialect, made: str = "") -> dict[str, str]:
    """Return the statements of one database by name: of all files, and those of the text `made`."""
    other = "postgres" if dialect == "sqlite" else "sqlite"
    texts = [made] + [
        path.read_text("utf-8")
        for path in sorted(files("perdure.store").joinpath("sql").iterdir(), key=str)
        if path.name.endswith(".sql") and path.name != f"{other}.sql"
    ]
    given = [item for each in texts for item in _statements(each).items()]
    found = dict(given)
    if len(found) < len(given):
        names = [name for name, _ in given]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise RuntimeError(f"two statements are called the same: {', '.join(twice)}")

    def whole(text: str) -> str:
        return _USE.sub(lambda use: whole(found[f"part: {use[1]}"]), text)

    return {
        name.removeprefix("name: "): _in_dialect(whole(text), dialect)
        for name, text in found.items()
        if name.startswith("name: ")
    }


def only(statement: str, present: set[str]) -> str:
    """Return the statement without the optional lines whose word is not given."""
    lines = (line.partition("  -- if ") for line in statement.splitlines())
    return "\n".join(text for text, _, word in lines if not word or word in present)


def _statements(text: str) -> dict[str, str]:
    _, *parts = _NAME.split(text)
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _in_dialect(statement: str, dialect: Dialect) -> str:
    lines: list[str] = []
    for line in statement.splitlines():
        mark = _MARK.search(line)
        if mark is None:
            lines.append(line)
        elif mark[1] in (None, dialect):
            condition = f"  -- if {mark[2]}" if mark[2] else ""
            lines.append(line[: mark.start()] + condition)
    text = "\n".join(lines)
    if dialect == "postgres":
        text = _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))
    return text
