"""The stream of changes."""

from typing import Final

from starlette.responses import Response

from perdure.web.request import EVENTS, ApiRequest, Query, Route


class StreamQuery(Query, frozen=True, kw_only=True):
    """Topics with commas between them: jobs, approvals, workers, job:ID, output:ID:TOPIC."""

    topics: str = "jobs"


async def follow(request: ApiRequest) -> Response:
    """Follow what changes, as server-sent events."""
    return await request.streams.respond(request)


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/events",
        handler=follow,
        permission=None,  # each topic needs its own
        summary="Follow what changes, as server-sent events",
        query=StreamQuery,
        response=str,
        media=EVENTS,
        tag="events",
    ),
)
