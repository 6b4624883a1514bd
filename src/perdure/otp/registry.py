"""Registry: find processes by key, with a value for each entry.

With unique keys a registry names servers, with duplicate keys it is a list of subscribers.
A process registers only itself, and its entries are removed at its death, before anybody is
notified.

The entries (`RegistryTable`) are kept outside the registry's process, so a lookup never waits.
They live and die with that process, which does nothing else.
"""

import asyncio
import types
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeAlias, Union, cast

from perdure.base.errors import (
    MailboxFull,
    NameTaken,
    NoProcess,
    NotOwner,
    NotRegistered,
    ProcError,
    safe_text,
)
from perdure.base.pid import Pid
from perdure.otp.address import Via
from perdure.otp.start import Ack, Stoppable, start
from perdure.otp.supervision.spec import ChildSpec
from perdure.process.api import events, resolve_alive, send, wait_exit
from perdure.process.event import Cancel
from perdure.process.lifecycle import cancel
from perdure.process.names import check_name
from perdure.process.process import Process, current
from perdure.process.waiter import current_waiter


class Keys(StrEnum):
    """How many entries a key of a registry may have."""

    UNIQUE = "unique"  # one
    DUPLICATE = "duplicate"  # any number, also by one process


This: TypeAlias = Union["Registry", Pid, str]
"""A registry by its handle, its pid or its name."""

Found: TypeAlias = tuple[Pid, Any]
"""An entry as others see it: who made it, and its value."""


