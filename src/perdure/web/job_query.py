"""Which jobs a request means: the text of a query, as people write it, and a page of the list."""

from msgspec.structs import replace

from perdure.jobs.model import JobQuery
from perdure.jobs.query_text import parse
from perdure.web.paging import checked_limit, newest_place
from perdure.web.request import Query


class JobFilter(Query, frozen=True, kw_only=True):
    """Which jobs: `state:failed name:migrate label.team:data`; empty: all of them."""

    q: str = ""


class JobList(JobFilter, frozen=True, kw_only=True):
    """Which jobs, and which page of them."""

    limit: int = 50
    cursor: str | None = None


def job_query(given: JobFilter) -> JobQuery:
    """Return the query of a request.

    Raises:
        QueryError: The text is no query.
        RequestRefused: The page cannot be asked for.
    """
    query = parse(given.q)
    if not isinstance(given, JobList):
        return query
    return replace(query, limit=checked_limit(given.limit), before=newest_place(given.cursor))
