"""The ledger of one run: what is known of the effects of its job, read when first needed."""

from typing import TYPE_CHECKING

from perdure.engine.key_locks import KeyLocks
from perdure.jobs.effect import OPEN, Effect, EffectState
from perdure.jobs.place import Place

if TYPE_CHECKING:
    from perdure.engine.run import Run


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
