"""What operators want to know about jobs beyond what is stored: rows of lists, previews, series.

Each question is a fixed number of queries over indexes, and a pure decision in `jobs/`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from perdure.base.errors import JobNotFound, UnknownName
from perdure.engine.attendance import SILENT
from perdure.engine.steps.undo_plan import UndoPlanner
from perdure.jobs.definition import Step
from perdure.jobs.listing import JobRow, job_row
from perdure.jobs.model import Job, JobQuery
from perdure.jobs.preview import ForkPreview, UndoPreview, fork_preview, undo_preview
from perdure.jobs.saga import FindStep, UndoTraits
from perdure.store.store import Store

T = TypeVar("T")


class Insight:
    """Answers questions of operators about the jobs of a store: see `Caller.insight`."""

    def __init__(self, store: Store, known: Callable[[], Mapping[str, Step[..., Any]]]) -> None:
        """Ask nothing yet.

        Args:
            store: The store.
            known: Returns the steps whose code is here, by name.
        """
        self._store = store
        self._known = known

    async def rows(self, query: JobQuery | None = None) -> list[JobRow]:
        """Return the jobs that a query finds as rows of a list, newest first."""
        found = await self._store.listed_jobs(query or JobQuery(), SILENT)
        now = await self._store.now()
        return [job_row(each, now) for each in found]

    async def rows_of(self, job_ids: Sequence[str]) -> list[JobRow]:
        """Return these jobs, as far as they exist, as rows of a list."""
        found = await self._store.listed_jobs_of(job_ids, SILENT) if job_ids else []
        now = await self._store.now()
        return [job_row(each, now) for each in found]

    async def row(self, job_id: str) -> JobRow:
        """Return one job as a row of a list.

        Raises:
            JobNotFound: There is no such job.
        """
        found = await self._store.listed_job(job_id, SILENT)
        if found is None:
            raise JobNotFound(job_id)
        return job_row(found, await self._store.now())

    # What a command would do

    async def undo(self, job_id: str) -> UndoPreview:
        """Return what would be undone of a job now, in order, and what would not and why.

        Raises:
            JobNotFound: There is no such job.
        """
        job = await self._job(job_id)
        journal, ledger = await self._store.journal(job_id), await self._store.effects(job_id)
        find = await self._find_step()
        planned = await UndoPlanner(self._ask, find).undos(job, journal, ledger)
        return undo_preview(planned, journal, ledger, find)

    async def fork(self, job_id: str, before: str) -> ForkPreview:
        """Return what a fork of a job before a step would reuse, and which effects it repeats.

        Raises:
            JobNotFound: There is no such job.
            LookupError: It has no such step.
        """
        await self._job(job_id)
        journal, ledger = await self._store.journal(job_id), await self._store.effects(job_id)
        wanted = before if "#" in before else f"{before}#1"
        entry = next((each for each in journal if each.id == wanted), None)
        if entry is None:
            raise LookupError(f"job {job_id} has no step {wanted!r} in its journal")
        refused = await self._store.fork_refusal(job_id, entry.seq)
        return fork_preview(entry, journal, ledger, refused)

    # Inside

    async def _job(self, job_id: str) -> Job:
        found = await self._store.job(job_id)
        if found is None:
            raise JobNotFound(job_id)
        return found

    async def _ask(self, question: Callable[[Store], Awaitable[T]]) -> T:
        return await question(self._store)

    async def _find_step(self) -> FindStep:
        """Return what finds a step: in the code that is here, else in what workers know."""
        here = self._known()
        published = [each.definitions for each in await self._store.definitions()]

        def find(name: str) -> UndoTraits:
            if name in here:
                return here[name]
            for each in published:
                if (traits := each.traits_of(name)) is not None:
                    return traits
            raise UnknownName(f"no step {name!r} is known here")

        return find
