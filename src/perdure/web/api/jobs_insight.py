"""What operators want to know about a job before they act on it."""

from typing import Final

from starlette.responses import Response

from perdure.jobs.bundle import Bundle
from perdure.jobs.preview import ForkPreview, UndoPreview
from perdure.jobs.timeline import StepAttempt, Timeline
from perdure.web.access.principal import Permission
from perdure.web.request import Answer, ApiRequest, Page, Query, Route


class ForkQuery(Query, frozen=True, kw_only=True):
    """Where to fork."""

    before: str


async def show_undo(request: ApiRequest) -> Answer:
    """Return what would be undone of a job now, in order, and what would not and why."""
    return Answer(await request.store.undo_preview(request.path["id"]))


async def show_fork(request: ApiRequest) -> Answer:
    """Return what a fork of a job would reuse, and which effects it would repeat."""
    return Answer(await request.store.fork_preview(request.path["id"], request.query.before))


class StepQuery(Query, frozen=True, kw_only=True):
    """Which step ("load#2"); without it, all of them."""

    step: str | None = None


class AttemptPage(Page, frozen=True, kw_only=True):
    """The attempts at steps, in order."""

    items: list[StepAttempt]


async def list_attempts(request: ApiRequest) -> Answer:
    """Return the attempts at the steps of a job."""
    items = await request.store.attempts(request.path["id"], request.query.step)
    return Answer(AttemptPage(items=items, now=await request.store.now()))


async def show_timeline(request: ApiRequest) -> Answer:
    """Return when a job waited for a worker, worked, backed off, or asked people."""
    return Answer(await request.store.timeline(request.path["id"]))


async def export_job(request: ApiRequest) -> Response:
    """Return a job as a file: all that people may see of it."""
    data = await request.store.export_job(request.path["id"])
    name = f'attachment; filename="job-{request.path["id"]}.json"'
    headers = {"content-disposition": name}
    return Response(data, media_type="application/json", headers=headers)


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/export",
        handler=export_job,
        permission=Permission.JOBS_EXPORT,
        summary="Export a job as a file, without secrets",
        response=Bundle,
    ),
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/attempts",
        handler=list_attempts,
        permission=Permission.JOBS_READ,
        summary="List the attempts at the steps of a job",
        query=StepQuery,
        response=AttemptPage,
    ),
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/timeline",
        handler=show_timeline,
        permission=Permission.JOBS_READ,
        summary="Show when a job waited for a worker, worked, backed off, or asked people",
        response=Timeline,
    ),
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
