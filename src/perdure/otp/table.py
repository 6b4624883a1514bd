"""Table: shared data that everybody reads without asking a process.

A table belongs to one process and is gone when that dies, unless there is an heir.
Every operation is one step that nobody can interrupt: `update_counter` and `take` lose nothing.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import suppress
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Any, Generic, Literal, TypeAlias, TypeVar, Union

from perdure.base.duration import Duration, seconds
from perdure.base.errors import MailboxFull, NameTaken, NoTable, NotOwner
from perdure.base.pid import Pid
from perdure.otp.address import HasPid
from perdure.otp.registry import same, strict
from perdure.process.api import alive_or_raise
from perdure.process.event import Message
from perdure.process.process import Process
from perdure.process.relations import Destination, check_name
from perdure.process.waiter import CURRENT, current

# The rows of a table: how each kind keeps them, and until when. It knows no process.

FOREVER = float("inf")

# The heap of ends is cleaned of rows that are gone when most of it is, but not for so few.
_FEW_ENDS = 64


class Kind(StrEnum):
    """What a table may hold under one key."""

    SET = "set"  # one value; a new one replaces it
    ORDERED_SET = "ordered_set"  # one value; keys are sorted
    BAG = "bag"  # many different values
    DUPLICATE_BAG = "duplicate_bag"  # many values


class Row:
    """One value under one key, until its time is over."""

    __slots__ = ("end", "key", "value")

    def __init__(self, key: Any, value: Any, end: float) -> None:
        self.key = key
        self.value = value
        self.end = end


C = TypeVar("C", bound=Collection[Row])


class Rows(Generic[C]):
    """The rows of one table. A row whose time is over is never seen, and soon forgotten."""

    def __init__(self, now: Callable[[], float], ttl: float | None) -> None:
        """Begin empty.

        Args:
            now: Tells the time.
            ttl: How long a row lives that is inserted without a time; None: for ever.
        """
        self._now = now
        self._ttl = ttl
        self._by_key: dict[Hashable, C] = {}
        self._ends: list[tuple[float, int, Row]] = []
        self._numbers = count()  # rows that end together are compared by this
        self._size = 0

    # What differs between the kinds

    def place(self, key: Any) -> Hashable:
        """Give what stands for the key."""
        return strict(key)

    def _add(self, row: Row) -> Row:
        """Put a row into its place, and give the one that is there now.

        Raises:
            TypeError: The key is of no use; nothing was changed.
        """
        raise NotImplementedError

    def _drop(self, row: Row) -> None:
        """Forget a row."""
        raise NotImplementedError

    def _in_order(self) -> Iterable[C]:
        return self._by_key.values()

    # What is the same

    def of(self, key: Any) -> list[Row]:
        """Give the rows of a key, oldest first."""
        rows = self._by_key.get(self.place(key), ())
        if not self._ends:  # no row of this table has an end
            return list(rows)
        now = self._now()
        return [row for row in rows if row.end > now]

    def every(self) -> list[Row]:
        """Give all rows."""
        self._sweep()
        return [row for rows in self._in_order() for row in rows]

    def __len__(self) -> int:
        self._sweep()
        return self._size

    def insert(self, key: Any, value: Any, ttl: float | None = None) -> None:
        """Add a value under a key."""
        self._sweep()
        seconds = self._ttl if ttl is None else ttl
        end = FOREVER if seconds is None else self._now() + seconds
        row = self._add(Row(key, value, end))
        if end != FOREVER:
            heapq.heappush(self._ends, (end, next(self._numbers), row))

    def remove(self, key: Any) -> list[Row]:
        """Take all rows of a key out."""
        self._sweep()
        rows = list(self._by_key.get(self.place(key), ()))
        for row in rows:
            self._drop(row)
        return rows

    def clear(self) -> None:
        """Forget everything."""
        self._by_key.clear()
        self._ends.clear()
        self._size = 0

    def _sweep(self) -> None:
        """Forget the rows whose time is over: at each write, so there is nothing to be armed."""
        ends = self._ends
        if not ends:
            return
        now = self._now()
        while ends and ends[0][0] <= now:
            row = heapq.heappop(ends)[2]
            if row.end <= now and self._has(row):  # it was neither renewed nor replaced
                self._drop(row)
        if len(ends) > 2 * self._size + _FEW_ENDS:
            self._ends = [entry for entry in ends if self._is_end_of(entry[0], entry[2])]
            heapq.heapify(self._ends)

    def _has(self, row: Row) -> bool:
        return row in self._by_key.get(self.place(row.key), ())

    def _is_end_of(self, end: float, row: Row) -> bool:
        return row.end == end and self._has(row)


class SetRows(Rows[tuple[Row]]):
    """One row for each key."""

    def _add(self, row: Row) -> Row:
        place = self.place(row.key)
        self._size += place not in self._by_key
        self._by_key[place] = (row,)
        return row

    def _drop(self, row: Row) -> None:
        del self._by_key[self.place(row.key)]
        self._size -= 1


class OrderedRows(SetRows):
    """One row for each key, sorted; keys that compare as equal are the same key."""

    def __init__(self, now: Callable[[], float], ttl: float | None) -> None:
        super().__init__(now, ttl)
        self._order: list[Any] = []

    def place(self, key: Any) -> Hashable:
        if key != key:  # noqa: PLR0124 - NaN has no place in an order
            raise ValueError(f"a key of an ordered table must be equal to itself; {key!r} is not")
        return key

    def _add(self, row: Row) -> Row:
        if self.place(row.key) not in self._by_key:
            self._order.insert(self._index(row.key), row.key)
        return super()._add(row)

    def _drop(self, row: Row) -> None:
        super()._drop(row)
        del self._order[self._index(row.key)]

    def _index(self, key: Any) -> int:
        return bisect_left(self._order, key)

    def _in_order(self) -> Iterable[tuple[Row]]:
        return (self._by_key[key] for key in self._order)

    def clear(self) -> None:
        super().clear()
        self._order.clear()


class DuplicateBagRows(Rows[dict[Row, None]]):
    """Many rows for each key: a dict as ordered set, so that one of many leaves unsought."""

    def _add(self, row: Row) -> Row:
        self._by_key.setdefault(self.place(row.key), {})[row] = None
        self._size += 1
        return row

    def _drop(self, row: Row) -> None:
        place = self.place(row.key)
        rows = self._by_key[place]
        del rows[row]
        self._size -= 1
        if not rows:
            del self._by_key[place]


class BagRows(DuplicateBagRows):
    """Many different rows for each key."""

    def _add(self, row: Row) -> Row:
        for other in self._by_key.get(self.place(row.key), ()):
            if same(other.value, row.value):
                other.end = row.end  # its time begins anew
                return other
        return super()._add(row)


_KINDS: dict[Kind, type[Rows[Any]]] = {
    Kind.SET: SetRows,
    Kind.ORDERED_SET: OrderedRows,
    Kind.BAG: BagRows,
    Kind.DUPLICATE_BAG: DuplicateBagRows,
}


def make_rows(kind: Kind, now: Callable[[], float], ttl: float | None) -> Rows[Any]:
    """Make the rows of an empty table."""
    return _KINDS[kind](now, ttl)


# The shelf of a runtime: which tables there are, by name and by owner.


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


TRANSFER = "table.transfer"
"""The topic of the message by which a process learns that a table is now its own."""

This: TypeAlias = Union["Table", str]
"""A table by its handle or its name."""


class Access(StrEnum):
    """What processes other than the owner may do."""

    PRIVATE = "private"  # nothing
    PROTECTED = "protected"  # read
    PUBLIC = "public"  # read and write


class Table:
    """Rows of a key and a value, outside of any process.

    Every method may also be called on the class, with the table's name in place of the handle:
    `Table.lookup("prices", "apple")`.

    Values are handed out as they are, not copied: keep immutable ones.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        kind: Kind | Literal["set", "ordered_set", "bag", "duplicate_bag"] = Kind.SET,
        access: Access | Literal["private", "protected", "public"] = Access.PROTECTED,
        heir: Destination | HasPid | None = None,
        ttl: Duration = None,
    ) -> None:
        """Make a table that belongs to this process.

        Args:
            name: Lets others find it.
            kind: What it may hold under one key.
            access: What other processes may do.
            heir: Who gets it when its owner dies, with a message of topic "table.transfer".
            ttl: How long a row lives, unless `insert` says otherwise.

        Raises:
            NameTaken: Another table has the name.
        """
        me = current("Table")
        self.kind = Kind(kind)
        self.access = Access(access)
        self.name = name
        self.owner: Pid = me.pid
        self.heir: Destination | None = None if heir is None else _checked(heir)
        self.gone = False
        self.rows = make_rows(self.kind, me.loop.time, seconds(ttl))
        self._runtime = me.runtime
        self._shelf = shelf_of(me)
        if name is not None:
            self._shelf.name(self, name)
        self._shelf.hand_to(self, me)

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name!r}"
        state = "gone" if self.gone else f"{len(self.rows)} rows, owner {self.owner}"
        return f"<table{name}: {self.kind}, {state}>"

    @staticmethod
    def whereis(name: str) -> "Table | None":
        """Find a table by its name."""
        check_name(name)
        return shelf_of(current("whereis")).find(name)

    # Reading

    def lookup(self: This, key: Hashable) -> list[Any]:
        """Give the values of a key, oldest first."""
        return [row.value for row in _readable(self).rows.of(key)]

    def get(self: This, key: Hashable, default: Any = None) -> Any:
        """Give the first value of a key."""
        rows = _readable(self).rows.of(key)
        return rows[0].value if rows else default

    def member(self: This, key: Hashable) -> bool:
        """Tell whether a key has a value."""
        return bool(_readable(self).rows.of(key))

    def items(self: This) -> list[tuple[Any, Any]]:
        """Give all keys and values; sorted by key if the kind is "ordered_set"."""
        return [(row.key, row.value) for row in _readable(self).rows.every()]

    def select(self: This, predicate: Callable[[Any, Any], bool]) -> list[tuple[Any, Any]]:
        """Give the keys and values that fit."""
        return [item for item in Table.items(self) if predicate(*item)]

    def size(self: This) -> int:
        """Count the rows."""
        return len(_readable(self).rows)

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        return True  # an empty table is a table

    def __contains__(self, key: Hashable) -> bool:
        return self.member(key)

    # Writing

    def insert(self: This, key: Hashable, value: Any, *, ttl: Duration = None) -> None:
        """Add a value under a key; what that does to values that are there, the kind says.

        Args:
            key: Where to find it.
            value: Anything.
            ttl: How long it lives; by default as long as the table says.
        """
        _writable(self).rows.insert(key, value, seconds(ttl))

    def insert_new(self: This, key: Hashable, value: Any, *, ttl: Duration = None) -> bool:
        """Add a value only if the key has none; tell whether it was added."""
        rows, limit = _writable(self).rows, seconds(ttl)
        if rows.of(key):
            return False
        rows.insert(key, value, limit)
        return True

    def delete(self: This, key: Hashable) -> None:
        """Remove all values of a key; that there is none is fine."""
        _writable(self).rows.remove(key)

    def take(self: This, key: Hashable) -> list[Any]:
        """Remove all values of a key, and give them."""
        return [row.value for row in _writable(self).rows.remove(key)]

    def clear(self: This) -> None:
        """Remove everything."""
        _writable(self).rows.clear()

    def update_counter(self: This, key: Hashable, step: int = 1, default: int = 0) -> int:
        """Add to the number under a key, and give the sum; how long it lives stays the same.

        Args:
            key: Where the number is.
            step: What to add, or with a negative number to take away.
            default: The number before the first step.

        Raises:
            TypeError: There is no number under the key, or the table is a bag.
        """
        table = _writable(self)
        if table.kind not in (Kind.SET, Kind.ORDERED_SET):
            raise TypeError(f"a counter needs one value for each key; a {table.kind} has many")
        _check_number("the step", step)
        rows = table.rows.of(key)
        if not rows:
            _check_number("the default", default)
            table.rows.insert(key, default + step)
            return default + step
        _check_number(f"the value of {key!r}", rows[0].value)
        rows[0].value += step
        return rows[0].value

    # Owner and heir

    def give_away(self: This, dest: Destination | HasPid) -> None:
        """Make another process the owner; it gets a message of topic "table.transfer".

        Raises:
            NotOwner: This process is not the owner.
            NoProcess: The other one is dead.
        """
        table = _owned(self)
        table.hand_to(alive_or_raise(_checked(dest), "give it a table"))

    def set_heir(self: This, heir: Destination | HasPid | None) -> None:
        """Say who gets the table when its owner dies; None: nobody, and it is gone."""
        _owned(self).heir = None if heir is None else _checked(heir)

    def drop(self: This) -> None:
        """Delete the whole table."""
        _owned(self).vanish()

    def inherit(self) -> None:
        """Pass on to the heir, or be gone: the owner is dying, and nobody has heard of it yet."""
        heir = self._living_heir()
        if heir is None or heir.pid is self.owner:
            self.vanish()
        else:
            self.hand_to(heir)

    def _living_heir(self) -> Process | None:
        # It is looked for by hand: this runs at a death, where nobody is the current process.
        if isinstance(self.heir, str):
            return self._runtime.names.get(self.heir)
        return None if self.heir is None else self.heir.target

    def hand_to(self, process: Process) -> None:
        """Change the owner, and tell the new one."""
        giver, self.owner = self.owner, process.pid
        self._shelf.take_from(self, giver)
        self._shelf.hand_to(self, process)
        with suppress(MailboxFull):  # it is the owner nevertheless
            process.deliver(Message(TRANSFER, self, giver))

    def vanish(self) -> None:
        """Be gone."""
        self.gone = True
        self._shelf.remove(self)
        self.rows.clear()


