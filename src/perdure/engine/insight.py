"""What operators want to know about jobs beyond what is stored: rows of lists, previews, series.

Each question is a fixed number of queries over indexes, and a pure decision in `jobs/`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from perdure.base.errors import JobNotFound, UnknownName
from perdure.engine.attendance import SILENT
from perdure.engine.steps.undo_plan import UndoPlanner
from perdure.jobs.bundle import Bundle, BundleParts, bundle_of
from perdure.jobs.definition import Step
from perdure.jobs.error_group import ErrorGroup, group_failures
from perdure.jobs.listing import JobRow, job_row
from perdure.jobs.model import Job, JobEvent, JobQuery, JournalEntry
from perdure.jobs.preview import ForkPreview, UndoPreview, fork_preview, undo_preview
from perdure.jobs.saga import FindStep, UndoTraits
from perdure.jobs.series import LONGEST, MetricsPage, metrics_page
from perdure.jobs.state import ENDED
from perdure.jobs.timeline import StepAttempt, Timeline, attempts_of, timeline
from perdure.store.store import Store

T = TypeVar("T")

ALL_TENANTS: Final = ""  # whose marks on errors those of all tenants are
_MOST_ENTRIES: Final = 100_000
_MOST_EVENTS: Final = 20_000
_MOST_APPROVALS: Final = 1000


class Insight:
    """What operators ask about the jobs of a store: see `Caller.insight`."""

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
        return (await self.page(query or JobQuery()))[0]

    async def page(self, query: JobQuery) -> tuple[list[JobRow], float]:
        """Return the jobs that a query finds as rows of a list, and the time of reading them."""
        facts, now = await self._store.listed_jobs(query, SILENT)
        return [job_row(each, now) for each in facts], now

    async def rows_of(self, job_ids: Sequence[str]) -> list[JobRow]:
        """Return these jobs, as far as they exist, as rows of a list."""
        if not job_ids:
            return []
        facts, now = await self._store.listed_jobs_of(job_ids, SILENT)
        return [job_row(each, now) for each in facts]

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
        return undo_preview(planned, journal, ledger, find, ended=job.state in ENDED)

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

    # What a job did at which time

    async def attempts(self, job_id: str, step: str | None = None) -> list[StepAttempt]:
        """Return the attempts at the steps of a job, or at one of them ("load#2").

        Raises:
            JobNotFound: There is no such job.
        """
        job = await self._job(job_id)
        return attempts_of(job, await self._slim_journal(job_id), await self._log(job_id), step)

    async def timeline(self, job_id: str) -> Timeline:
        """Return when a job waited for a worker, worked, backed off, slept or asked people.

        Raises:
            JobNotFound: There is no such job.
        """
        job, now = await self._job(job_id), await self._store.now()
        journal, log = await self._slim_journal(job_id), await self._log(job_id)
        approvals = await self._store.approvals(None, None, job_id, _MOST_APPROVALS)
        return timeline(job, journal, log, approvals, now)

    async def bundle(self, job_id: str) -> Bundle:
        """Return a job as a file for other machines: all that people may see of it.

        Raises:
            JobNotFound: There is no such job.
        """
        job, now = await self._job(job_id), await self._store.now()
        topics = [each.topic for each in await self._store.topics(job_id)]
        published = await self._store.definitions()
        knows = (each for each in published if each.definitions.knows(job.name, job.version))
        parts = BundleParts(
            job=job,
            journal=await self._store.journal(job_id),
            events=await self._log(job_id),
            effects=await self._store.effects(job_id),
            approvals=await self._store.approvals(None, None, job_id, _MOST_APPROVALS),
            output={topic: (await self._store.output(job_id, topic, 0)).pieces for topic in topics},
            definitions=next((each.digest for each in knows), None),
            now=now,
        )
        return bundle_of(parts)

    # Many jobs

    async def errors(
        self, tenant: str | None = None, *, since: float = 0.0, limit: int = 1000
    ) -> list[ErrorGroup]:
        """Return the newest failures in groups of the same cause, the latest group first.

        Args:
            tenant: Whose; None: of all tenants.
            since: Only jobs that were submitted since this time.
            limit: How many failed jobs, and how many parked ones, are looked at.
        """
        failed = await self._store.failed_jobs(tenant, since, limit)
        marks = await self._store.error_marks(ALL_TENANTS if tenant is None else tenant)
        return group_failures(failed, marks)

    async def metrics(self, tenant: str | None = None, minutes: int = 60) -> MetricsPage:
        """Return numbers over the last minutes, and the figures to watch."""
        wanted = min(max(1, minutes), LONGEST)
        return metrics_page(await self._store.metrics(tenant, wanted), wanted)

    # Inside

    async def _slim_journal(self, job_id: str) -> list[JournalEntry]:
        """Return the journal without payloads."""
        return await self._store.journal_page(job_id, -1, _MOST_ENTRIES, slim=True)

    async def _log(self, job_id: str) -> list[JobEvent]:
        """Return the log, as much of it as can matter to people."""
        found: list[JobEvent] = []
        while page := await self._store.events(job_id, after=found[-1].no if found else 0):
            found += page
            if len(found) >= _MOST_EVENTS:
                break
        return found

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
