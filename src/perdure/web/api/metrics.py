"""Metrics: numbers over the last minutes, and the figures to watch."""

from typing import Annotated, Final

from msgspec import Meta

from perdure.jobs.series import LONGEST, MetricsPage
from perdure.web.access.principal import Permission
from perdure.web.request import Answer, ApiRequest, Query, Route


class MetricsQuery(Query, frozen=True, kw_only=True):
    """How far back."""

    minutes: Annotated[int, Meta(ge=1, le=LONGEST)] = 60


async def show_metrics(request: ApiRequest) -> Answer:
    """Return numbers over the last minutes, and the figures to watch."""
    return Answer(await request.store.metrics(request.query.minutes))


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/metrics",
        handler=show_metrics,
        permission=Permission.METRICS_READ,
        summary="Show numbers over the last minutes, and the figures to watch",
        query=MetricsQuery,
        response=MetricsPage,
        tag="metrics",
    ),
)
