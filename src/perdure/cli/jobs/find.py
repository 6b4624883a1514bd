"""Which job is meant: ids may be shortened to their end, as tables show them."""

from typing import Annotated, Any, Final, TypeAlias

import typer

from perdure.app import App
from perdure.base.errors import JobError, JobNotFound
from perdure.engine.handle import Handle
from perdure.jobs.query import JobQuery

SHORT: Final = 8  # the beginning of an id is its time, so its end tells jobs apart
_LENGTH: Final = 32
_PAGE, _PAGES = 500, 10  # how many of the newest jobs are looked through

IdArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="JOB", help="The id of the job, or its last characters.")
]


def short(job_id: str) -> str:
    """Give the part of an id that people see."""
    return job_id[-SHORT:]


async def find_job(app: App, text: str) -> Handle[Any]:
    """Find the job that is meant.

    Raises:
        JobNotFound: There is none.
        JobError: There are several.
    """
    if len(text) >= _LENGTH or not text:
        return await app.handle(text)
    found = await _ending_with(app, text)
    if len(found) > 1:
        raise JobError(f"{text!r} may be any of these, say more of it: {', '.join(found)}")
    if not found:
        raise JobNotFound(text)
    return await app.handle(found[0])


async def _ending_with(app: App, text: str) -> list[str]:
    found: list[str] = []
    query = JobQuery(limit=_PAGE)
    for _ in range(_PAGES):
        page = await app.find_jobs(query)
        found += [job.id for job in page if job.id.endswith(text) or job.id == text]
        if len(page) < _PAGE:
            break
        query = JobQuery(limit=_PAGE, before=(page[-1].created_at, page[-1].id))
    return found
