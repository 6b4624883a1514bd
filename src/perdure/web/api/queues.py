"""Queues: how many jobs each has, and whether workers may claim from it."""

from typing import Final

from msgspec import Struct

from perdure.jobs.fleet import QueueCounts
from perdure.jobs.text_limits import check_given
from perdure.web.access.principal import Permission
from perdure.web.request import Answer, ApiRequest, Page, Route


class QueuePage(Page, frozen=True, kw_only=True):
    """All queues, by name."""

    items: list[QueueCounts]


class ReasonBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why."""

    reason: str = ""


class Changed(Struct, frozen=True, kw_only=True):
    """Whether the command changed anything."""

    changed: bool


async def list_queues(request: ApiRequest) -> Answer:
    """List the queues."""
    items = await request.store.queues()
    return Answer(QueuePage(items=items, now=await request.store.now()))


async def pause(request: ApiRequest) -> Answer:
    """Let no worker claim from a queue."""
    return await _set(request, paused=True)


async def resume(request: ApiRequest) -> Answer:
    """Let workers claim from a queue again."""
    return await _set(request, paused=False)


async def _set(request: ApiRequest, *, paused: bool) -> Answer:
    name, reason = request.path["name"], request.body.reason
    check_given(queue=name, reason=reason)
    changed = await request.store.pause_queue(name, reason=reason, paused=paused)
    return Answer(Changed(changed=changed))


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/queues",
        handler=list_queues,
        permission=Permission.QUEUES_READ,
        summary="List queues",
        response=QueuePage,
        tag="queues",
    ),
    Route(
        method="POST",
        path="/api/v1/queues/{name}/pause",
        handler=pause,
        permission=Permission.QUEUES_PAUSE,
        summary="Let no worker claim from a queue",
        request=ReasonBody,
        response=Changed,
        tag="queues",
    ),
    Route(
        method="POST",
        path="/api/v1/queues/{name}/resume",
        handler=resume,
        permission=Permission.QUEUES_PAUSE,
        summary="Let workers claim from a queue again",
        request=ReasonBody,
        response=Changed,
        tag="queues",
    ),
)
