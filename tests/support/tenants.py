"""Two tenants with one of everything, each with a text that must never reach the other."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from perdure import App, JobContext
from perdure.engine.submission import SubmitOptions, stored_job
from perdure.jobs.model import NewJob
from perdure.jobs.plan import Plan
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from perdure.web.access.principal import Permission, Principal, Role
from perdure.web.access.tenant import Preparer, TenantHandle

TENANTS = ("acme", "globex")


def canary(tenant: str) -> str:
    """Return a text that only this tenant may see."""
    return f"canary-of-{tenant}"


def tenant_app(url: str) -> App:
    """Return an app whose one job does something of every kind, and then waits for a person."""
    app = App(url)

    @app.step
    async def greet(text: str) -> str:
        return f"hello {text}"

    @app.step(risk=RiskLevel.HIGH, approval="required")
    async def pay(text: str) -> str:
        return f"paid {text}"

    @app.job
    async def business(ctx: JobContext, text: str) -> str:
        ctx.emit(f"out {text}")
        await greet(text)
        return await pay(text)

    _ = business
    return app


def preparer(app: App) -> Preparer:
    """Return what makes jobs of an app by name."""

    async def prepare(
        job: str | Plan, arguments: Mapping[str, Any] | Sequence[Any], options: SubmitOptions
    ) -> NewJob:
        assert isinstance(job, str)
        definition = app.find_job(job)
        packed = definition.parameters.pack_plain(arguments, app.limits)
        return stored_job(job, definition, packed, options)

    return prepare


class Seeded(Struct, frozen=True, kw_only=True):
    """What one tenant has."""

    tenant: str
    job: str
    approval: str


def of(tenant: str | None, *roles: Role, name: str = "ann", **more: Any) -> Principal:
    """Return a principal."""
    return Principal(id=f"{name}@{tenant}", tenant=tenant, roles=frozenset(roles), **more)


def door(app: App, principal: Principal) -> TenantHandle:
    """Return the handle of a principal."""
    return TenantHandle(app, principal, prepare=preparer(app))


async def seeded(app: App) -> dict[str, Seeded]:
    """Give each tenant a job that waits for a person, and a schedule; return what they have."""
    found: dict[str, Seeded] = {}
    async with app.running():
        for tenant in TENANTS:
            text = canary(tenant)
            handle = await app.submit(
                app.jobs["business"](text=text),
                tenant=tenant, user=f"boss@{tenant}", key="june", labels={"what": text},
            )  # fmt: skip
            await handle.until(JobState.WAITING)
            await handle.send("note", {"text": text})
            (approval,) = await app.approvals(tenant=tenant)
            await app.schedules.put(
                "nightly", "0 3 * * *", app.jobs["business"](text=text), tenant=tenant
            )
            found[tenant] = Seeded(tenant=tenant, job=handle.id, approval=approval.id)
    return found


EVERYTHING = frozenset(Permission)
