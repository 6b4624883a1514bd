"""Cron schedules: what they submit, when, and changing them."""

from typing import Any, Final, cast

from msgspec import Struct

from perdure.engine.submission import SubmitOptions
from perdure.jobs.cron import CatchUp, check_cron, next_time
from perdure.jobs.model import Schedule
from perdure.jobs.redaction import for_people
from perdure.jobs.text_limits import check_given
from perdure.web.access.principal import Permission
from perdure.web.api.jobs import created
from perdure.web.request import Answer, ApiRequest, Page, Priority, Route
from perdure.web.views import JobDetail, view_of

_PATH: Final = "/api/v1/schedules"
_AHEAD: Final = 5  # times that are shown


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A schedule.

    Attributes:
        explained: The cron expression in words.
        next: The next five times; none while it is paused.
    """

    name: str
    tenant: str
    cron: str
    timezone: str
    catch_up: str
    paused: bool
    job: str
    version: str
    arguments: Any
    queue: str
    priority: int
    labels: dict[str, str]
    user: str
    explained: str
    next: list[float]
    last_at: float | None


class SchedulePage(Page, frozen=True, kw_only=True):
    """All schedules, by name."""

    items: list[ScheduleView]


class ScheduleBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule to create or replace.

    Attributes:
        cron: "0 3 * * *": minute, hour, day, month, day of the week.
        job: The name of the job.
        arguments: By name, or by position.
        timezone: Of the cron expression.
        catch_up: What to do about times at which no worker ran.
        queue: Overrides the job's own, as does `priority`.
        priority: Higher is earlier.
        labels: Texts by name.
    """

    cron: str
    job: str
    arguments: dict[str, Any] | list[Any] = {}
    timezone: str = "UTC"
    catch_up: CatchUp = "one"
    queue: str | None = None
    priority: Priority | None = None
    labels: dict[str, str] = {}


def _view(schedule: Schedule, now: float) -> ScheduleView:
    job = schedule.job
    return view_of(
        ScheduleView,
        schedule,
        job=job.name,
        version=job.version,
        arguments=for_people(job.input),
        queue=job.queue,
        priority=job.priority,
        labels=job.labels,
        user=job.user,
        explained=check_cron(schedule.cron, schedule.timezone),
        next=[] if schedule.paused else _next_times(schedule, now),
    )


def _next_times(schedule: Schedule, now: float) -> list[float]:
    found: list[float] = []
    at = schedule.next_at or next_time(schedule.cron, schedule.timezone, now)
    while at is not None and len(found) < _AHEAD:
        found.append(at)
        at = next_time(schedule.cron, schedule.timezone, max(at, now))
    return found


async def list_schedules(request: ApiRequest) -> Answer:
    """List the schedules."""
    now = await request.store.now()
    items = [_view(each, now) for each in await request.store.schedules()]
    return Answer(SchedulePage(items=items, now=now))


async def show_schedule(request: ApiRequest) -> Answer:
    """Show a schedule."""
    found = await request.store.schedule(request.path["name"])
    return Answer(_view(found, await request.store.now()))


async def put_schedule(request: ApiRequest) -> Answer:
    """Create a schedule, or replace the one of this name."""
    body, name = cast("ScheduleBody", request.body), request.path["name"]
    check_given(schedule=name)
    check_cron(body.cron, body.timezone)
    given = {"queue": body.queue, "priority": body.priority, "labels": body.labels}
    options = {key: value for key, value in given.items() if value not in (None, {})}
    job = await request.prepare(body.job, body.arguments, cast("SubmitOptions", options))
    made = Schedule(
        name=name,
        cron=body.cron,
        job=job,
        timezone=body.timezone,
        catch_up=body.catch_up,
        next_at=next_time(body.cron, body.timezone, await request.store.now()),
    )
    await request.store.put_schedule(made)
    return await show_schedule(request)


async def delete_schedule(request: ApiRequest) -> Answer:
    """Delete a schedule; the jobs that it has submitted stay."""
    await request.store.delete_schedule(request.path["name"])
    return Answer(None, 204)


async def pause(request: ApiRequest) -> Answer:
    """Submit nothing for a schedule until it is resumed."""
    return await _set(request, paused=True)


async def resume(request: ApiRequest) -> Answer:
    """Continue a paused schedule from now on."""
    return await _set(request, paused=False)


async def _set(request: ApiRequest, *, paused: bool) -> Answer:
    found = await request.store.schedule(request.path["name"])
    next_at = next_time(found.cron, found.timezone, await request.store.now())
    await request.store.pause_schedule(found.name, paused=paused, next_at=next_at)
    return await show_schedule(request)


async def run_now(request: ApiRequest) -> Answer:
    """Submit the job of a schedule now, beside its times."""
    return await created(request, await request.store.run_schedule(request.path["name"]))


def _route(method: Any, end: str, handler: Any, summary: str, **more: Any) -> Route:
    given: dict[str, Any] = {
        "permission": Permission.SCHEDULES_WRITE,
        "response": ScheduleView,
        **more,
    }
    return Route(
        method=method, path=_PATH + end, handler=handler, summary=summary, tag="schedules", **given
    )


_READ: Final = Permission.SCHEDULES_READ
_ONE: Final = "/{name}"
ROUTES: Final = (
    _route("GET", "", list_schedules, "List schedules", permission=_READ, response=SchedulePage),
    _route("GET", _ONE, show_schedule, "Show a schedule", permission=_READ, cached=True),
    _route("PUT", _ONE, put_schedule, "Create or replace a schedule", request=ScheduleBody),
    _route("DELETE", _ONE, delete_schedule, "Delete a schedule", response=None, status=204),
    _route("POST", f"{_ONE}/pause", pause, "Pause a schedule"),
    _route("POST", f"{_ONE}/resume", resume, "Continue a paused schedule"),
    _route(
        "POST",
        f"{_ONE}/run",
        run_now,
        "Submit the job of a schedule now",
        response=JobDetail,
        status=201,
    ),
)
