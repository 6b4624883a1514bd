"""Keys that are in somebody's hands: of several steps of one run, one at a time is at each.

Who dies with a key in hand lays it down: `free_all` is called at the end of every attempt,
also of one whose thread goes on.
"""

import asyncio


class Hands:
    """Which key is in whose hands, within one run of a job."""

    def __init__(self) -> None:
        self._held: dict[str, object] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def has(self, key: str) -> bool:
        """Tell whether a key is in somebody's hands."""
        return key in self._held

    async def take(self, key: str, who: object) -> None:
        """Take a key in hand, as soon as nobody has it."""
        while (freed := self.freed(key)) is not None:
            await freed
        self._held[key] = who

    def freed(self, key: str) -> "asyncio.Future[None] | None":
        """Give what is done when the key is laid down; None if it is in nobody's hands."""
        if not self.has(key):
            return None
        freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(freed)
        return freed

    def free(self, key: str, who: object) -> None:
        """Lay a key down, if it is in these hands; all who wait for it look again."""
        if self._held.get(key) is not who:
            return
        del self._held[key]
        for freed in self._waiting.pop(key, ()):
            if not freed.done():  # else who waited has died
                freed.set_result(None)

    def free_all(self, who: object) -> None:
        """Lay down all that is in these hands."""
        for key in [key for key, holder in self._held.items() if holder is who]:
            self.free(key, who)

    def waiting(self) -> list[str]:
        """List the keys that somebody waits for, once for each who does."""
        return [key for key, line in self._waiting.items() for each in line if not each.done()]
