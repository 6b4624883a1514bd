"""The ledger of one run: what is known of the effects of its job, read when first needed."""

from typing import TYPE_CHECKING

from perdure.jobs.effect import OPEN, Effect, EffectState, Place, business_key, effect_key

if TYPE_CHECKING:
    from perdure.engine.run import Run


class Ledger:
    """The lines of one job, those of this run among them before they are durable."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._lines: dict[str, Effect] = {}  # by key
        self._is_read = False
        self._parts: dict[tuple[str, str], str] = {}  # by likeness: where the first one was
        self._seen: set[str] = set()  # steps that have made effects in this run

    def know(self, effect: Effect) -> None:
        """Take note of a line."""
        self._lines[effect.key] = effect
        self._parts.setdefault(effect.place.likeness, effect.place.part)

    def has_like(self, place: Place) -> bool:
        """Tell whether the same was done on the other side of a checkpoint."""
        return self._parts.get(place.likeness, place.part) != place.part

    def line(self, effect: Effect) -> Effect:
        """Give a line as it stands now."""
        return self._lines.get(effect.key, effect)

    def is_new(self, step: str) -> bool:
        """Tell, once, that a step has made no effect in this run."""
        is_new = step not in self._seen
        self._seen.add(step)
        return is_new

    def has_intents(self) -> bool:
        """Tell whether a call is open of which it is not known what became of it."""
        return any(line.state is EffectState.INTENT for line in self._lines.values())

    async def latest(self, place: Place) -> Effect | None:
        """Find what an earlier attempt has left at a place."""
        await self._read()
        found = [line for line in self._lines.values() if line.place == place]
        return max(found, key=lambda line: line.generation, default=None)

    async def open_behind(self, step: str, came_by: set[Place]) -> Effect | None:
        """Find an open line of a step that its code has not come by."""
        await self._read()
        for line in self._lines.values():
            mine = line.place.step == step and line.place not in came_by
            if mine and line.state in OPEN:
                return line
        return None

    async def latest_of_business(self, kind: str, key: str) -> Effect | None:
        """Find what became of a business key, in whichever job of the tenant."""
        latest: Effect | None = None
        for generation in range(1, 1000):
            full = business_key(self._run.job.tenant, kind, key, generation)
            found = self._lines.get(full) or await self._by_key(full)
            if found is None:
                return latest
            latest = found
            if found.state is not EffectState.FAILED:
                break
        return latest

    async def by_key(self, key: str) -> Effect | None:
        """Find a line by its key, in whichever job of the tenant."""
        return self._lines.get(key) or await self._by_key(key)

    async def _by_key(self, key: str) -> Effect | None:
        tenant = self._run.job.tenant
        return await self._run.ask(lambda store: store.effect_by_key(tenant, key))

    async def _read(self) -> None:
        if not self._is_read:
            job_id = self._run.job.id
            for line in await self._run.ask(lambda store: store.effects(job_id)):
                self.know(self.line(line))
            self._is_read = True

    def key_for(self, place: Place, kind: str, key: str | None, generation: int) -> str:
        """Make the key of a call."""
        job = self._run.job
        if key is not None:
            return business_key(job.tenant, kind, key, generation)
        return effect_key(job.tenant, job.id, place, generation)
