"""The ledger of one run: the effects of its job, read from the store when first needed.

Lines that this run has written are known here before they are durable, so they are always read from
here and never from the store alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from perdure.jobs.effect import OPEN, Effect, EffectState, Place
from perdure.jobs.model import Job
from perdure.store.store import Store

T = TypeVar("T")


class AskStore(Protocol):
    """Queries the store on behalf of a run; see `Run.ask`."""

    def __call__(self, question: Callable[[Store], Awaitable[T]], /) -> Awaitable[T]: ...


class Ledger:
    """The effects of one job, including those of this run."""

    def __init__(self, job: Job, ask: AskStore) -> None:
        self._job = job
        self._ask = ask
        self._lines: dict[str, Effect] = {}  # by key
        self._is_read = False
        # By step, item and request: the part of the code that asked first. The same request
        # with another checkpoint may be a second effect, or the first one asked for again.
        self._parts: dict[tuple[str, str], str] = {}
        self._seen: set[str] = set()  # steps that have made effects in this run
        self.key_locks = KeyLocks()

    def add(self, effect: Effect) -> None:
        """Add a line, or replace it by a newer version."""
        self._lines[effect.key] = effect
        place = effect.place
        self._parts.setdefault((place.step, place.part.partition(":")[2]), place.part)

    def has_like(self, place: Place) -> bool:
        """Whether the same effect was made on the other side of a checkpoint."""
        like = (place.step, place.part.partition(":")[2])
        return self._parts.get(like, place.part) != place.part

    def line(self, effect: Effect) -> Effect:
        """Return the newest version of a line."""
        known = self._lines.get(effect.key)
        return known if known is not None and known.job_id == effect.job_id else effect

    def is_first_use(self, step: str) -> bool:
        """Whether this is the first time in this run that the step makes effects."""
        is_first = step not in self._seen
        self._seen.add(step)
        return is_first

    def has_intents(self) -> bool:
        """Whether there is a call whose outcome is not recorded."""
        return any(line.state is EffectState.INTENT for line in self._lines.values())

    async def latest(self, place: Place) -> Effect | None:
        """Return the line that an earlier attempt left at a place."""
        await self._read()
        lines = [line for line in self._lines.values() if line.place == place]
        found = [line for line in lines if line.state is not EffectState.BORROWED]
        return max(found, key=lambda line: line.generation, default=None)

    async def open_elsewhere(self, step: str, visited: set[Place]) -> Effect | None:
        """Return an open line of a step at a place that its code has not visited."""
        await self._read()
        for line in self._lines.values():
            mine = line.place.step == step and line.place not in visited
            if mine and line.state in OPEN:
                return line
        return None

    async def open_of(self, step: str) -> list[Effect]:
        """Return the open lines of a step."""
        await self._read()
        lines = self._lines.values()
        return [line for line in lines if line.place.step == step and line.state in OPEN]

    async def latest_of_business(self, business: str) -> Effect | None:
        """Return the latest line under a business key, in any job of the tenant."""
        tenant = self._job.tenant
        found = await self._ask(lambda store: store.effect_of_business(tenant, business))
        return None if found is None else self.line(found)

    async def by_key(self, key: str) -> Effect | None:
        """Return a line by its key, in any job of the tenant."""
        if key in self._lines:
            return self._lines[key]
        tenant = self._job.tenant
        return await self._ask(lambda store: store.effect_by_key(tenant, key))

    async def _read(self) -> None:
        if not self._is_read:
            job_id = self._job.id
            for line in await self._ask(lambda store: store.effects(job_id)):
                self.add(self.line(line))
            self._is_read = True


class KeyLocks:
    """Locks on business keys: only one step of a run at a time uses a key.

    An attempt unlocks its keys when it ends (`unlock_all`), even if its thread continues.
    """

    def __init__(self) -> None:
        self._owners: dict[str, object] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def is_locked(self, key: str) -> bool:
        """Whether a key is locked."""
        return key in self._owners

    async def lock(self, key: str, owner: object) -> None:
        """Lock a key, waiting until it is unlocked."""
        while (unlocked := self.when_unlocked(key)) is not None:
            await unlocked
        self._owners[key] = owner

    def when_unlocked(self, key: str) -> "asyncio.Future[Any] | None":
        """Return a future that is done when the key is unlocked; None if it is not locked."""
        if not self.is_locked(key):
            return None
        unlocked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(unlocked)
        return unlocked

    def unlock(self, key: str, owner: object) -> None:
        """Unlock a key if this owner has locked it, and wake everything that waits for it."""
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
        """Return the keys that steps wait for, once for each waiter."""
        return [key for key, line in self._waiting.items() for each in line if not each.done()]
