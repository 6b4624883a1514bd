"""One store for all callers of an app: opened on first use, closed when nobody uses it.

An app may be used from any number of threads and event loops at once, and a loop may end at any
moment: `asyncio.run(app.submit(…))` is a loop of its own. A store belongs to none of them. Whoever
comes first opens it, and the others wait for that one; if its loop ends meanwhile, another opens
it. Whoever works with it is counted (`use`), and `close` closes it when nobody does any more: the
last user closes it then. So one caller can close an app without taking the store from another.

After a fork the new process opens a store of its own: threads and connections stay behind.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, cast
from weakref import WeakSet

from perdure.store.store import Store


class _OpenerGone(Exception):
    """The caller that was opening the store was cancelled."""


class SharedStore:
    """A store that many loops and threads use, and any of them may close."""

    def __init__(self, make: Callable[[], Store]) -> None:
        """Open nothing yet.

        Args:
            make: Returns a store that is not open yet.
        """
        self._make = make
        self._start()
        _SHARED.add(self)
        # Typed as the store that it stands for: each verb is called on the open store.
        self.verbs = cast("Store", _Verbs(self))

    def _start(self) -> None:
        """Begin without a store, also in a new process after a fork."""
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._opening: Future[Store] | None = None
        self._users = 0
        self._is_unwanted = False  # somebody has closed it

    async def get(self) -> Store:
        """Return the store, opening it on first use.

        Raises:
            StoreError: It cannot be opened.
        """
        while True:
            with self._lock:
                if self._store is not None:
                    return self._store
                others = self._opening
                if others is None:
                    ours = self._opening = Future()
                    ours.set_running_or_notify_cancel()  # who waits for it cannot cancel it
                    break
            try:
                return await asyncio.wrap_future(others)
            except _OpenerGone:
                continue
        return await self._open(ours)

    async def _open(self, opening: "Future[Store]") -> Store:
        try:
            store = self._make()
            await store.open()
        except BaseException as error:
            with self._lock:
                self._opening = None
            opening.set_exception(error if isinstance(error, Exception) else _OpenerGone())
            raise
        with self._lock:
            self._store, self._opening = store, None
        opening.set_result(store)
        return store

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[Store, None]:
        """Keep the store open inside the block, whoever closes it meanwhile."""
        store = await self.enter()
        try:
            yield store
        finally:
            await self.leave()

    async def enter(self) -> Store:
        """Return the store, and keep it open until `leave`."""
        with self._lock:
            self._users += 1
        try:
            return await self.get()
        except BaseException:
            await self.leave()
            raise

    async def leave(self, *, close: bool = False) -> None:
        """Undo `enter`; `close` as `close` does."""
        await self._close_if_unused(leaves=1, close=close)

    async def close(self) -> None:
        """Close the store, now or when its last user has left."""
        await self._close_if_unused(leaves=0, close=True)

    async def _close_if_unused(self, *, leaves: int, close: bool) -> None:
        with self._lock:
            self._users = max(0, self._users - leaves)  # after a fork, none is left to leave
            self._is_unwanted |= close
            if self._users or not self._is_unwanted:
                return
            self._is_unwanted = False
            store, self._store = self._store, None
        if store is not None:
            await store.close()

    def forget(self) -> None:
        """Begin anew after a fork; what the parent has opened is left alone."""
        _LEFT_BEHIND.append(self._store)
        self._start()


class _Verbs:
    """The verbs of a shared store: each opens it if need be, and counts as its user."""

    def __init__(self, shared: SharedStore) -> None:
        self._shared = shared

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def verb(*args: Any, **kwargs: Any) -> Any:
            async with self._shared.use() as store:
                return await getattr(store, name)(*args, **kwargs)

        return verb


# A process that was forked must not touch the connections of its parent, not even to close them.

_SHARED: WeakSet[SharedStore] = WeakSet()
_LEFT_BEHIND: list[Store | None] = []  # never collected: that would close them


def _after_fork() -> None:
    for shared in tuple(_SHARED):
        shared.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
