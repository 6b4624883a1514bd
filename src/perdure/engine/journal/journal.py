"""The journal of one run: replay is a look-up in it.

The identity of an operation is its name and how often that name came before: `send_mail#2`.
It is given when the code asks, in the order of the code, so parallel branches that ask for
operations of different names, or all at once, are the same at every replay.
"""

from collections.abc import Iterable

from perdure.base.errors import Drift
from perdure.jobs.model import EntryKind, JournalEntry

# A code that no longer fits is shown so much of the journal.
_SHOWN = 10


class Journal:
    """The entries of one job by identity, and which of them the code has come by."""

    __slots__ = ("_by_id", "_keyed", "_ordinals", "_seq", "unvisited")

    def __init__(self, entries: Iterable[JournalEntry]) -> None:
        self._by_id = {entry.id: entry for entry in entries}
        self._seq = max((entry.seq for entry in self._by_id.values()), default=0)
        self._ordinals: dict[str, int] = {}
        self._keyed: set[str] = set()  # identities that the code itself chose
        # What the code must ask for again before it may ask for anything new.
        self.unvisited = {
            entry.id for entry in self._by_id.values() if entry.kind is not EntryKind.UNDO
        }

    def identity(self, name: str, key: str | None = None) -> str:
        """Allot the identity of the next operation of this name.

        Raises:
            ValueError: Another operation has it.
        """
        if key is None:
            ordinal = self._ordinals.get(name, 0) + 1
            self._ordinals[name] = ordinal
            id = f"{name}#{ordinal}"
            if self._keyed and id in self._keyed:
                raise ValueError(_same(id))
            return id
        id = f"{name}#{key}"
        if id in self._keyed or (key.isdigit() and int(key) <= self._ordinals.get(name, 0)):
            raise ValueError(_same(id))
        self._keyed.add(id)
        return id

    def visit(self, id: str, kind: EntryKind, packed: bytes | None) -> JournalEntry | None:
        """Look an operation up; None if it is new.

        Raises:
            Drift: The journal has something else under this identity.
        """
        entry = self._by_id.get(id)
        if entry is None:
            return None
        self.unvisited.discard(id)
        if entry.kind is not kind:
            raise Drift(f"the journal has {id} as a {entry.kind}, the code as a {kind}")
        if packed is not None and entry.input not in (None, packed):
            raise Drift(
                f"{id} was called with other arguments before: "
                f"journal {_excerpt(entry.input)}, code {_excerpt(packed)}"
            )
        return entry

    def next_seq(self) -> int:
        """Give the place of a new entry."""
        self._seq += 1
        return self._seq

    def missed(self, wanted: str) -> Drift:
        """Say that the code asks for something new while it has not come by what is recorded."""
        left = sorted(self.unvisited, key=lambda id: self._by_id[id].seq)
        shown = ", ".join(left[:_SHOWN]) + (" …" if len(left) > _SHOWN else "")
        return Drift(f"the code {wanted}, but the journal has already: {shown}")


def _same(id: str) -> str:
    return f"two operations of the job would be {id}: give `run_as` another key"


def _excerpt(payload: bytes, most: int = 200) -> str:
    text = payload.decode()
    return text if len(text) <= most else text[:most] + "…"
