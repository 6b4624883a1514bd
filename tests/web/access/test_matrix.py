"""Every route as every role of another tenant: nothing of a tenant reaches anybody else.

The calls are generated from the table of routes, so a new route is in it by itself. Bodies are
valid, so that it is not a decoder that refuses them.
"""

import re
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from perdure import App, StepContext
from perdure.jobs.approval import ApprovalState
from perdure.jobs.state import JobState
from perdure.web.access.principal import Permission, Principal, Role
from perdure.web.access.tokens import NewToken
from perdure.web.request import Route
from perdure.web.routes import ROUTES
from tests.support.browser_like import bearer, token_of, web_of
from tests.support.tenants import Seeded, canary, door, of, seeded, tenant_app
from tests.support.web_client import api_of

# Thousands of requests, whose answers do not depend on the interpreter.
pytestmark = pytest.mark.once

MINE, THEIRS = "acme", "globex"
NOBODYS = "f" * 32

BODIES: dict[str, Any] = {
    "NewTokenBody": {"name": "x", "roles": ["viewer"]},
    "NewJobBody": {"name": "business", "arguments": {"text": "x"}},
    "BulkBody": {"action": "cancel", "q": "", "dry_run": True},
    "CommandBody": {"reason": "x", "step": "greet#1"},
    "SendBody": {"topic": "note", "payload": 1},
    "ForkBody": {"before": "greet#1"},
    "DecisionBody": {"verdict": "approve", "action_hash": "x"},
    "DelegationBody": {"to": "bob"},
    "ResolutionBody": {"outcome": "happened", "reason": "x"},
    "ReasonBody": {"reason": "x"},
    "ScheduleBody": {"cron": "0 3 * * *", "job": "business", "arguments": {"text": "x"}},
    "ViewBody": {"query": "state:failed"},
    "Mark": {"state": "resolved"},
    "NoBody": {},
}
# A thing of another tenant is not found; what is put under its name is one's own.
PUTS_LAST = sorted(ROUTES, key=lambda route: route.method == "PUT")
OWNED = re.compile(r"/(jobs|approvals|tokens)/\{id\}|/effects/\{key\}|/(schedules|views)/\{name\}")


class World:
    """Two tenants with one of everything; the texts of each hold its canary."""

    def __init__(self, app: App, mine: dict[str, Seeded]) -> None:
        self.app = app
        self.jobs = {tenant: each.job for tenant, each in mine.items()}
        self.approvals = {tenant: each.approval for tenant, each in mine.items()}
        self.tokens: dict[str, str] = {}
        self.effects: dict[str, str] = {}

    def path(self, route: Route, tenant: str | None) -> str:
        """Return the path of a route with the things of a tenant in it; None: of nobody."""
        kind = route.path.split("/")[3]
        ids = {"jobs": self.jobs, "approvals": self.approvals, "tokens": self.tokens}
        values = {
            "id": ids.get(kind, {}).get(tenant or "", NOBODYS),
            "key": self.effects.get(tenant or "", NOBODYS),
            "name": f"of-{tenant}",
            "what": "input",
            "seq": "1",
            "topic": "default",
            "pid": "1",
            "fingerprint": NOBODYS,
        }
        path = route.path.format(**values)
        if route.path == "/api/v1/events":
            path += f"?topics=job:{self.jobs.get(tenant or '', NOBODYS)}"
        if route.path.endswith("/fork") and route.method == "GET":
            path += "?before=greet%231"
        return path


@pytest.fixture
async def world(url: str) -> AsyncGenerator[World]:
    app = tenant_app(url)

    async def unsure(key: str) -> None:
        raise TimeoutError

    @app.step
    async def charge(ctx: StepContext, text: str) -> None:
        await ctx.effect("payment", unsure, target=text, details={"note": text}, in_doubt="ask")

    @app.step
    async def explode(text: str) -> None:
        raise ValueError(text)

    @app.job
    async def doubts(text: str) -> None:
        await charge(text)

    @app.job
    async def fails(text: str) -> None:
        await explode(text)

    found = World(app, await seeded(app))
    async with app.running():
        for tenant in (MINE, THEIRS):
            await _add(found, tenant)
    yield found
    await app.close()


async def _add(world: World, tenant: str) -> None:
    app, text = world.app, canary(tenant)
    admin = door(app, of(tenant, Role.ADMIN))
    doubtful = await app.submit(app.jobs["doubts"](text=text), tenant=tenant)
    await doubtful.until(JobState.NEEDS_ATTENTION)
    (effect,) = await doubtful.effects()
    world.effects[tenant] = effect.key
    failed = await app.submit(app.jobs["fails"](text=text), tenant=tenant)
    await failed.until(JobState.FAILED, JobState.NEEDS_ATTENTION)
    business = app.jobs["business"](text=text)
    await app.schedules.put(f"of-{tenant}", "0 3 * * *", business, tenant=tenant)
    await admin.save_view(f"of-{tenant}", f"label.what:{text}")
    made = await admin.create_token(NewToken(name=text, roles=(Role.VIEWER,)))
    world.tokens[tenant] = made.token.id


async def call(client: httpx.AsyncClient, route: Route, path: str, role: str) -> httpx.Response:
    headers = {"x-who": f"eve@{MINE} {role}", "x-signed-in": "9999999999"}
    if route.request is None:
        return await client.request(route.method, path, headers=headers)
    body = BODIES[route.request.__name__]
    return await client.request(route.method, path, json=body, headers=headers)


