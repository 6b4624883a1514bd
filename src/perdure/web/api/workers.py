"""Workers: which are there, what they know and do; drain one, and let it claim again."""

from typing import Final

from msgspec import Struct

from perdure.engine.attendance import SILENT
from perdure.jobs.fleet import FleetWorker
from perdure.jobs.worker_command import WorkerAction
from perdure.web.access.principal import Permission
from perdure.web.request import Answer, ApiRequest, Page, Route
from perdure.web.views import view_of

# Workers that have been silent for longer are no longer shown; most are forgotten before.
_SHOWN: Final = 7 * 86400.0


class KnownJob(Struct, frozen=True, kw_only=True):
    """A job that a worker knows, with the versions that it can run."""

    name: str
    versions: tuple[str, ...]


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker of the fleet."""

    id: str
    host: str  # "" and 0 for a tenant, which sees no machine
    pid: int
    started_at: float
    silent_for: float  # seconds since its last heartbeat
    stale: bool  # it has been silent for too long
    queues: tuple[str, ...]
    concurrency: int
    running: int
    draining: bool
    allow_kill: bool
    jobs: list[KnownJob] | None  # None: another version of Perdure has published it
    steps: int


class WorkerPage(Page, frozen=True, kw_only=True):
    """All workers, by id."""

    items: list[WorkerView]


class DrainAnswer(Struct, frozen=True, kw_only=True):
    """Whether a worker drains, and how many jobs it still has."""

    draining: bool
    running: int


class NoBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing, or why."""

    reason: str = ""


async def list_workers(request: ApiRequest) -> Answer:
    """List the workers, also those that are silent."""
    return Answer(WorkerPage(items=await worker_views(request), now=await request.store.now()))


async def worker_views(request: ApiRequest) -> list[WorkerView]:
    """Return the workers as the principal sees them, also those that are silent."""
    return [_view(each) for each in await request.store.workers(_SHOWN)]


def _view(worker: FleetWorker) -> WorkerView:
    known = worker.definitions
    return view_of(
        WorkerView,
        worker,
        stale=worker.silent_for > SILENT,
        jobs=None
        if known is None
        else [
            KnownJob(name=name, versions=(job.version, *job.accepts))
            for name, job in known.jobs.items()
        ],
        steps=0 if known is None else len(known.steps),
    )


async def drain(request: ApiRequest) -> Answer:
    """Let a worker claim nothing more, and release its jobs at their next safe points."""
    return await _ask(request, WorkerAction.DRAIN)


async def resume(request: ApiRequest) -> Answer:
    """Let a drained worker claim again."""
    return await _ask(request, WorkerAction.RESUME)


async def _ask(request: ApiRequest, action: WorkerAction) -> Answer:
    answer = await request.store.ask_worker(request.path["id"], action)
    return Answer(DrainAnswer(draining=answer["draining"], running=answer["running"]))


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/workers",
        handler=list_workers,
        permission=Permission.WORKERS_READ,
        summary="List workers",
        response=WorkerPage,
        tag="workers",
    ),
    Route(
        method="POST",
        path="/api/v1/workers/{id}/drain",
        handler=drain,
        permission=Permission.WORKERS_DRAIN,
        summary="Let a worker claim nothing more and release its jobs",
        request=NoBody,
        response=DrainAnswer,
        tag="workers",
    ),
    Route(
        method="POST",
        path="/api/v1/workers/{id}/resume",
        handler=resume,
        permission=Permission.WORKERS_DRAIN,
        summary="Let a drained worker claim again",
        request=NoBody,
        response=DrainAnswer,
        tag="workers",
    ),
)