def _found(ref: This) -> Table:
    if isinstance(ref, str):
        table = Table.whereis(ref)
        if table is None:
            raise NoTable(f"there is no table {ref!r}: nobody made it, or its owner has ended")
        return table
    if ref.gone:
        raise NoTable(f"{ref!r} is gone: its owner {ref.owner} has ended, or deleted it")
    return ref


def _readable(ref: This) -> Table:
    table = _found(ref)
    if table.access is Access.PRIVATE:
        _check_owner(table, "read")
    return table


def _writable(ref: This) -> Table:
    table = _found(ref)
    if table.access is not Access.PUBLIC:
        _check_owner(table, "write to")
    return table


def _owned(ref: This) -> Table:
    table = _found(ref)
    _check_owner(table, "give away or delete")
    return table


def _check_owner(table: Table, verb: str) -> None:
    me = CURRENT.get(None)
    if me is None or me.pid is not table.owner:
        raise NotOwner(f"only its owner {table.owner} may {verb} {table!r}")


def _check_number(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is no whole number: {value!r}")


def _checked(dest: Destination | HasPid) -> Destination:
    """Give the pid or the name of who may own a table."""
    pid = dest if isinstance(dest, Pid | str) else getattr(dest, "pid", None)
    if isinstance(pid, str):
        check_name(pid)
    elif not isinstance(pid, Pid):
        raise TypeError(f"a table is handed to a pid, a name or a handle; not to {dest!r}")
    return pid
