"""Saved queries, which all of a tenant share."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from perdure.jobs.saved_view import SavedView
from perdure.jobs.text_limits import LONGEST_QUERY, check_given
from perdure.web.access.principal import Permission
from perdure.web.request import Answer, ApiRequest, Page, Route


class ViewPage(Page, frozen=True, kw_only=True):
    """All saved queries, by name."""

    items: list[SavedView]


class ViewBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query text."""

    query: Annotated[str, Meta(max_length=LONGEST_QUERY)]


class Deleted(Struct, frozen=True, kw_only=True):
    """What was deleted."""

    name: str


async def list_views(request: ApiRequest) -> Answer:
    """List the saved queries."""
    return Answer(ViewPage(items=await request.store.saved_views(), now=await request.store.now()))


async def save_view(request: ApiRequest) -> Answer:
    """Keep a query under a name."""
    name, query = request.path["name"], request.body.query
    check_given(view=name, query=query)
    await request.store.save_view(name, query)
    return Answer(request.body)


async def delete_view(request: ApiRequest) -> Answer:
    """Delete a saved query."""
    await request.store.delete_view(request.path["name"])
    return Answer(Deleted(name=request.path["name"]))


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/views",
        handler=list_views,
        permission=Permission.JOBS_READ,
        summary="List saved queries",
        response=ViewPage,
        tag="views",
    ),
    Route(
        method="PUT",
        path="/api/v1/views/{name}",
        handler=save_view,
        permission=Permission.VIEWS_WRITE,
        summary="Keep a query under a name",
        request=ViewBody,
        response=ViewBody,
        tag="views",
    ),
    Route(
        method="DELETE",
        path="/api/v1/views/{name}",
        handler=delete_view,
        permission=Permission.VIEWS_WRITE,
        summary="Delete a saved query",
        response=Deleted,
        tag="views",
    ),
)