def principal(role: str) -> Principal:
    roles = frozenset(map(Role, role.split(",")))
    return Principal(id="eve", tenant=MINE, roles=roles)


def test_every_body_of_the_table_has_an_example_here() -> None:
    assert {each.request.__name__ for each in ROUTES if each.request is not None} <= set(BODIES)


@pytest.mark.parametrize("role", [*Role, "viewer,operator,approver,admin,service"])
async def test_nothing_of_another_tenant_is_read_or_changed(world: World, role: str) -> None:
    who, secret = principal(role), canary(THEIRS)
    async with api_of(world.app, "") as client:
        for route in PUTS_LAST:
            answer = await call(client, route, world.path(route, THEIRS), role)
            where = f"{route.method} {route.path} as {role}: {answer.status_code} {answer.text}"
            assert secret not in answer.text, where
            assert answer.status_code < 500, where
            if route.permission is not None and not who.may(route.permission):
                assert answer.status_code == 403, where
            elif OWNED.search(route.path) and route.method != "PUT":
                assert answer.status_code == 404, where
                missing = await call(client, route, world.path(route, None), role)
                assert missing.status_code == 404, where
                assert missing.json()["code"] == answer.json()["code"], where
    await _is_untouched(world)


async def _is_untouched(world: World) -> None:
    app = world.app
    job = await app.verbs.job(world.jobs[THEIRS])
    approval = await app.verbs.approval(world.approvals[THEIRS])
    assert job is not None
    assert approval is not None
    assert (job.state, approval.state) == (JobState.WAITING, ApprovalState.PENDING)
    names = {each.name for each in await app.verbs.schedules(THEIRS)}
    assert names == {"nightly", f"of-{THEIRS}"}
    assert [each.revoked_at for each in await app.verbs.tokens(THEIRS)] == [None]
    assert [each.query for each in await app.verbs.saved_views(THEIRS)] == [
        f"label.what:{canary(THEIRS)}"
    ]


async def test_the_same_calls_do_reach_what_is_ones_own(world: World) -> None:
    """Otherwise the matrix would prove nothing: its calls would fail for another reason."""
    role = "viewer,operator,approver,admin,service"
    read: list[str] = []
    async with api_of(world.app, "") as client:
        for route in ROUTES:
            if route.method != "GET" or route.path.endswith("/events"):
                continue
            answer = await call(client, route, world.path(route, MINE), role)
            fleet = route.permission == Permission.PROCESSES_READ
            absent = "/payload/{seq}" in route.path
            assert answer.status_code == (403 if fleet else 200) or absent, route.path
            if canary(MINE) in answer.text:
                read.append(route.path)
    assert {"/api/v1/jobs", "/api/v1/jobs/{id}", "/api/v1/approvals", "/api/v1/effects"} <= {*read}
    assert {"/api/v1/schedules", "/api/v1/views", "/api/v1/tokens", "/api/v1/audit"} <= {*read}
    assert {"/api/v1/errors", "/api/v1/jobs/{id}/journal", "/api/v1/jobs/{id}/messages"} <= {*read}


async def _payloads(world: World, tenant: str) -> list[str]:
    """Return the paths of all payloads that a job of a tenant may have."""
    job = world.jobs[tenant]
    numbers = [each.seq for each in await world.app.verbs.journal(job)]
    parts = [f"{no}/{what}" for no in numbers for what in ("input", "output", "checkpoint")]
    return [f"/api/v1/jobs/{job}/payload/{each}" for each in (*parts, "job/input", "job/result")]


async def test_raw_payloads_are_found_by_their_own_tenant_alone(world: World) -> None:
    theirs, mine = await _payloads(world, THEIRS), await _payloads(world, MINE)
    assert len(theirs) > 3
    async with api_of(world.app, "") as client:
        for role in Role:
            headers = {"x-who": f"eve@{MINE} {role}"}
            for path in theirs:
                for asked in (path, f"{path}?offset=0&length=100"):
                    answer = await client.get(asked, headers=headers)
                    assert answer.status_code == 404, f"{path} as {role}"
                    assert canary(THEIRS) not in answer.text
            read = [await client.get(path, headers=headers) for path in mine]
            assert sum(canary(MINE) in each.text for each in read) >= 2, role


async def test_a_token_without_the_permission_reads_neither_payloads_nor_streams(
    world: World,
) -> None:
    scopes = (Permission.EFFECTS_READ,)
    async with web_of(world.app) as web:
        _, secret = await token_of(world.app, Role.ADMIN, tenant=MINE, scopes=scopes)
        job = world.jobs[MINE]
        topics = ("jobs", "approvals", "workers", f"job:{job}", f"output:{job}:default")
        streams = [f"/api/v1/events?topics={topic}" for topic in topics]
        for path in (*await _payloads(world, MINE), *streams):
            answer = await web.get(path, headers=bearer(secret))
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
            assert canary(MINE) not in answer.text


async def test_without_a_credential_every_route_is_closed(world: World) -> None:
    async with api_of(world.app, "") as client:
        for route in ROUTES:
            path = world.path(route, THEIRS)
            body = {} if route.request is None else {"json": BODIES[route.request.__name__]}
            answer = await client.request(route.method, path, **body)
            assert answer.status_code == 401, f"{route.method} {route.path}"
            assert canary(THEIRS) not in answer.text
