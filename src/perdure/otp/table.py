"""Table: shared data that every process reads without a request.

A table belongs to one process and is deleted when that dies, unless there is an heir.
Every operation is atomic: `update_counter` and `take` lose nothing.

`Table` is the handle, `TableState` what is behind it, `TableIndex` finds all tables of a runtime by
name and by owner, and the `Rows` classes hold the rows of each kind, without knowing processes.
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
from perdure.process.api import resolve_alive
from perdure.process.event import Message
from perdure.process.names import check_name
from perdure.process.process import Process, current
from perdure.process.relations import Destination
from perdure.process.waiter import CURRENT

TRANSFER = "table.transfer"
"""The topic of the message that tells a process that it now owns a table."""

This: TypeAlias = Union["Table", str]
"""A table by its handle or its name."""


class Kind(StrEnum):
    """What a table may hold under one key."""

    SET = "set"  # one value; a new one replaces it
    ORDERED_SET = "ordered_set"  # one value; keys are sorted
    BAG = "bag"  # many different values
    DUPLICATE_BAG = "duplicate_bag"  # many values


class TableAccess(StrEnum):
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
        access: TableAccess | Literal["private", "protected", "public"] = TableAccess.PROTECTED,
        heir: Destination | HasPid | None = None,
        ttl: Duration = None,
    ) -> None:
        """Create a table that belongs to this process.

        Args:
            name: A name by which others find it.
            kind: What it may hold under one key.
            access: What other processes may do.
            heir: Who gets it when its owner dies, with a message of topic "table.transfer".
            ttl: How long a row lives, unless `insert` says otherwise.

        Raises:
            NameTaken: Another table has the name.
        """
        me = current("Table")
        self._state = state = TableState(
            self, me, name, Kind(kind), TableAccess(access), seconds(ttl)
        )
        state.heir = None if heir is None else _checked(heir)
        state.index.add(state, me)

    def __repr__(self) -> str:
        state = self._state
        name = "" if state.name is None else f" {state.name!r}"
        now = "gone" if state.gone else f"{len(state.rows)} rows, owner {state.owner}"
        return f"<table{name}: {state.kind}, {now}>"

    @property
    def name(self) -> str | None:
        """The name by which others find it."""
        return self._state.name

    @property
    def kind(self) -> Kind:
        """What it may hold under one key."""
        return self._state.kind

    @property
    def access(self) -> "TableAccess":
        """What other processes may do."""
        return self._state.access

    @property
    def owner(self) -> Pid:
        """The process that it belongs to."""
        return self._state.owner

    @property
    def heir(self) -> Destination | None:
        """Who gets it when its owner dies."""
        return self._state.heir

    @property
    def gone(self) -> bool:
        """Whether it was deleted, or its owner died without an heir."""
        return self._state.gone

    @staticmethod
    def whereis(name: str) -> "Table | None":
        """Return the table with a name; None if there is none."""
        check_name(name)
        state = index_of(current("whereis")).find(name)
        return None if state is None else state.handle

    # Reading

    def lookup(self: This, key: Hashable) -> list[Any]:
        """Return the values of a key, oldest first."""
        return [row.value for row in _readable(self).rows.of(key)]

    def get(self: This, key: Hashable, default: Any = None) -> Any:
        """Return the first value of a key; the default if there is none."""
        rows = _readable(self).rows.of(key)
        return rows[0].value if rows else default

    def member(self: This, key: Hashable) -> bool:
        """Whether a key has a value."""
        return bool(_readable(self).rows.of(key))

    def items(self: This) -> list[tuple[Any, Any]]:
        """Return all keys and values; sorted by key if the kind is "ordered_set"."""
        return [(row.key, row.value) for row in _readable(self).rows.every()]

    def select(self: This, predicate: Callable[[Any, Any], bool]) -> list[tuple[Any, Any]]:
        """Return the matching keys and values."""
        return [item for item in Table.items(self) if predicate(*item)]

    def size(self: This) -> int:
        """Return the number of rows."""
        return len(_readable(self).rows)

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        return True  # an empty table is a table

    def __contains__(self, key: Hashable) -> bool:
        return self.member(key)

    # Writing

    def insert(self: This, key: Hashable, value: Any, *, ttl: Duration = None) -> None:
        """Add a value under a key; the kind decides what happens to existing values.

        Args:
            key: The key.
            value: Anything.
            ttl: How long it lives; by default as long as the table says.
        """
        _writable(self).rows.insert(key, value, seconds(ttl))

    def insert_new(self: This, key: Hashable, value: Any, *, ttl: Duration = None) -> bool:
        """Add a value only if the key has none; return whether it was added."""
        rows, limit = _writable(self).rows, seconds(ttl)
        if rows.of(key):
            return False
        rows.insert(key, value, limit)
        return True

    def delete(self: This, key: Hashable) -> None:
        """Remove all values of a key, if there are any."""
        _writable(self).rows.remove(key)

    def take(self: This, key: Hashable) -> list[Any]:
        """Remove all values of a key, and return them."""
        return [row.value for row in _writable(self).rows.remove(key)]

    def clear(self: This) -> None:
        """Remove everything."""
        _writable(self).rows.clear()

    def update_counter(self: This, key: Hashable, step: int = 1, default: int = 0) -> int:
        """Add to the number under a key, and return the sum; its expiry stays the same.

        Args:
            key: The key of the number.
            step: What to add; a negative number subtracts.
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
        state = _owned(self)
        state.hand_to(resolve_alive(_checked(dest), "give it a table"))

    def set_heir(self: This, heir: Destination | HasPid | None) -> None:
        """Set who gets the table when its owner dies; None: nobody, and it is deleted."""
        _owned(self).heir = None if heir is None else _checked(heir)

    def drop(self: This) -> None:
        """Delete the whole table."""
        _owned(self).delete()


