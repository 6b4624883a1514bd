"""What would have to be undone of a job: its own journal and ledger, and what its children did.

The decision is `jobs.saga.undo_list`; here is what it needs to know of the children, each of which
undoes itself. The saga asks in its run; whoever only wants to see it asks the store directly.
"""

from collections.abc import Sequence

from perdure.engine.journal.ledger import AskStore
from perdure.engine.submission import child_id
from perdure.jobs.effect import OPEN, Effect
from perdure.jobs.model import EntryKind, Job, JobOutcome, JournalEntry
from perdure.jobs.saga import (
    FindStep,
    PastPivot,
    Undo,
    has_failed,
    is_listed,
    standing,
    undo_list,
)
from perdure.jobs.state import ENDED, JobState


def children_of(job_id: str, journal: Sequence[JournalEntry]) -> dict[str, JournalEntry]:
    """Return the entries that submitted children, by the ids of the children."""
    return {child_id(job_id, each.id): each for each in journal if each.kind is EntryKind.CHILD}


class UndoPlanner:
    """Finds out what must be undone of a job and its children."""

    def __init__(self, ask: AskStore, find: FindStep) -> None:
        self._ask = ask
        self._find = find

    async def undos(
        self, job: Job, journal: Sequence[JournalEntry], ledger: Sequence[Effect]
    ) -> list[Undo] | PastPivot:
        """Return what must be undone of a job, its children included, in order."""
        children = await self._children_to_undo(job, journal)
        if isinstance(children, PastPivot):
            return children
        return undo_list(journal, ledger, self._find, children)

    async def effects_left(
        self,
        job: Job,
        journal: Sequence[JournalEntry],
        ledger: Sequence[Effect],
        *,
        own: bool = True,
    ) -> list[str]:
        """Return the names of the effects of a job and its children that nothing undoes."""
        named = [_named(effect, own=own) for effect in standing(journal, ledger, self._find)]
        ids = list(children_of(job.id, journal))
        for each in await self._outcomes(ids) if ids else ():
            child = await self._job(each.job_id)
            if child is not None and each.state is not JobState.COMPENSATED:
                entries, lines = await self._journal(child.id), await self._effects(child.id)
                named += await self.effects_left(child, entries, lines, own=False)
        return named

    async def _children_to_undo(
        self, job: Job, journal: Sequence[JournalEntry]
    ) -> dict[str, str] | PastPivot:
        """Return the children to undo, by the entries that submitted them."""
        entries = children_of(job.id, journal)
        if not entries:
            return {}
        states = {each.job_id: each.state for each in await self._outcomes(list(entries))}
        found: dict[str, str] = {}
        for child, entry in entries.items():
            if child not in states:
                needed: bool | PastPivot = not _is_copied(job, entry)
            else:
                needed = await self._needs_undo(child, states[child])
            if isinstance(needed, PastPivot):
                return PastPivot(f"{needed.pivot} of {entry.id}")
            if needed:
                found[entry.id] = child
        return found

    async def _needs_undo(self, job_id: str, state: JobState) -> bool | PastPivot:
        """Whether a child has something to undo, or may have."""
        if state is JobState.COMPENSATED:
            return False
        if state not in ENDED:  # a grandchild: its own parent waits for it when it undoes itself
            return True
        journal = await self._journal(job_id)
        if is_listed(journal):
            return has_failed(journal)
        job, ledger = await self._job(job_id), await self._effects(job_id)
        undos = [] if job is None else await self.undos(job, journal, ledger)
        return undos if isinstance(undos, PastPivot) else bool(undos)

    async def _job(self, job_id: str) -> Job | None:
        return await self._ask(lambda store: store.job(job_id))

    async def _journal(self, job_id: str) -> list[JournalEntry]:
        return await self._ask(lambda store: store.journal(job_id))

    async def _effects(self, job_id: str) -> list[Effect]:
        return await self._ask(lambda store: store.effects(job_id))

    async def _outcomes(self, ids: Sequence[str]) -> list[JobOutcome]:
        return await self._ask(lambda store: store.outcomes(ids))


def _named(effect: Effect, *, own: bool) -> str:
    where = effect.place.step if own else f"{effect.place.step} of job {effect.job_id}"
    perhaps = "perhaps " if effect.state in OPEN else ""
    return f"{perhaps}{effect.kind} to {effect.target} ({where})"


def _is_copied(job: Job, entry: JournalEntry) -> bool:
    """Whether an entry was copied from the job of which this one is a fork."""
    return job.forked_from is not None and (entry.started_at or 0.0) < job.created_at