class Registry(Stoppable):
    """A registry; this is the handle to it.

    Every method may also be called on the class, with the registry's name or pid in place of
    the handle: `Registry.lookup("rooms", "lobby")`.
    """

    __slots__ = ("_table",)

    def __init__(self, table: "RegistryTable") -> None:
        """Make only the handle; `start_link` also starts the process of the registry."""
        self._table = table

    @property
    def pid(self) -> Pid:
        """The process that the registry lives and dies with."""
        return self._table.pid

    def __repr__(self) -> str:
        return f"<registry {self._table.name!r} {self.pid}>"

    # Life

    @classmethod
    async def start_link(
        cls,
        *,
        keys: Keys | Literal["unique", "duplicate"],
        name: str,
        listeners: Iterable[str] = (),
        meta: Mapping[Hashable, Any] | None = None,
    ) -> "Registry":
        """Start a registry, linked to this process.

        Args:
            keys: Whether a key may have one entry or many.
            name: The name of its process, by which others find it.
            listeners: Names of processes that get a message for each `register` and `unregister`.
            meta: Values that belong to the registry itself.

        Raises:
            NameTaken: Another process has the name.
        """
        check_name(name)
        heard = _checked_listeners(listeners)
        _, table = await start(cls, _serve, name, Keys(keys), heard, name=name)
        for key, value in (meta or {}).items():
            table.meta[strict(key)] = value
        return cls(table)

    @classmethod
    def child(
        cls,
        *,
        keys: Keys | Literal["unique", "duplicate"],
        name: str,
        listeners: Iterable[str] = (),
        meta: Mapping[Hashable, Any] | None = None,
        id: Hashable = None,
    ) -> ChildSpec:
        """Return the spec of a registry as a supervisor's child; the id is by default its name."""
        check_name(name)
        heard = _checked_listeners(listeners)
        begin = partial(cls.start_link, keys=Keys(keys), name=name, listeners=heard, meta=meta)
        return ChildSpec(id or name, begin)

    async def stop(self: This) -> None:
        """Stop the registry normally, and wait until it has ended."""
        process: Process = _table_of(self).pid.target
        cancel(process, current("stop").pid, None)
        await wait_exit(process)

    # Entries of this process

    def register(self: This, key: Hashable, value: Any = None) -> None:
        """Register this process under a key.

        Raises:
            NameTaken: The keys are unique and this one is taken, perhaps by this process.
        """
        _table_of(self).add(current("register"), key, value)

    def unregister(self: This, key: Hashable) -> None:
        """Remove all entries of this process under a key, if there are any."""
        _table_of(self).remove(current("unregister").pid, key, lambda _: True)

    def unregister_match(self: This, key: Hashable, predicate: Callable[[Any], bool]) -> None:
        """Remove the entries of this process under a key whose values match."""
        _table_of(self).remove(current("unregister_match").pid, key, predicate)

    def update_value(self: This, key: Hashable, fn: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Change the value of this process's entry; return the new value and the old one.

        Raises:
            NotRegistered: There is no such entry.
            NotOwner: It belongs to another process.
            ValueError: The keys are not unique.
        """
        table = _table_of(self)
        table.check_unique("update_value")
        for entry in table.of(key):
            if entry.pid is not current("update_value").pid:
                raise NotOwner(f"the entry {spell(key)!r} belongs to {entry.pid}")
            old, entry.value = entry.value, fn(entry.value)
            return entry.value, old
        raise NotRegistered(spell(key))

    # Lookups

    def lookup(self: This, key: Hashable) -> list[Found]:
        """Return the entries of a key, oldest first."""
        return [(entry.pid, entry.value) for entry in _table_of(self).of(key)]

    def match(self: This, key: Hashable, predicate: Callable[[Any], bool]) -> list[Found]:
        """Return the entries of a key whose values match."""
        return [found for found in Registry.lookup(self, key) if predicate(found[1])]

    def select(
        self: This, predicate: Callable[[Any, Pid, Any], bool]
    ) -> list[tuple[Any, Pid, Any]]:
        """Return key, pid and value of all matching entries."""
        found = [(entry.key, entry.pid, entry.value) for entry in _table_of(self).every()]
        return [each for each in found if predicate(*each)]

    def keys(self: This, pid: Pid | None = None) -> list[Any]:
        """Return the keys of a process, by default of this one; once for each entry."""
        return [entry.key for entry in _table_of(self).owned_by(pid or current("keys").pid)]

    def values(self: This, key: Hashable, pid: Pid | None = None) -> list[Any]:
        """Return the values that a process, by default this one, has under a key."""
        owner = pid or current("values").pid
        return [value for found, value in Registry.lookup(self, key) if found is owner]

    def count(self: This) -> int:
        """Return the number of entries."""
        return len(_table_of(self))

    def whereis(self: This, key: Hashable) -> Pid | None:
        """Return the process of a unique key; None if there is none."""
        table = _table_of(self)
        table.check_unique("whereis")
        return next((entry.pid for entry in table.of(key)), None)

    def dispatch(self: This, key: Hashable, fn: Callable[[list[Found]], object]) -> None:
        """Call `fn` synchronously with the entries of a key; do nothing if there are none."""
        if iscoroutinefunction(fn):
            raise TypeError("dispatch calls a plain function, which may `send`; not an `async def`")
        if found := Registry.lookup(self, key):
            fn(found)

    # Locks, names, and values of its own

    @asynccontextmanager
    async def lock(self: This, key: Hashable) -> AsyncGenerator[None]:
        """Hold a lock inside the `async with` block; it is released if its holder dies.

        A lock has nothing to do with the entry of the same key.
        """
        locks = _table_of(self).locks
        turn = await locks.take(strict(key), current("lock"))
        try:
            yield
        finally:
            locks.leave(turn)

    def via(self: This, key: Hashable, value: Any = None) -> Via:
        """Return a name that this registry keeps, for `name=` and in place of a pid.

        Called on the class, the registry need not exist yet.

        Raises:
            ValueError: The keys are not unique.
        """
        strict(key)
        if isinstance(self, Registry):
            self._table.check_unique("via")
            self = self._table.name  # noqa: PLW0642 - so the name outlives a restart of the registry
        return _Name(self, key, value)

    def put_meta(self: This, key: Hashable, value: Any) -> None:
        """Store a value that belongs to the registry itself."""
        _table_of(self).meta[strict(key)] = value

    def meta(self: This, key: Hashable, default: Any = None) -> Any:
        """Return a value that belongs to the registry itself."""
        return _table_of(self).meta.get(strict(key), default)

    def delete_meta(self: This, key: Hashable) -> None:
        """Forget a value that belongs to the registry itself."""
        _table_of(self).meta.pop(strict(key), None)


class _Name(Via):
    """A key of a registry as a name."""

    __slots__ = ("_key", "_registry", "_value")

    def __init__(self, registry: Pid | str, key: Hashable, value: Any) -> None:
        self._registry = registry
        self._key = key
        self._value = value

    def __repr__(self) -> str:
        return f"<via {self}>"

    def __str__(self) -> str:
        return f"{self._registry}/{spell(self._key)}"

    @property
    def pid(self) -> Pid:
        pid = Registry.whereis(self._registry, self._key)
        if pid is None:
            raise NotRegistered(str(self))
        return pid

    def check_free(self) -> None:
        table = _table_of(self._registry)
        table.check_unique("via")
        table.check_free(self._key)

    def give(self, process: Process) -> None:
        _table_of(self._registry).add(process, self._key, self._value)


async def _serve(ack: Ack, name: str, keys: Keys, listeners: tuple[str, ...]) -> None:
    """Run the process that the table belongs to, which only waits until it is cancelled."""
    me = current("registry")
    table = RegistryTable(me, name, keys, listeners)
    me.args = (table,)  # by which it is found, see `_table_of`
    ack.ready(me, table)
    async for event in events():
        if isinstance(event, Cancel):
            return


def _table_of(ref: This) -> "RegistryTable":
    """Return the table of a living registry."""
    if isinstance(ref, Registry):
        table = ref._table  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        if table.pid.target is None:
            raise NoProcess(table.pid, "use the registry")
        return table
    process = resolve_alive(ref, "use the registry")
    if process.function is not _serve or not isinstance(process.args[0], RegistryTable):
        raise TypeError(f"{ref!r} is not a registry")
    return process.args[0]


def _checked_listeners(listeners: Iterable[str]) -> tuple[str, ...]:
    if isinstance(listeners, str):
        raise TypeError(f"listeners is a list of names, not the text {listeners!r}")
    names = tuple(listeners)
    for name in names:
        check_name(name)
    return names


# The table of a registry: its entries by key and by process


@dataclass(eq=False, slots=True)
class RegistryEntry:
    """One entry; compared by identity."""

    key: Hashable
    pid: Pid
    value: Any


class RegistryTable:
    """All entries of one registry."""

    def __init__(self, owner: Process, name: str, keys: Keys, listeners: tuple[str, ...]) -> None:
        """Start empty; the table is closed when its owner dies."""
        self.pid = owner.pid
        self.name = name
        self.unique = keys is Keys.UNIQUE
        self.locks = Locks(owner.pid)
        self.meta: dict[Hashable, Any] = {}
        self._listeners = listeners
        # Dicts as ordered sets, so that one of a million subscribers leaves without a search.
        self._by_key: dict[Hashable, dict[RegistryEntry, None]] = {}
        self._by_pid: dict[Pid, dict[RegistryEntry, None]] = {}
        owner.at_exit(self._close)

    def of(self, key: Hashable) -> Collection[RegistryEntry]:
        """Return the entries of a key, oldest first."""
        return self._by_key.get(strict(key), ())

    def owned_by(self, pid: Pid) -> Collection[RegistryEntry]:
        """Return the entries of a process, oldest first."""
        return self._by_pid.get(pid, ())

    def every(self) -> Iterable[RegistryEntry]:
        """Return all entries."""
        return (entry for entries in self._by_key.values() for entry in entries)

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def add(self, process: Process, key: Hashable, value: Any) -> None:
        """Register a process, and notify the listeners.

        Raises:
            NameTaken: The key must be unique and is taken.
        """
        self.check_free(key)
        owned = self._by_pid.get(process.pid)
        if owned is None:
            owned = self._by_pid[process.pid] = {}
            process.at_exit(partial(self._forget, process.pid))
        entry = RegistryEntry(key, process.pid, value)
        self._by_key.setdefault(strict(key), {})[entry] = None
        owned[entry] = None
        self._tell("register", self.name, key, process.pid, value)

    def check_free(self, key: Hashable) -> None:
        """Raise if keys are unique and this one is taken."""
        if self.unique:
            for entry in self.of(key):
                raise NameTaken(spell(key), entry.pid)

    def check_unique(self, what: str) -> None:
        """Raise unless keys are unique."""
        if not self.unique:
            raise ValueError(f"{what} needs unique keys; those of registry {self.name!r} are not")

    def remove(self, pid: Pid, key: Hashable, predicate: Callable[[Any], bool]) -> None:
        """Remove the matching entries of a process under a key, and notify the listeners."""
        for entry in tuple(self.of(key)):
            if entry.pid is pid and predicate(entry.value):
                self._drop(entry)
                del self._by_pid[pid][entry]
                self._tell("unregister", self.name, key, pid)

    def _forget(self, pid: Pid) -> None:
        """Remove the entries of a dying process; listeners that want to know monitor it."""
        for entry in self._by_pid.pop(pid, ()):
            self._drop(entry)

    def _drop(self, entry: RegistryEntry) -> None:
        place = strict(entry.key)
        entries = self._by_key[place]
        del entries[entry]
        if not entries:
            del self._by_key[place]

    def _close(self) -> None:
        self._by_key.clear()
        self._by_pid.clear()
        self.locks.wake_all()

    def _tell(self, topic: str, *payload: Any) -> None:
        for listener in self._listeners:
            # It may be restarting, or slow: the registration must not fail because of that.
            with suppress(NotRegistered, MailboxFull):
                send(listener, topic, list(payload))


def spell(key: Hashable) -> str:
    """Return a key as the text of a name."""
    return key if isinstance(key, str) else safe_text(key)


# Locks by key: one holder at a time, first come first served, released when the holder dies


class LockTurn:
    """A place in the queue for one lock; the first in the queue holds it."""

    __slots__ = ("holder", "key", "task", "waiter")

    def __init__(self, key: Hashable, holder: Pid) -> None:
        self.key = key
        self.holder = holder  # the process, which may take other locks in its tasks
        self.task = asyncio.current_task()
        self.waiter = current_waiter()


class Locks:
    """The queues of all keys that are locked now."""

    __slots__ = ("_lines", "_owner", "_turns")

    def __init__(self, owner: Pid) -> None:
        """Belong to a process: when it dies, all waiters are woken."""
        self._owner = owner
        self._lines: dict[Hashable, dict[LockTurn, None]] = {}
        self._turns: dict[Pid, dict[LockTurn, None]] = {}

    @types.coroutine
    def take(self, key: Hashable, holder: Process) -> Generator[Any, None, LockTurn]:
        """Wait for the lock, and return the place that holds it.

        Raises:
            ProcError: This code holds it already, and would wait for itself.
            NoProcess: The process that the locks belong to is dead.
        """
        turn = LockTurn(key, holder.pid)
        line = self._lines.setdefault(key, {})
        if any(other.task is turn.task for other in line):
            raise ProcError("this process already holds the lock: it would wait for itself")
        line[turn] = None
        self._turns_of(holder)[turn] = None
        try:
            while next(iter(line), None) is not turn:
                self._check_open()
                yield turn.waiter.pause()
            self._check_open()
        except BaseException:
            self.leave(turn)
            raise
        return turn

    def _turns_of(self, holder: Process) -> dict[LockTurn, None]:
        turns = self._turns.get(holder.pid)
        if turns is None:
            turns = self._turns[holder.pid] = {}
            # A process that was abandoned never leaves its `async with` blocks.
            holder.at_exit(partial(self._forget, holder.pid))
        return turns

    def _check_open(self) -> None:
        if self._owner.target is None:
            raise NoProcess(self._owner, "lock a key in it")

    def leave(self, turn: LockTurn) -> None:
        """Release the lock, or leave the queue; doing it twice is harmless."""
        line = self._lines.get(turn.key, {})
        if turn not in line:
            return
        del line[turn]
        self._turns[turn.holder].pop(turn, None)
        if line:
            next(iter(line)).waiter.wake()
        else:
            del self._lines[turn.key]

    def _forget(self, holder: Pid) -> None:
        """Release what a dead process held or waited for."""
        for turn in tuple(self._turns[holder]):
            self.leave(turn)
        del self._turns[holder]

    def wake_all(self) -> None:
        """Wake all waiters, because the owner dies."""
        for line in self._lines.values():
            for turn in line:
                turn.waiter.wake()


# Keys that differ where Python's own do not: 1, 1.0 and True are three keys


def strict(key: Hashable) -> Hashable:
    """Return a key for a dict that includes the type: of the value, and of the parts of tuples.

    Raises:
        TypeError: The key cannot be hashed.
    """
    kind = type(key)
    if kind is tuple:
        return (kind, *map(strict, cast("tuple[Hashable, ...]", key)))
    if kind is frozenset:
        return kind, frozenset(map(strict, cast("frozenset[Hashable]", key)))
    hash(key)  # checked here, so that an error names the key and not the pair
    return kind, key


def same(one: object, other: object) -> bool:
    """Whether two values are equal and of one type."""
    return type(one) is type(other) and one == other
