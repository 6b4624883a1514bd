"""A store under watch: what is under way in it, and a worker that dies at one of its writes.

Every write of a worker is a point at which its program can be killed: just before the write, and
just after it, when it is durable but nobody has heard of that. Whatever a job does in between, it
does again after a kill in the same way, so no other point is different from these.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, TypeAlias

from perdure.jobs.model import Write
from perdure.process.waiter import CURRENT
from perdure.store.store import Store

Done = Callable[[BaseException | None], None]
Moment: TypeAlias = Literal["before", "after"]

# What a worker changes for a job besides its fenced writes.
_SPENDING = ("reserve",)


class CrashPoint:
    """A write at which the worker dies.

    Args:
        number: The number of the write, from 1.
        moment: Whether it dies before or after it.
        crash: Ends the worker; called once.
    """

    def __init__(self, number: int, moment: Moment, crash: Callable[[], None]) -> None:
        self.number = number
        self.moment = moment
        self._crash = crash
        self.reached = False

    def reach(self, number: int, moment: Moment) -> None:
        """Die if this is the point."""
        if not self.reached and (number, moment) == (self.number, self.moment):
            self.reached = True
            self._crash()


class WatchedStore:
    """Counts what is under way in a store, and lists the writes of its workers."""

    def __init__(self, store: Store) -> None:
        self.store: Any = store
        self.under_way = 0  # requests that were not answered
        self.begun = 0  # requests in all, without those of the observer
        self.observer: object = None  # the process that watches
        self.writes: list[str] = []  # what workers wrote for jobs, for people
        self.crash_point: CrashPoint | None = None
        self.dead: set[str] = set()  # workers that write nothing more
        self._install()

    def _install(self) -> None:
        store = self.store
        for thread in {store.writer, store.control, store.reader}:
            thread.call = partial(self._call, thread.call)
        for name in _SPENDING:
            setattr(store, name, partial(self._spend, name, getattr(store, name)))
        store.write = partial(self._write, store.write)
        store.write_soon = partial(self._write_soon, store.write_soon)

    def _begin(self) -> None:
        self.under_way += 1
        if self.observer is None or CURRENT.get(None) is not self.observer:
            self.begun += 1

    def _end(self, _: object = None) -> None:
        self.under_way -= 1

    def _call(
        self, call: Callable[..., "asyncio.Future[Any]"], *args: Any, **options: Any
    ) -> "asyncio.Future[Any]":
        future = call(*args, **options)
        self._begin()
        future.add_done_callback(self._end)
        return future

    # Writes of workers

    async def _write(
        self, write_it: Callable[..., Awaitable[None]], write: Write, **kw: Any
    ) -> None:
        if write.owner in self.dead:
            await _never()
        number = self._number(_described(write))
        await self._reach(number, "before")
        self._begin()
        try:
            await write_it(write, **kw)
        finally:
            self._end()
        await self._reach(number, "after")

    async def _spend(self, name: str, change: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        number = self._number(name.replace("_", " "))
        await self._reach(number, "before")
        result = await change(*args)
        await self._reach(number, "after")
        return result

    async def _reach(self, number: int, moment: Moment) -> None:
        if self._dies(number, moment):
            await _never()

    def _write_soon(
        self, write_it: Callable[..., bool], write: Write, done: Done, *, alone: bool = False
    ) -> bool:
        if write.owner in self.dead:
            return False  # and it is never answered
        number = self._number(_described(write))
        if self._dies(number, "before"):
            return False
        self._begin()
        try:
            written = write_it(write, partial(self._answered, number, done), alone=alone)
        except BaseException:
            self._end()
            raise
        if written:
            self._end()
            return not self._dies(number, "after")
        return False

    def _answered(self, number: int, done: Done, error: BaseException | None) -> None:
        self._end()
        if error is not None or not self._dies(number, "after"):
            done(error)

    def _number(self, what: str) -> int:
        self.writes.append(what)
        return len(self.writes)

    def _dies(self, number: int, moment: Moment) -> bool:
        if self.crash_point is None or self.crash_point.reached:
            return False
        self.crash_point.reach(number, moment)
        return self.crash_point.reached


async def _never() -> None:
    """Wait for an answer that never comes; whoever waits is killed with its worker."""
    await asyncio.get_running_loop().create_future()


def _described(write: Write) -> str:
    """Return in a few words what a write says."""
    parts = [f"{entry.id} {entry.state.value}" for entry in write.entries]
    parts += [f"effect {each.kind} {each.state.value}" for each in write.effects]
    parts += ["spending"] * bool(write.spending)
    parts += [f"child {child.name}" for child in write.children]
    if write.job is not None:
        parts.append(f"job {write.job.state.value}")
    return ", ".join(parts) or "a note"
