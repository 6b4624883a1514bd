"""What operators want to know about jobs beyond what is stored: rows of lists, previews, series.

Each question is a fixed number of queries over indexes, and a pure decision in `jobs/`.
"""

from collections.abc import Sequence

from perdure.base.errors import JobNotFound
from perdure.engine.attendance import SILENT
from perdure.jobs.listing import JobRow, job_row
from perdure.jobs.model import JobQuery
from perdure.store.store import Store


class Insight:
    """Answers questions of operators about the jobs of a store: see `Caller.insight`."""

    def __init__(self, store: Store) -> None:
        self._store = store

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
