"""The table of all routes of the API: see `request.Route`."""

from typing import Final

from perdure.web.api import (
    approvals,
    audit,
    commands,
    effects,
    errors,
    events,
    jobs,
    jobs_insight,
    metrics,
    processes,
    queues,
    saved_views,
    schedules,
    session,
    tokens,
    workers,
)
from perdure.web.request import Route

ROUTES: Final[tuple[Route, ...]] = (
    *session.ROUTES,
    *tokens.ROUTES,
    *audit.ROUTES,
    *jobs.ROUTES,
    *jobs_insight.ROUTES,
    *commands.ROUTES,
    *approvals.ROUTES,
    *effects.ROUTES,
    *queues.ROUTES,
    *schedules.ROUTES,
    *workers.ROUTES,
    *processes.ROUTES,
    *errors.ROUTES,
    *metrics.ROUTES,
    *saved_views.ROUTES,
    *events.ROUTES,
)


def specific_first(routes: tuple[Route, ...]) -> list[Route]:
    """Return routes in the order in which they are tried: fixed parts of a path before names."""
    return sorted(
        routes, key=lambda route: [part.startswith("{") for part in route.path.split("/")]
    )
