"""The functions that are spawned by an id, as a child OS process knows them."""

from collections.abc import Mapping
from typing import Any

from perdure.base.errors import NotPortable
from perdure.process.entry import Entry
from perdure.process.hosts.portable import dump_call, load_call

Packed = dict[str, tuple[str | None, bytes]]  # the default host, and the call


def pack_entries(entries: Mapping[str, Entry]) -> Packed:
    """Pack the table for a child; what cannot cross is left out, for it could not run there."""
    packed: Packed = {}
    for id, entry in entries.items():
        try:
            packed[id] = entry.host, dump_call(entry.function, entry.args, {})
        except NotPortable:
            continue
    return packed


class ReplicaEntries(dict[str, Entry]):
    """The table in a child; a function is imported when it is first asked for."""

    def __init__(self, packed: Packed, wire: Any) -> None:
        super().__init__()
        self._packed = packed
        self._wire = wire

    def get(self, id: str, default: Any = None) -> Any:
        """Give an entry."""
        if id not in self and id in self._packed:
            host, call = self._packed[id]
            function, args, _ = load_call(call, self._wire)
            self[id] = Entry(function, host, args)
        return super().get(id, default)

    def __iter__(self) -> Any:
        """Go through all ids, imported or not."""
        return iter(self._packed)
