"""The journal of one run: replay is a look-up in it.

The code of a job runs again from its start after every interruption. What it asks for is looked up
here by identity: the name of the operation and its ordinal among those of the same name, such as
`send_mail#2`. The ordinal is allotted when the code asks, in the order of the code. So parallel
branches that ask for operations of different names, or for all of them at once, get the same
identities in every replay.

The journal also notices *drift*: code that asks for something else than it did before. While there
are entries that the code has not asked for again, it may not start anything new (see `Run.hold`).
"""

from collections.abc import Iterable

from perdure.base.errors import Drift
from perdure.jobs.model import EntryKind, JournalEntry

# How many entries of the journal a message about drift names.
_SHOWN = 10


class Journal:
    """The entries of one job by identity, and which of them the code has asked for again."""

    __slots__ = ("_keyed", "_ordinals", "_seq", "entries", "unvisited")

    def __init__(self, entries: Iterable[JournalEntry]) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self._seq = max((entry.seq for entry in self.entries.values()), default=0)
        self._ordinals: dict[str, int] = {}
        self._keyed: set[str] = set()  # identities that the code itself chose
        # What the code must ask for again before it may start anything new.
        self.unvisited = {
            entry.id for entry in self.entries.values() if entry.kind is not EntryKind.UNDO
        }

    def identity(self, name: str, key: str | None = None) -> str:
        """Return the identity of the next operation of this name, or that with this key.

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
        """Return the entry of an operation that the code asks for; None if it is new.

        Raises:
            Drift: The journal has something else under this identity.
        """
        entry = self.entries.get(id)
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
        """Return the position of a new entry."""
        self._seq += 1
        return self._seq

    def missed(self, wanted: str) -> Drift:
        """Return the drift of code that does something new before it came to what is recorded."""
        left = sorted(self.unvisited, key=lambda id: self.entries[id].seq)
        shown = ", ".join(left[:_SHOWN]) + (" …" if len(left) > _SHOWN else "")
        return Drift(f"the code {wanted}, but the journal expects {shown} next")


def _same(id: str) -> str:
    return f"two operations of the job would be {id}: give `run_as` another key"


def _excerpt(payload: bytes, most: int = 200) -> str:
    text = payload.decode()
    return text if len(text) <= most else text[:most] + "…"
