"""The book of a registry: its entries by key and by process.

It is kept beside the registry's process and not in it, so that a look-up waits for nobody.
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from perdure.base.errors import MailboxFull, NameTaken, NotRegistered, safe_text
from perdure.base.pid import Pid
from perdure.otp.key import strict
from perdure.otp.lock import Locks
from perdure.process.messaging import send
from perdure.process.process import Process


class Keys(StrEnum):
    """How many entries a key of a registry may have."""

    UNIQUE = "unique"  # one
    DUPLICATE = "duplicate"  # any number, also by one process


@dataclass(eq=False, slots=True)
class Entry:
    """One entry; two of them are never the same, whatever they hold."""

    key: Hashable
    pid: Pid
    value: Any


class Book:
    """All entries of one registry."""

    def __init__(self, owner: Process, name: str, keys: Keys, listeners: tuple[str, ...]) -> None:
        """Begin empty; the book is closed when its owner dies."""
        self.pid = owner.pid
        self.name = name
        self.unique = keys is Keys.UNIQUE
        self.locks = Locks(owner.pid)
        self.meta: dict[Hashable, Any] = {}
        self._listeners = listeners
        # Dicts as ordered sets, so that one of a million subscribers leaves without a search.
        self._by_key: dict[Hashable, dict[Entry, None]] = {}
        self._by_pid: dict[Pid, dict[Entry, None]] = {}
        owner.tie().at_death(self._close)

    def of(self, key: Hashable) -> Collection[Entry]:
        """Give the entries of a key, oldest first."""
        return self._by_key.get(strict(key), ())

    def owned_by(self, pid: Pid) -> Collection[Entry]:
        """Give the entries of a process, oldest first."""
        return self._by_pid.get(pid, ())

    def every(self) -> Iterable[Entry]:
        """Give all entries."""
        return (entry for entries in self._by_key.values() for entry in entries)

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def add(self, process: Process, key: Hashable, value: Any) -> None:
        """Enter a process, and tell the listeners.

        Raises:
            NameTaken: The key must be unique and is taken.
        """
        self.check_free(key)
        owned = self._by_pid.get(process.pid)
        if owned is None:
            owned = self._by_pid[process.pid] = {}
            process.tie().at_death(partial(self._forget, process.pid))
        entry = Entry(key, process.pid, value)
        self._by_key.setdefault(strict(key), {})[entry] = None
        owned[entry] = None
        self._tell("register", self.name, key, process.pid, value)

    def check_free(self, key: Hashable) -> None:
        """Refuse a key that must be unique and is taken."""
        if self.unique:
            for entry in self.of(key):
                raise NameTaken(spell(key), entry.pid)

    def check_unique(self, what: str) -> None:
        """Refuse what has a meaning only with unique keys."""
        if not self.unique:
            raise ValueError(f"{what} needs unique keys; those of registry {self.name!r} are not")

    def remove(self, pid: Pid, key: Hashable, predicate: Callable[[Any], bool]) -> None:
        """Remove the entries of a process under a key whose values fit, and tell the listeners."""
        for entry in tuple(self.of(key)):
            if entry.pid is pid and predicate(entry.value):
                self._drop(entry)
                del self._by_pid[pid][entry]
                self._tell("unregister", self.name, key, pid)

    def _forget(self, pid: Pid) -> None:
        """Remove what a process leaves at its death; listeners monitor if they want to know."""
        for entry in self._by_pid.pop(pid, ()):
            self._drop(entry)

    def _drop(self, entry: Entry) -> None:
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
            # It may be about to be restarted, or slow: that must not fail who registers.
            with suppress(NotRegistered, MailboxFull):
                send(listener, topic, list(payload))


def spell(key: Hashable) -> str:
    """Print a key as a name."""
    return key if isinstance(key, str) else safe_text(key)
