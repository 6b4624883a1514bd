"""Who is signed in, and the state of everything in a few numbers."""

from importlib.metadata import version
from typing import Final, Literal

from msgspec import Struct

from perdure.jobs.approval import ApprovalState
from perdure.jobs.effect import EffectState
from perdure.jobs.fleet import PublishedJob
from perdure.jobs.model import JobQuery
from perdure.jobs.remote_call import published_jobs
from perdure.web.access.principal import Permission, Principal
from perdure.web.request import Answer, ApiRequest, Route

_MANY: Final = 1000


class PrincipalView(Struct, frozen=True, kw_only=True):
    """Who asks, and what they may do."""

    id: str
    name: str
    kind: Literal["person", "service"]
    tenant: str | None
    tenants: list[str]
    roles: list[str]
    permissions: list[str]
    signed_in_at: float | None


class SessionView(Struct, frozen=True, kw_only=True):
    """The session; `csrf` goes into the header X-CSRF-Token of what a browser changes."""

    principal: PrincipalView
    csrf: str | None
    version: str
    store: str


class EndedSessions(Struct, frozen=True, kw_only=True):
    """How many sessions have ended."""

    ended: int


class Summary(Struct, frozen=True, kw_only=True):
    """The state of everything in a few numbers."""

    counts: dict[str, int]
    approvals: int  # that are pending
    in_doubt: int  # effects
    workers: int
    stale_workers: int
    unserved: list[str]  # what nobody serves
    now: float


def principal_view(principal: Principal) -> PrincipalView:
    """Return a principal."""
    return PrincipalView(
        id=principal.id,
        name=principal.name or principal.id,
        kind=principal.kind,
        tenant=principal.tenant,
        tenants=[] if principal.tenant is None else [principal.tenant],
        roles=sorted(principal.roles),
        permissions=sorted(principal.permissions),
        signed_in_at=principal.signed_in_at,
    )


async def show_session(request: ApiRequest) -> Answer:
    """Show who is signed in."""
    view = SessionView(
        principal=principal_view(request.principal),
        csrf=request.csrf,
        version=version("perdure"),
        store=request.store.kind,
    )
    return Answer(view)


async def sign_out_everywhere(request: ApiRequest) -> Answer:
    """End every session of the principal, also this one; tokens stay valid."""
    ended = await request.store.sign_out_everywhere()
    request.streams.recheck()
    return Answer(EndedSessions(ended=ended))


async def show_summary(request: ApiRequest) -> Answer:
    """Show the state of everything in a few numbers."""
    store = request.store
    effects = await store.open_effects(_MANY)
    fleet = await store.fleet()
    view = Summary(
        counts=await store.counts(JobQuery()),
        approvals=len(await store.approvals(ApprovalState.PENDING, limit=_MANY)),
        in_doubt=sum(each.state is EffectState.IN_DOUBT for each in effects),
        workers=len(fleet.workers),
        stale_workers=await store.stale_workers(),
        unserved=await store.unserved(),
        now=await store.now(),
    )
    return Answer(view)


class DefinitionsView(Struct, frozen=True, kw_only=True):
    """The jobs that workers know, by name, each with the JSON Schema of its arguments."""

    jobs: dict[str, PublishedJob]


async def show_definitions(request: ApiRequest) -> Answer:
    """Show the jobs that workers know."""
    return Answer(DefinitionsView(jobs=published_jobs(await request.store.definitions())))


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/session",
        handler=show_session,
        permission=None,
        summary="Show who is signed in",
        response=SessionView,
        tag="session",
    ),
    Route(
        method="DELETE",
        path="/api/v1/sessions",
        handler=sign_out_everywhere,
        permission=None,
        summary="Sign out everywhere: end every session of the principal, also this one",
        response=EndedSessions,
        tag="session",
    ),
    Route(
        method="GET",
        path="/api/v1/summary",
        handler=show_summary,
        permission=Permission.JOBS_READ,
        summary="Show the state of everything in a few numbers",
        response=Summary,
        tag="session",
    ),
    Route(
        method="GET",
        path="/api/v1/definitions",
        handler=show_definitions,
        permission=Permission.JOBS_READ,
        summary="Show the jobs that workers know",
        response=DefinitionsView,
        tag="session",
        cached=True,
    ),
)
