"""The ledger of one run: what is known of the effects of its job, read when first needed."""

import asyncio
from typing import TYPE_CHECKING

from perdure.jobs.effect import OPEN, Effect, EffectState, Place

if TYPE_CHECKING:
    from perdure.engine.journal.run import Run


# Locks on business keys: of several steps of one run, one at a time uses each key.
#
# An attempt unlocks its keys when it ends (`unlock_all`), also if its thread goes on.


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


def ledger_of(run: "Run") -> "Ledger":
    """Give the ledger of a run, made when it is first asked for."""
    if run.ledger is None:
        run.ledger = Ledger(run)
    return run.ledger


class Ledger:
    """The lines of one job, those of this run among them before they are durable."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._lines: dict[str, Effect] = {}  # by key
        self._is_read = False
        self._parts: dict[tuple[str, str], str] = {}  # by likeness: where the first one was
        self._seen: set[str] = set()  # steps that have made effects in this run
        self.key_locks = KeyLocks()

    def know(self, effect: Effect) -> None:
        """Take note of a line."""
        self._lines[effect.key] = effect
        self._parts.setdefault(effect.place.likeness, effect.place.part)

    def has_like(self, place: Place) -> bool:
        """Tell whether the same was done on the other side of a checkpoint."""
        return self._parts.get(place.likeness, place.part) != place.part

    def line(self, effect: Effect) -> Effect:
        """Give a line as it stands now."""
        known = self._lines.get(effect.key)
        return known if known is not None and known.job_id == effect.job_id else effect

    def is_new(self, step: str) -> bool:
        """Tell, once, that a step has made no effect in this run."""
        is_new = step not in self._seen
        self._seen.add(step)
        return is_new

    def has_intents(self) -> bool:
        """Tell whether a call is open of which it is not known what became of it."""
        return any(line.state is EffectState.INTENT for line in self._lines.values())

    async def latest(self, place: Place) -> Effect | None:
        """Find what an earlier attempt has left at a place of its own."""
        await self._read()
        lines = [line for line in self._lines.values() if line.place == place]
        found = [line for line in lines if line.state is not EffectState.BORROWED]
        return max(found, key=lambda line: line.generation, default=None)

    async def open_behind(self, step: str, came_by: set[Place]) -> Effect | None:
        """Find an open line of a step that its code has not come by."""
        await self._read()
        for line in self._lines.values():
            mine = line.place.step == step and line.place not in came_by
            if mine and line.state in OPEN:
                return line
        return None

    async def latest_of_business(self, business: str) -> Effect | None:
        """Find what became of what all jobs of the tenant do only once, in whichever of them."""
        tenant = self._run.job.tenant
        found = await self._run.ask(lambda store: store.effect_of_business(tenant, business))
        return None if found is None else self.line(found)

    async def by_key(self, key: str) -> Effect | None:
        """Find a line by its key, in whichever job of the tenant."""
        if key in self._lines:
            return self._lines[key]
        tenant = self._run.job.tenant
        return await self._run.ask(lambda store: store.effect_by_key(tenant, key))

    async def _read(self) -> None:
        if not self._is_read:
            job_id = self._run.job.id
            for line in await self._run.ask(lambda store: store.effects(job_id)):
                self.know(self.line(line))
            self._is_read = True
