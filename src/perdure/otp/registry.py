"""Registry: find processes by key, with a value for each entry.

With unique keys a registry names servers, with duplicate keys it is a list of subscribers.
The entries are kept beside the registry's process and not in it: a look-up waits for nobody.
A process enters only itself, and its entries vanish when it dies, before anybody hears of it.
"""

from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Literal

from perdure.base.errors import (
    MailboxFull,
    NameTaken,
    NoProcess,
    NotOwner,
    NotRegistered,
    safe_text,
)
from perdure.base.pid import Pid
from perdure.otp.key import strict
from perdure.otp.lock import Locks
from perdure.otp.start import Ack, start
from perdure.otp.via import Via
from perdure.process.current import current
from perdure.process.event import Cancel
from perdure.process.messaging import alive_or_raise, events, send
from perdure.process.names import check_name
from perdure.process.process import Process
from perdure.process.signal import cancel
from perdure.process.spawner import joined

Found = tuple[Pid, Any]
"""An entry as others see it: who made it, and its value."""


class Keys(StrEnum):
    """How many entries a key may have."""

    UNIQUE = "unique"
    DUPLICATE = "duplicate"


@dataclass(eq=False, slots=True)
class _Entry:
    """One entry; two of them are never the same, whatever they hold."""

    key: Hashable
    pid: Pid
    value: Any


