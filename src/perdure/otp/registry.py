"""Registry: find processes by key, with a value for each entry.

With unique keys a registry names servers, with duplicate keys it is a list of subscribers.
A process enters only itself, and its entries vanish when it dies, before anybody hears of it.
"""

from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeAlias, Union

from perdure.base.errors import NoProcess, NotOwner, NotRegistered
from perdure.base.pid import Pid
from perdure.otp.book import Book, Keys, spell
from perdure.otp.key import strict
from perdure.otp.spec import ChildSpec
from perdure.otp.start import Ack, start
from perdure.otp.stoppable import Stoppable
from perdure.otp.via import Via
from perdure.process.current import current
from perdure.process.event import Cancel
from perdure.process.messaging import alive_or_raise, events
from perdure.process.names import check_name
from perdure.process.process import Process
from perdure.process.signal import cancel
from perdure.process.spawner import joined

This: TypeAlias = Union["Registry", Pid, str]
"""A registry by its handle, its pid or its name."""

Found: TypeAlias = tuple[Pid, Any]
"""An entry as others see it: who made it, and its value."""


class Registry(Stoppable):
    """A registry; this is the handle to it.

    Every method may also be called on the class, with the registry's name or pid in place of
    the handle: `Registry.lookup("rooms", "lobby")`.
    """

    __slots__ = ("book",)

    def __init__(self, book: Book) -> None:
        """Use `start_link` instead, which also starts the process that the book belongs to."""
        self.book = book

    @property
    def pid(self) -> Pid:
        """The process that the registry lives and dies with."""
        return self.book.pid

    def __repr__(self) -> str:
        return f"<registry {self.book.name!r} {self.pid}>"

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
        heard = _checked_listeners(listeners)
        _, book = await start(cls, _serve, name, Keys(keys), heard, name=name)
        for key, value in (meta or {}).items():
            book.meta[strict(key)] = value
        return cls(book)

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
        """Describe a registry as the child of a supervisor; its id is by default its name."""
        check_name(name)
        heard = _checked_listeners(listeners)
        begin = partial(cls.start_link, keys=Keys(keys), name=name, listeners=heard, meta=meta)
        return ChildSpec(id or name, begin)

    async def stop(self: This) -> None:
        """End the registry normally, and wait until it is gone."""
        process: Process = _book(self).pid.target
        cancel(process, current("stop").pid, None)
        await joined(process)

    # Entries of this process

    def register(self: This, key: Hashable, value: Any = None) -> None:
        """Enter this process under a key.

        Raises:
            NameTaken: The keys are unique and this one is taken, be it by this process.
        """
        _book(self).add(current("register"), key, value)

    def unregister(self: This, key: Hashable) -> None:
        """Remove all entries of this process under a key; that there is none is fine."""
        _book(self).remove(current("unregister").pid, key, lambda _: True)

    def unregister_match(self: This, key: Hashable, predicate: Callable[[Any], bool]) -> None:
        """Remove those entries of this process under a key whose values fit."""
        _book(self).remove(current("unregister_match").pid, key, predicate)

    def update_value(self: This, key: Hashable, fn: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Change the value of this process' entry; give the new value and the old one.

        Raises:
            NotRegistered: There is no such entry.
            NotOwner: It belongs to another process.
            ValueError: The keys are not unique.
        """
        book = _book(self)
        book.check_unique("update_value")
        for entry in book.of(key):
            if entry.pid is not current("update_value").pid:
                raise NotOwner(f"the entry {spell(key)!r} belongs to {entry.pid}")
            old, entry.value = entry.value, fn(entry.value)
            return entry.value, old
        raise NotRegistered(spell(key))

    # What everybody may ask

    def lookup(self: This, key: Hashable) -> list[Found]:
        """Give the entries of a key, oldest first."""
        return [(entry.pid, entry.value) for entry in _book(self).of(key)]

    def match(self: This, key: Hashable, predicate: Callable[[Any], bool]) -> list[Found]:
        """Give the entries of a key whose values fit."""
        return [found for found in Registry.lookup(self, key) if predicate(found[1])]

    def select(
        self: This, predicate: Callable[[Any, Pid, Any], bool]
    ) -> list[tuple[Any, Pid, Any]]:
        """Give key, pid and value of all entries that fit."""
        found = [(entry.key, entry.pid, entry.value) for entry in _book(self).every()]
        return [each for each in found if predicate(*each)]

    def keys(self: This, pid: Pid | None = None) -> list[Any]:
        """Give the keys of a process, by default of this one; once for each entry."""
        return [entry.key for entry in _book(self).owned_by(pid or current("keys").pid)]

    def values(self: This, key: Hashable, pid: Pid | None = None) -> list[Any]:
        """Give the values that a process, by default this one, has under a key."""
        owner = pid or current("values").pid
        return [value for found, value in Registry.lookup(self, key) if found is owner]

    def count(self: This) -> int:
        """Count all entries."""
        return len(_book(self))

    def whereis(self: This, key: Hashable) -> Pid | None:
        """Give the process of a unique key."""
        book = _book(self)
        book.check_unique("whereis")
        return next((entry.pid for entry in book.of(key)), None)

    def dispatch(self: This, key: Hashable, fn: Callable[[list[Found]], object]) -> None:
        """Call `fn`, here and now, with the entries of a key; not at all if there are none."""
        if iscoroutinefunction(fn):
            raise TypeError("dispatch calls a plain function, which may `send`; not an `async def`")
        if found := Registry.lookup(self, key):
            fn(found)

    # Locks, names, and values of its own

    @asynccontextmanager
    async def lock(self: This, key: Hashable) -> AsyncGenerator[None]:
        """Hold a lock inside the `async with` block; it is free when its holder dies.

        A lock has nothing to do with the entry of the same key.
        """
        locks = _book(self).locks
        turn = await locks.take(strict(key), current("lock"))
        try:
            yield
        finally:
            locks.leave(turn)

    def via(self: This, key: Hashable, value: Any = None) -> Via:
        """Give a name that this registry keeps, for `name=` and in place of a pid.

        On the class, the registry need not be there yet.

        Raises:
            ValueError: The keys are not unique.
        """
        strict(key)
        if isinstance(self, Registry):
            self.book.check_unique("via")
            self = self.book.name  # noqa: PLW0642 - so the name outlives a restart of the registry
        return _Name(self, key, value)

    def put_meta(self: This, key: Hashable, value: Any) -> None:
        """Keep a value that belongs to the registry itself."""
        _book(self).meta[strict(key)] = value

    def meta(self: This, key: Hashable, default: Any = None) -> Any:
        """Give a value that belongs to the registry itself."""
        return _book(self).meta.get(strict(key), default)

    def delete_meta(self: This, key: Hashable) -> None:
        """Forget a value that belongs to the registry itself."""
        _book(self).meta.pop(strict(key), None)


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
        book = _book(self._registry)
        book.check_unique("via")
        book.check_free(self._key)

    def give(self, process: Process) -> None:
        _book(self._registry).add(process, self._key, self._value)


async def _serve(ack: Ack, name: str, keys: Keys, listeners: tuple[str, ...]) -> None:
    """Be the process that the book belongs to: it only lives, until it is cancelled."""
    me = current("registry")
    book = Book(me, name, keys, listeners)
    me.args = (book,)  # by which it is found, see `_book`
    ack.ready(me, book)
    async for event in events():
        if isinstance(event, Cancel):
            return


def _book(ref: This) -> Book:
    """Give the book of a living registry."""
    if isinstance(ref, Registry):
        if ref.book.pid.target is None:
            raise NoProcess(ref.book.pid, "use the registry")
        return ref.book
    process = alive_or_raise(ref, "use the registry")
    if process.function is not _serve or not isinstance(process.args[0], Book):
        raise TypeError(f"{ref!r} is no registry")
    return process.args[0]


def _checked_listeners(listeners: Iterable[str]) -> tuple[str, ...]:
    if isinstance(listeners, str):
        raise TypeError(f"listeners is a list of names, not the text {listeners!r}")
    names = tuple(listeners)
    for name in names:
        check_name(name)
    return names
