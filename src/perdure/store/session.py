"""What a transaction may do: run the named statements on one connection, inside one transaction.

The verbs in `verb/` are written against this, so that both databases run the same ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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
