"""The shelf of a runtime: which tables there are, by name and by owner."""

from functools import partial
from typing import TYPE_CHECKING

from perdure.base.errors import NameTaken
from perdure.base.pid import Pid
from perdure.process.names import check_name
from perdure.process.process import Process

if TYPE_CHECKING:
    from perdure.otp.table import Table


class Shelf:
    """All tables of one runtime."""

    __slots__ = ("_by_name", "_by_owner")

    def __init__(self) -> None:
        self._by_name: dict[str, Table] = {}
        self._by_owner: dict[Pid, dict[Table, None]] = {}

    def find(self, name: str) -> "Table | None":
        """Give the table with a name."""
        return self._by_name.get(name)

    def name(self, table: "Table", name: str) -> None:
        """Let a table be found by a name.

        Raises:
            NameTaken: Another table has it.
        """
        check_name(name)
        other = self._by_name.get(name)
        if other is not None:
            raise NameTaken(name, other.owner)
        self._by_name[name] = table

    def hand_to(self, table: "Table", owner: Process) -> None:
        """Note who owns a table; one hook at its death, however many tables come and go."""
        owned = self._by_owner.get(owner.pid)
        if owned is None:
            owned = self._by_owner[owner.pid] = {}
            owner.tie().at_death(partial(self._bequeath, owner.pid))
        owned[table] = None

    def take_from(self, table: "Table", owner: Pid) -> None:
        """Note who no longer owns a table."""
        self._by_owner[owner].pop(table, None)

    def remove(self, table: "Table") -> None:
        """Forget a table that is gone."""
        self.take_from(table, table.owner)
        if table.name is not None:
            del self._by_name[table.name]

    def _bequeath(self, owner: Pid) -> None:
        for table in tuple(self._by_owner[owner]):
            table.inherit()
        del self._by_owner[owner]


def shelf_of(process: Process) -> Shelf:
    """Give the shelf of a process' runtime."""
    return process.runtime.own(Shelf)