class TableState:
    """The state of a table, behind its handles."""

    __slots__ = (
        *("_runtime", "access", "gone", "handle", "heir"),
        *("index", "kind", "name", "owner", "rows"),
    )

    def __init__(
        self,
        handle: Table,
        owner: Process,
        name: str | None,
        kind: Kind,
        access: TableAccess,
        ttl: float | None,
    ) -> None:
        self.handle = handle
        self.name = name
        self.kind = kind
        self.access = access
        self.owner = owner.pid
        self.heir: Destination | None = None
        self.gone = False
        self.rows = make_rows(kind, owner.loop.time, ttl)
        self.index = index_of(owner)
        self._runtime = owner.runtime

    def hand_to(self, process: Process) -> None:
        """Change the owner, and notify the new one."""
        giver, self.owner = self.owner, process.pid
        self.index.take_from(self, giver)
        self.index.give_to(self, process)
        with suppress(MailboxFull):  # it is the owner nevertheless
            process.deliver(Message(TRANSFER, self.handle, giver))

    def pass_on(self) -> None:
        """Pass the table to the heir, or delete it: the owner dies, and nobody is notified yet."""
        # The heir is looked up by hand: at a death there is no current process.
        if isinstance(self.heir, str):
            heir = self._runtime.names.get(self.heir)
        else:
            heir = None if self.heir is None else self.heir.target
        if heir is None or heir.pid is self.owner:
            self.delete()
        else:
            self.hand_to(heir)

    def delete(self) -> None:
        """Delete the table and its rows."""
        self.gone = True
        self.index.remove(self)
        self.rows.clear()


def _found(ref: This) -> TableState:
    if isinstance(ref, str):
        check_name(ref)
        found = index_of(current("find a table")).find(ref)
        if found is None:
            raise NoTable(
                f"there is no table {ref!r}: it was never created, or its owner has ended"
            )
        return found
    state = ref._state  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    if state.gone:
        raise NoTable(f"{ref!r} is gone: its owner {state.owner} has ended, or deleted it")
    return state


def _readable(ref: This) -> TableState:
    state = _found(ref)
    if state.access is TableAccess.PRIVATE:
        _check_owner(state, "read")
    return state


def _writable(ref: This) -> TableState:
    state = _found(ref)
    if state.access is not TableAccess.PUBLIC:
        _check_owner(state, "write to")
    return state


def _owned(ref: This) -> TableState:
    state = _found(ref)
    _check_owner(state, "give away or delete")
    return state


def _check_owner(table: TableState, verb: str) -> None:
    me = CURRENT.get(None)
    if me is None or me.pid is not table.owner:
        raise NotOwner(f"only its owner {table.owner} may {verb} {table.handle!r}")


