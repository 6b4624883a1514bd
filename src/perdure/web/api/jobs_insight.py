"""What operators want to know about a job before they act on it."""

from typing import Final

from perdure.jobs.preview import ForkPreview, UndoPreview
from perdure.web.access.principal import Permission
from perdure.web.request import Answer, ApiRequest, Query, Route


class ForkQuery(Query, frozen=True, kw_only=True):
    """Where to fork."""

    before: str


async def show_undo(request: ApiRequest) -> Answer:
    """Return what would be undone of a job now, in order, and what would not and why."""
    return Answer(await request.store.undo_preview(request.path["id"]))


async def show_fork(request: ApiRequest) -> Answer:
    """Return what a fork of a job would reuse, and which effects it would repeat."""
    return Answer(await request.store.fork_preview(request.path["id"], request.query.before))


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/undo",
        handler=show_undo,
        permission=Permission.JOBS_READ,
        summary="Show what would be undone now, in order, and what would not and why",
        response=UndoPreview,
    ),
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/fork",
        handler=show_fork,
        permission=Permission.JOBS_READ,
        summary="Show what a fork before a step would reuse, and which effects it would repeat",
        query=ForkQuery,
        response=ForkPreview,
    ),
)
