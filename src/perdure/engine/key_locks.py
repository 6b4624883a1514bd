"""Locks on business keys: of several steps of one run, one at a time uses each key.

An attempt unlocks its keys when it ends (`unlock_all`), also if its thread goes on.
"""

import asyncio


class KeyLocks:
    """Which attempt has locked which key, within one run of a job."""

    def __init__(self) -> None:
        self._owners: dict[str, object] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def is_locked(self, key: str) -> bool:
        """Tell whether somebody has locked a key."""
        return key in self._owners

    async def lock(self, key: str, owner: object) -> None:
        """Lock a key, waiting until it is unlocked."""
        while (unlocked := self.when_unlocked(key)) is not None:
            await unlocked
        self._owners[key] = owner

    def when_unlocked(self, key: str) -> "asyncio.Future[None] | None":
        """Return a future that is done when the key is unlocked; None if it is not locked."""
        if not self.is_locked(key):
            return None
        unlocked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(unlocked)
        return unlocked

    def unlock(self, key: str, owner: object) -> None:
        """Unlock a key if this owner has locked it, and wake all who wait for it."""
        if self._owners.get(key) is not owner:
            return
        del self._owners[key]
        for unlocked in self._waiting.pop(key, ()):
            if not unlocked.done():  # the waiter may have been cancelled
                unlocked.set_result(None)

    def unlock_all(self, owner: object) -> None:
        """Unlock every key that this owner has locked."""
        for key in [key for key, each in self._owners.items() if each is owner]:
            self.unlock(key, owner)

    def waiting(self) -> list[str]:
        """List the keys that are waited for, once for each waiter."""
        return [key for key, line in self._waiting.items() for each in line if not each.done()]
