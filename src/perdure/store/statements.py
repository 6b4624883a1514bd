"""What a transaction may do: run the named statements on one connection, inside one transaction.

The verbs in `verb/` are written against this, so that both databases run the same ones.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal, Protocol

Row = Sequence[Any]


class Session(Protocol):
    """A connection inside a transaction."""

    # Jobs, with the epoch, whose claims before this one came to nothing:
    # the first progress must be noted, which costs a statement that others need not pay.
    suspects: set[tuple[str, int]]

    def now(self) -> float:
        """UNIX seconds by the store's clock."""
        ...

    def clock(self) -> float:
        """Seconds by the clock of the leases, which no set wall clock can move."""
        ...

    def one(self, name: str, /, **values: Any) -> Row | None: ...

    def all(self, name: str, /, **values: Any) -> Sequence[Row]: ...

    def run(self, name: str, /, **values: Any) -> int:
        """Run a statement; gives how many rows it touched."""
        ...

    def aside(self, name: str, /, **values: Any) -> None:
        """Run a statement that others must not wait for, and whose loss does no harm."""
        ...

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        """Run a statement once for each of the rows; gives how many rows they touched."""
        ...

    def find(self, name: str, present: set[str], /, **values: Any) -> Sequence[Row]:
        """Run a statement with only those of its conditions that are present."""
        ...

    def array(self, values: Sequence[str] | Sequence[int]) -> Any:
        """Spell many values as one parameter."""
        ...

    def lock(self, name: str) -> None:
        """Let no other transaction hold this name until the end of ours."""
        ...

    def upsert(self, entries: Sequence[tuple[Any, ...]]) -> int:
        """Write journal entries (`row.entry_row`), each fenced by owner and epoch."""
        ...

    def keep(self, lines: Sequence[Mapping[str, Any]]) -> int:
        """Write lines of the ledger (`verb.effect.line_row`), each fenced likewise."""
        ...


# Reads the `.sql` files: named statements, written once for both databases.
#
# A statement begins with `-- name: its_name`.
# A line that ends in `-- sqlite` or `-- postgres` is there for that database alone,
# one that ends in `-- if word` only where the caller has a value of that name.

Dialect = Literal["sqlite", "postgres"]

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_MARK = re.compile(r"\s*-- (sqlite|postgres)?(?: ?if (\w+))?$")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


def load(dialect: Dialect) -> dict[str, str]:
    """Give all statements of one database by name."""
    other = "postgres" if dialect == "sqlite" else "sqlite"
    texts = [
        path.read_text("utf-8")
        for path in sorted(files("perdure.store").joinpath("sql").iterdir(), key=str)
        if path.name.endswith(".sql") and path.name != f"{other}.sql"
    ]
    return {
        name: _spell(text, dialect) for each in texts for name, text in _statements(each).items()
    }


def only(statement: str, present: set[str]) -> str:
    """Leave out the lines whose word is not present."""
    lines = (line.partition("  -- if ") for line in statement.splitlines())
    return "\n".join(text for text, _, word in lines if not word or word in present)


def _statements(text: str) -> dict[str, str]:
    _, *parts = _NAME.split(text)
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _spell(statement: str, dialect: Dialect) -> str:
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
