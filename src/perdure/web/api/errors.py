"""Errors: failures of the same cause as one group, and what people say about them."""

from typing import Final

from msgspec import Struct

from perdure.jobs.error_group import ErrorGroup, ErrorState
from perdure.web.access.principal import Permission
from perdure.web.request import Answer, ApiRequest, Page, Query, Route

_MOST: Final = 1000  # failed jobs that are looked at


class ErrorQuery(Query, frozen=True, kw_only=True):
    """Which groups."""

    since: float = 0.0  # of jobs that were submitted since then
    state: ErrorState | None = None


class ErrorPage(Page, frozen=True, kw_only=True):
    """Groups of failures, the latest first; `looked_at` newest failures are in them at most."""

    items: list[ErrorGroup]
    looked_at: int


class Mark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person says about a group."""

    state: ErrorState


async def list_errors(request: ApiRequest) -> Answer:
    """List groups of failures."""
    groups = await request.store.errors(request.query.since, _MOST)
    wanted = request.query.state
    items = [each for each in groups if wanted in (None, each.state)]
    return Answer(ErrorPage(items=items, now=await request.store.now(), looked_at=_MOST))


async def mark(request: ApiRequest) -> Answer:
    """Resolve, ignore or open a group of failures."""
    await request.store.mark_error(request.path["fingerprint"], request.body.state)
    return Answer(request.body)


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/errors",
        handler=list_errors,
        permission=Permission.JOBS_READ,
        summary="List failures in groups of the same cause",
        query=ErrorQuery,
        response=ErrorPage,
        tag="errors",
    ),
    Route(
        method="POST",
        path="/api/v1/errors/{fingerprint}/mark",
        handler=mark,
        permission=Permission.JOBS_RETRY,
        summary="Resolve, ignore or open a group of failures",
        request=Mark,
        response=Mark,
        tag="errors",
    ),
)
