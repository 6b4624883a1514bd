"""Tells a loop that something in the store may have changed."""

import asyncio
from collections.abc import Callable


class Watcher:
    """One who wants to know; what happens before it hears of the last change is told once."""

    __slots__ = ("_changed", "_loop", "_told")

    def __init__(self, changed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._told = False

    def tell(self) -> None:
        """Say it, from any thread: to wake a loop is dear, and jobs end by the hundred."""
        if not self._told and not self._loop.is_closed():
            self._told = True
            self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        self._told = False  # before it looks: what changes meanwhile is told again
        self._changed()