def _check_number(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is not a whole number: {value!r}")


def _checked(dest: Destination | HasPid) -> Destination:
    """Return the pid or the name of an heir or a new owner, checked."""
    pid = dest if isinstance(dest, Pid | str) else getattr(dest, "pid", None)
    if isinstance(pid, str):
        check_name(pid)
    elif not isinstance(pid, Pid):
        raise TypeError(f"a table is handed to a pid, a name or a handle; not to {dest!r}")
    return pid


class TableIndex:
    """All tables of one runtime, by name and by owner."""

    __slots__ = ("_by_name", "_by_owner")

    def __init__(self) -> None:
        self._by_name: dict[str, TableState] = {}
        self._by_owner: dict[Pid, dict[TableState, None]] = {}

    def find(self, name: str) -> TableState | None:
        """Return the table with a name; None if there is none."""
        return self._by_name.get(name)

    def add(self, table: TableState, owner: Process) -> None:
        """Add a new table.

        Raises:
            NameTaken: Another table has its name.
        """
        if table.name is not None:
            check_name(table.name)
            other = self._by_name.get(table.name)
            if other is not None:
                raise NameTaken(table.name, other.owner)
            self._by_name[table.name] = table
        self.give_to(table, owner)

    def give_to(self, table: TableState, owner: Process) -> None:
        """Record the owner of a table; it has one exit hook, however many tables come and go."""
        owned = self._by_owner.get(owner.pid)
        if owned is None:
            owned = self._by_owner[owner.pid] = {}
            owner.at_exit(partial(self._owner_dies, owner.pid))
        owned[table] = None

    def take_from(self, table: TableState, owner: Pid) -> None:
        """Record that a process no longer owns a table."""
        self._by_owner[owner].pop(table, None)

    def remove(self, table: TableState) -> None:
        """Forget a deleted table."""
        self.take_from(table, table.owner)
        if table.name is not None:
            del self._by_name[table.name]

    def _owner_dies(self, owner: Pid) -> None:
        for table in tuple(self._by_owner[owner]):
            table.pass_on()
        del self._by_owner[owner]


def index_of(process: Process) -> TableIndex:
    """Return the tables of a process's runtime."""
    return process.runtime.own(TableIndex)


# The rows of a table: how each kind keeps them, and until when

FOREVER = float("inf")

# The expiry heap is cleaned when most of its rows are gone, but not below this size.
_FEW_ENDS = 64


class Row:
    """One value under one key, until it expires."""

    __slots__ = ("end", "key", "value")

    def __init__(self, key: Any, value: Any, end: float) -> None:
        self.key = key
        self.value = value
        self.end = end


C = TypeVar("C", bound=Collection[Row])


class Rows(Generic[C]):
    """The rows of one table. An expired row is never returned, and soon deleted."""

    def __init__(self, now: Callable[[], float], ttl: float | None) -> None:
        """Start empty.

        Args:
            now: Returns the time.
            ttl: How long a row lives that is inserted without a ttl; None: for ever.
        """
        self._now = now
        self._ttl = ttl
        self._by_key: dict[Hashable, C] = {}
        self._ends: list[tuple[float, int, Row]] = []
        self._numbers = count()  # breaks ties between rows that expire together
        self._size = 0

    # What differs between the kinds

    def place(self, key: Any) -> Hashable:
        """Return the key of the dict that represents a key of the table."""
        return strict(key)

    def _add(self, row: Row) -> Row:
        """Add a row, and return the one that is stored now.

        Raises:
            TypeError: The key cannot be used; nothing was changed.
        """
        raise NotImplementedError

    def _drop(self, row: Row) -> None:
        """Forget a row."""
        raise NotImplementedError

    def _in_order(self) -> Iterable[C]:
        return self._by_key.values()

    # What is the same

    def of(self, key: Any) -> list[Row]:
        """Return the rows of a key, oldest first."""
        rows = self._by_key.get(self.place(key), ())
        if not self._ends:  # no row of this table expires
            return list(rows)
        now = self._now()
        return [row for row in rows if row.end > now]

    def every(self) -> list[Row]:
        """Return all rows."""
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
        """Remove all rows of a key, and return them."""
        self._sweep()
        rows = list(self._by_key.get(self.place(key), ()))
        for row in rows:
            self._drop(row)
        return rows

    def clear(self) -> None:
        """Delete all rows."""
        self._by_key.clear()
        self._ends.clear()
        self._size = 0

    def _sweep(self) -> None:
        """Delete the expired rows; called at each write, so that no timer is needed."""
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
    """Many rows for each key, in a dict as an ordered set, so that removal needs no search."""

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
                other.end = row.end  # its ttl starts again
                return other
        return super()._add(row)


_KINDS: dict[Kind, type[Rows[Any]]] = {
    Kind.SET: SetRows,
    Kind.ORDERED_SET: OrderedRows,
    Kind.BAG: BagRows,
    Kind.DUPLICATE_BAG: DuplicateBagRows,
}


def make_rows(kind: Kind, now: Callable[[], float], ttl: float | None) -> Rows[Any]:
    """Return the rows of an empty table."""
    return _KINDS[kind](now, ttl)