class Registry:
    """A registry, and the handle to it.

    Every method may also be called on the class, with the registry's name or pid in place of
    the instance: `Registry.lookup("rooms", "lobby")`.
    """

    def __init__(self, keys: Keys, name: str, listeners: tuple[str, ...]) -> None:
        """Use `start_link` instead, which also starts the process that it belongs to."""
        self.name = name
        self.pid: Pid
        self._unique = keys is Keys.UNIQUE
        self._listeners = listeners
        self._meta: dict[Hashable, Any] = {}
        # Dicts as ordered sets, so that one of a million subscribers leaves without a search.
        self._by_key: dict[Hashable, dict[_Entry, None]] = {}
        self._by_pid: dict[Pid, dict[_Entry, None]] = {}
        self._locks: Locks

    def __repr__(self) -> str:
        return f"<registry {self.name!r} {self.pid}>"

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
            keys: May a key have one entry, or many.
            name: The name of its process, by which others find it.
            listeners: Names of processes that get a message for each `register` and `unregister`.
            meta: Values that belong to the registry itself.

        Raises:
            NameTaken: Another process has the name.
        """
        check_name(name)
        if isinstance(listeners, str):
            raise TypeError(f"listeners is a list of names, not the text {listeners!r}")
        names = tuple(listeners)
        for listener in names:
            check_name(listener)
        registry = cls(Keys(keys), name, names)
        for key, value in (meta or {}).items():
            registry._meta[strict(key)] = value
        await start(cls, _serve, registry, name=name)
        return registry

    async def stop(self: "Registry | Pid | str") -> None:
        """End the registry normally, and wait until it is gone."""
        process: Process = _found(self).pid.target
        cancel(process, current("stop").pid, None)
        await joined(process)

    def open(self, process: Process) -> None:
        """Belong to a process from now on."""
        self.pid = process.pid
        self._locks = Locks(process.pid)
        process.tie().at_death(self._close)

    def _close(self) -> None:
        self._by_key.clear()
        self._by_pid.clear()
        self._locks.wake_all()

    # Entries of this process

    def register(self: "Registry | Pid | str", key: Hashable, value: Any = None) -> None:
        """Enter this process under a key.

        Raises:
            NameTaken: The keys are unique and this one is taken, be it by this process.
        """
        _found(self).add(current("register"), key, value)

    def unregister(self: "Registry | Pid | str", key: Hashable) -> None:
        """Remove all entries of this process under a key; that there is none is fine."""
        _found(self)._remove(key, lambda _: True)  # noqa: SLF001 - `self` may be a name

    def unregister_match(
        self: "Registry | Pid | str", key: Hashable, predicate: Callable[[Any], bool]
    ) -> None:
        """Remove those entries of this process under a key whose values fit."""
        _found(self)._remove(key, predicate)  # noqa: SLF001

    def update_value(
        self: "Registry | Pid | str", key: Hashable, fn: Callable[[Any], Any]
    ) -> tuple[Any, Any]:
        """Change the value of this process' entry; give the new value and the old one.

        Raises:
            NotRegistered: There is no such entry.
            NotOwner: It belongs to another process.
            ValueError: The keys are not unique.
        """
        registry = _found(self)
        if not registry._unique:
            raise ValueError(f"update_value needs unique keys; those of {registry} are not")
        entry = next(iter(registry._of(key)), None)
        if entry is None:
            raise NotRegistered(_spell(key))
        if entry.pid is not current("update_value").pid:
            raise NotOwner(f"the entry {_spell(key)!r} belongs to {entry.pid}")
        old, entry.value = entry.value, fn(entry.value)
        return entry.value, old

    def add(self, process: Process, key: Hashable, value: Any) -> None:
        """Enter a process; behind `register` and behind names by `via`."""
        place = strict(key)
        self.check_free(key)
        owned = self._by_pid.get(process.pid)
        if owned is None:
            owned = self._by_pid[process.pid] = {}
            process.tie().at_death(partial(self._forget, process.pid))
        entry = _Entry(key, process.pid, value)
        self._by_key.setdefault(place, {})[entry] = None
        owned[entry] = None
        self._tell("register", self.name, key, process.pid, value)

    def check_free(self, key: Hashable) -> None:
        """Refuse a key that must be unique and is taken."""
        if self._unique:
            for entry in self._of(key):
                raise NameTaken(_spell(key), entry.pid)

    def _remove(self, key: Hashable, predicate: Callable[[Any], bool]) -> None:
        me = current("unregister").pid
        for entry in tuple(self._of(key)):
            if entry.pid is me and predicate(entry.value):
                self._drop(entry)
                del self._by_pid[me][entry]
                self._tell("unregister", self.name, key, me)

    def _forget(self, pid: Pid) -> None:
        """Remove what a process leaves at its death; listeners monitor if they want to know."""
        for entry in self._by_pid.pop(pid, ()):
            self._drop(entry)
        self._locks.forget(pid)

    def _drop(self, entry: _Entry) -> None:
        place = strict(entry.key)
        entries = self._by_key[place]
        del entries[entry]
        if not entries:
            del self._by_key[place]

    def _tell(self, topic: str, *payload: Any) -> None:
        for listener in self._listeners:
            # It may be about to be restarted, or slow: that must not fail who registers.
            with suppress(NotRegistered, MailboxFull):
                send(listener, topic, list(payload))

    # What everybody may ask

    def _of(self, key: Hashable) -> Iterable[_Entry]:
        return self._by_key.get(strict(key), ())

    def lookup(self: "Registry | Pid | str", key: Hashable) -> list[Found]:
        """Give the entries of a key, oldest first."""
        return [(entry.pid, entry.value) for entry in _found(self)._of(key)]

    def match(
        self: "Registry | Pid | str", key: Hashable, predicate: Callable[[Any], bool]
    ) -> list[Found]:
        """Give the entries of a key whose values fit."""
        return [found for found in Registry.lookup(self, key) if predicate(found[1])]

    def select(
        self: "Registry | Pid | str", predicate: Callable[[Any, Pid, Any], bool]
    ) -> list[tuple[Any, Pid, Any]]:
        """Give key, pid and value of all entries that fit."""
        every = [entry for entries in _found(self)._by_key.values() for entry in entries]
        found = [(entry.key, entry.pid, entry.value) for entry in every]
        return [each for each in found if predicate(*each)]

    def keys(self: "Registry | Pid | str", pid: Pid | None = None) -> list[Any]:
        """Give the keys of a process, by default of this one; once for each entry."""
        owner = pid or current("keys").pid
        return [entry.key for entry in _found(self)._by_pid.get(owner, ())]

    def values(self: "Registry | Pid | str", key: Hashable, pid: Pid | None = None) -> list[Any]:
        """Give the values that a process, by default this one, has under a key."""
        owner = pid or current("values").pid
        return [value for found, value in Registry.lookup(self, key) if found is owner]

    def count(self: "Registry | Pid | str") -> int:
        """Count all entries."""
        return sum(map(len, _found(self)._by_key.values()))

    def whereis(self: "Registry | Pid | str", key: Hashable) -> Pid | None:
        """Give the process of a unique key."""
        return next((entry.pid for entry in _found(self)._of(key)), None)

    def dispatch(
        self: "Registry | Pid | str", key: Hashable, fn: Callable[[list[Found]], object]
    ) -> None:
        """Call `fn`, here and now, with the entries of a key; not at all if there are none."""
        if iscoroutinefunction(fn):
            raise TypeError("dispatch calls a plain function, which may `send`; not an `async def`")
        if found := Registry.lookup(self, key):
            fn(found)

    # Locks, names and values of its own

    @asynccontextmanager
    async def lock(self: "Registry | Pid | str", key: Hashable) -> AsyncGenerator[None]:
        """Hold a lock inside the `async with` block; it is free when its holder dies.

        A lock has nothing to do with the entry of the same key.
        """
        locks = _found(self)._locks
        turn = await locks.take(strict(key), current("lock").pid)
        try:
            yield
        finally:
            locks.leave(turn)

    def via(self: "Registry | Pid | str", key: Hashable, value: Any = None) -> Via:
        """Give a name that this registry keeps, for `name=` and in place of a pid."""
        if isinstance(self, Registry):
            self._check_unique()
        strict(key)
        return _Name(self.name if isinstance(self, Registry) else self, key, value)

    def _check_unique(self) -> None:
        if not self._unique:
            raise ValueError(f"a name needs unique keys; those of {self} are not")

    def put_meta(self: "Registry | Pid | str", key: Hashable, value: Any) -> None:
        """Keep a value that belongs to the registry itself."""
        _found(self)._meta[strict(key)] = value  # noqa: SLF001

    def meta(self: "Registry | Pid | str", key: Hashable, default: Any = None) -> Any:
        """Give a value that belongs to the registry itself."""
        return _found(self)._meta.get(strict(key), default)  # noqa: SLF001

    def delete_meta(self: "Registry | Pid | str", key: Hashable) -> None:
        """Forget a value that belongs to the registry itself."""
        _found(self)._meta.pop(strict(key), None)  # noqa: SLF001


class _Name(Via):
    """A key as a name. It knows the registry by name, so it outlives a restart of that."""

    __slots__ = ("_key", "_ref", "_value")

    def __init__(self, ref: Pid | str, key: Hashable, value: Any) -> None:
        self._ref = ref
        self._key = key
        self._value = value

    def __repr__(self) -> str:
        return f"<{self._key!r} in registry {self._ref}>"

    def __str__(self) -> str:
        return f"{self._ref}/{_spell(self._key)}"

    @property
    def pid(self) -> Pid:
        pid = _found(self._ref).whereis(self._key)
        if pid is None:
            raise NotRegistered(str(self))
        return pid

    def check_free(self) -> None:
        registry = _found(self._ref)
        registry._check_unique()  # noqa: SLF001
        registry.check_free(self._key)

    def give(self, process: Process) -> None:
        _found(self._ref).add(process, self._key, self._value)


async def _serve(ack: Ack, registry: Registry) -> None:
    """Be the process that the registry belongs to: it only lives, until it is cancelled."""
    me = current("registry")
    registry.open(me)
    ack.ready(me)
    async for event in events():
        if isinstance(event, Cancel):
            return


def _found(ref: Registry | Pid | str) -> Registry:
    """Give the living registry behind a handle, a pid or a name."""
    if not isinstance(ref, Registry):
        process = alive_or_raise(ref, "use the registry")
        if process.function is not _serve:
            raise TypeError(f"{ref!r} is no registry")
        ref = process.args[1]
    if ref.pid.target is None:
        raise NoProcess(ref.pid, "use the registry")
    return ref


def _spell(key: Hashable) -> str:
    return key if isinstance(key, str) else safe_text(key)
