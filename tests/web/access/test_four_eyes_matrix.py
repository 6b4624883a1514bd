"""Every way of starting something, by every credential of a person: that person never decides.

The routes are those of the table: one that starts something and is not listed here, or one that is
new and not said to be harmless, fails the first test. So does a new verb of the store.
"""

import ast
import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

pytest.importorskip("a2a")
pytest.importorskip("mcp_types")

import httpx
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.types.a2a_pb2 import Message, Part, SendMessageRequest
from a2a.types.a2a_pb2 import Role as A2ARole
from mcp_types import CallToolRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct
from msgspec.structs import replace

from perdure import App, JobContext, Retry, StepContext
from perdure.approvals import Person, Policy
from perdure.base.retry import pause
from perdure.engine.submission import new_id
from perdure.errors import Permanent
from perdure.integrations.a2a import PerdureAgent
from perdure.integrations.mcp import PerdureTasks
from perdure.integrations.mcp.tasks import EXTENSION
from perdure.jobs.approval import Approval, ApprovalState, Vote
from perdure.jobs.bulk import BULK_ACTIONS
from perdure.jobs.gate import GATES, Gate, GatePolicy
from perdure.jobs.model import JobQuery
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState, StepState
from perdure.store import verbs
from perdure.store.statements import load
from perdure.web.access.gate import Access
from perdure.web.access.principal import Role
from perdure.web.routes import ROUTES
from tests.support.browser_like import SITE, bearer, csrf_of, from_page, signed_in, token_of
from tests.support.engine import QUICK
from tests.web.access.test_audit import run_sql

# Thousands of requests, whose answers do not depend on the interpreter.
pytestmark = pytest.mark.once

Headers = Mapping[str, str]
ANNA = Person(id="anna", tenant="acme", roles=frozenset({"approver"}))


def _check(part: str) -> None:
    if part == "broken":
        raise Permanent("it is broken")


def paying_app(url: str) -> App:  # noqa: C901  it only declares
    """Return an app whose jobs pay, which people must approve, also when it is undone."""
    policy = Policy(gates=GatePolicy(gates={**GATES, RiskLevel.MEDIUM: Gate.WAIT}))
    app = App(url, worker=QUICK, queues=("default", "imported"), policy=policy)

    @app.step(retry=Retry(attempts=1))
    async def prepare(ctx: StepContext, what: str) -> str:
        async for part in ctx.items([what]):
            _check(part)
        return what

    @app.step(risk=RiskLevel.MEDIUM, retry=Retry(attempts=1))
    async def pay(what: str) -> str:
        return what

    @pay.compensate
    async def refund(ctx: StepContext, what: str, output: str | None) -> None:
        if what == "sticky":
            raise Permanent("it cannot be refunded")

    async def unsure(key: str) -> None:
        raise TimeoutError

    @app.step
    async def charge(ctx: StepContext) -> None:
        await ctx.effect("payment", unsure, target="bank", in_doubt="ask")

    @app.job
    async def pays(what: str) -> str:
        await prepare(what)
        return await pay(what)

    @app.job
    async def parents(what: str) -> str:
        return await pays(what)

    @app.job
    async def prepares(what: str) -> str:
        return await prepare(what)

    @app.job
    async def pays_what_a_child_says(what: str) -> str:
        return await pay(await prepares(what))

    @app.job
    async def doubts(what: str) -> str:
        await charge()
        return await pay(what)

    _ = parents, pays_what_a_child_says, doubts
    _add_jobs_to_undo(app, pay)
    return app


def _add_jobs_to_undo(app: App, pay: Any) -> None:
    @app.job(on_cancel="compensate")
    async def undoes(ctx: JobContext, what: str) -> None:
        await pay("fine")
        await pay(what)
        await ctx.receive("never")

    @app.job
    async def waits(ctx: JobContext, what: str) -> None:
        await pay(what)
        await ctx.receive("never")

    _ = undoes, waits


class World(Struct, frozen=True, kw_only=True):
    """An app with a worker, and people who have tokens."""

    app: App
    web: httpx.AsyncClient
    transport: httpx.ASGITransport
    url: str
    boss: Headers
    anna: Headers
    kim: Headers

    async def post(self, path: str, headers: Headers, **body: Any) -> Any:
        """Post to the API, which must succeed; return the answer."""
        return await self.change("POST", path, headers, body)

    async def change(self, method: str, path: str, headers: Headers, body: Any) -> Any:
        """Change something by the API, which must succeed; return the answer."""
        answer = await self.web.request(method, f"/api/v1{path}", json=body, headers=dict(headers))
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json()

    async def submitted(self, name: str, by: Headers, what: str = "fine") -> str:
        """Submit a job; return its id."""
        job = {"name": name, "arguments": {"what": what}}
        return (await self.post("/jobs", by, **job))["id"]

    async def question(self, job_id: str) -> Approval:
        """Wait until a job, or a child of it, asks people."""
        while True:
            for each in await self.app.approvals(tenant=None):
                job = await self.app.verbs.job(each.job_id)
                if job is not None and job_id in (job.id, job.parent):
                    return each
            await pause(0.005)

    async def answered(self, job_id: str, verdict: Any = "approve") -> None:
        """Let somebody else answer what a job asks."""
        approval = await self.question(job_id)
        await self.app.decide(approval, verdict, by=replace(ANNA, tenant=approval.tenant))

    async def reached(self, job_id: str, *states: JobState) -> None:
        """Wait until a job is in one of these states."""
        assert await (await self.app.handle(job_id)).until(*states) in states

    async def token(self, name: str, by: Headers) -> Headers:
        """Let somebody make a token of a program that may do everything but decide."""
        return bearer((await self.post("/tokens", by, name=name, roles=["admin"]))["secret"])


@asynccontextmanager
async def world_of(url: str) -> AsyncGenerator[World]:
    app = paying_app(url)
    transport = httpx.ASGITransport(app=app.asgi(access=Access()))
    async with (
        app,
        httpx.AsyncClient(transport=transport, base_url=SITE) as web,
        app.running(),
    ):
        _, boss = await token_of(app, Role.ADMIN, Role.APPROVER, person="boss")
        _, anna = await token_of(app, Role.APPROVER, person="anna")
        _, kim = await token_of(app, Role.OPERATOR, person="kim")
        people = {"boss": bearer(boss), "anna": bearer(anna), "kim": bearer(kim)}
        yield World(app=app, web=web, transport=transport, url=url, **people)


# The credentials of a person: all of them are the boss.


async def a_token(world: World) -> Headers:
    return world.boss


async def a_session(world: World) -> Headers:
    async with httpx.AsyncClient(transport=world.transport, base_url=SITE) as browser:
        token = world.boss["authorization"].removeprefix("Bearer ")
        assert (await signed_in(browser, token=token)).status_code == 303
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        return {"cookie": cookie, **from_page(browser, await csrf_of(browser))}


async def a_program(world: World) -> Headers:
    return await world.token("one", world.boss)


async def a_program_of_a_session(world: World) -> Headers:
    return await world.token("clicked", await a_session(world))


async def a_program_of_a_program(world: World) -> Headers:
    return await world.token("second", await world.token("first", world.boss))


async def a_long_chain_whose_middle_is_gone(world: World) -> Headers:
    chain = world.boss
    for name in ("a", "b", "c", "d", "e"):
        chain = await world.token(name, chain)
    run_sql(world.url, "UPDATE token SET revoked_at = 1 WHERE principal = 'service:a'")
    run_sql(world.url, "UPDATE token SET expires_at = 1 WHERE principal = 'service:b'")
    run_sql(world.url, "DELETE FROM token WHERE principal IN ('service:c', 'service:d')")
    return chain


CREDENTIALS: Final[tuple[Callable[[World], Awaitable[Headers]], ...]] = (
    a_token,
    a_session,
    a_program,
    a_program_of_a_session,
    a_program_of_a_program,
    a_long_chain_whose_middle_is_gone,
)


async def who_is(world: World, by: Headers) -> str:
    """Return the id of the principal of a credential, as another server would know it."""
    found = await world.web.get("/api/v1/session", headers=dict(by))
    return found.json()["principal"]["id"]


# The ways: each lets a credential start what another person has submitted, or will submit.


async def submit(world: World, by: Headers) -> str:
    return await world.submitted("pays", by)


async def submit_a_parent(world: World, by: Headers) -> str:
    return await world.submitted("parents", by)


async def fork(world: World, by: Headers) -> str:
    job = await world.submitted("pays", world.kim)
    await world.question(job)
    copy = await world.post(f"/jobs/{job}/fork", by, before="prepare#1")
    await world.post(f"/jobs/{job}/cancel", world.kim)
    return copy["id"]


async def fork_of_a_fork(world: World, by: Headers) -> str:
    job = await fork(world, by)
    await world.question(job)
    return (await world.post(f"/jobs/{job}/fork", world.kim, before="prepare#1"))["id"]


async def fork_with_other_arguments_what_was_forked(world: World, by: Headers) -> str:
    job = await fork(world, by)
    await world.question(job)
    other = {"before": "prepare#1", "arguments": {"what": "other"}}
    return (await world.post(f"/jobs/{job}/fork", world.kim, **other))["id"]


async def rejected(world: World, name: str = "pays") -> str:
    job = await world.submitted(name, world.kim)
    await world.answered(job, "reject")
    await world.reached(job, JobState.FAILED)
    return job


async def retry(world: World, by: Headers) -> str:
    job = await rejected(world)
    await world.post(f"/jobs/{job}/retry", by)
    return job


async def retry_a_parent(world: World, by: Headers) -> str:
    job = await rejected(world, "parents")
    await world.post(f"/jobs/{job}/retry", by)
    return job


async def retry_in_bulk(world: World, by: Headers) -> str:
    job = await rejected(world)
    await world.post("/jobs/bulk", by, action="retry", ids=[job])
    return job


async def paused(world: World) -> str:
    job = await world.submitted("pays", world.kim)
    await world.question(job)
    await world.reached(job, JobState.WAITING)
    await world.post(f"/jobs/{job}/pause", world.kim)
    await world.reached(job, JobState.PAUSED)
    return job


async def resume(world: World, by: Headers) -> str:
    job = await paused(world)
    await world.post(f"/jobs/{job}/resume", by)
    return job


async def resume_in_bulk(world: World, by: Headers) -> str:
    job = await paused(world)
    await world.post("/jobs/bulk", by, action="resume", ids=[job])
    return job


async def skip(world: World, by: Headers) -> str:
    job = await world.submitted("pays", world.kim, "broken")
    await world.reached(job, JobState.FAILED)
    await world.post(f"/jobs/{job}/skip", by, step="prepare#1", reason="by hand", output="fine")
    return job


async def skip_item(world: World, by: Headers) -> str:
    job = await world.submitted("pays", world.kim, "broken")
    await world.reached(job, JobState.FAILED)
    await world.post(f"/jobs/{job}/skip_item", by, step="prepare#1", reason="not needed")
    return job


async def skip_in_a_child(world: World, by: Headers) -> str:
    """What a person says that a child has returned is what its parent goes on with."""
    job = await world.submitted("pays_what_a_child_says", world.kim, "broken")
    await world.reached(job, JobState.FAILED)
    (child,) = await world.app.find_jobs(JobQuery(parent=job))
    given = {"step": "prepare#1", "reason": "by hand", "output": "a million"}
    await world.post(f"/jobs/{child.id}/skip", by, **given)
    await world.reached(child.id, JobState.COMPLETED)
    await world.post(f"/jobs/{job}/retry", world.kim)
    return job


async def under_way(world: World, name: str, *payments: str) -> str:
    """Return a job of kim that has paid, and waits for a message."""
    job = await world.submitted(name, world.kim, payments[-1])
    for number, _ in enumerate(payments, 1):
        await world.answered(job)
        while await paid(world, job) < number:
            await pause(0.005)
    return job


async def paid(world: World, job_id: str) -> int:
    journal = await world.app.verbs.journal(job_id)
    return sum(each.name == "pay" and each.state is StepState.SUCCEEDED for each in journal)


async def cancel(world: World, by: Headers) -> str:
    job = await under_way(world, "undoes", "fine", "fine")
    await world.post(f"/jobs/{job}/cancel", by)
    return job


async def cancel_in_bulk(world: World, by: Headers) -> str:
    job = await under_way(world, "undoes", "fine", "fine")
    await world.post("/jobs/bulk", by, action="cancel", ids=[job])
    return job


async def compensate(world: World, by: Headers) -> str:
    job = await under_way(world, "waits", "fine")
    await world.post(f"/jobs/{job}/cancel", world.kim)
    await world.reached(job, JobState.CANCELLED)
    await world.post(f"/jobs/{job}/compensate", by)
    return job


async def abandon_undo(world: World, by: Headers) -> str:
    job = await under_way(world, "undoes", "fine", "sticky")
    await world.post(f"/jobs/{job}/cancel", world.kim)
    await world.answered(job)
    await world.reached(job, JobState.NEEDS_ATTENTION)
    given = {"step": "undo:pay#2", "reason": "it stays"}
    await world.post(f"/jobs/{job}/abandon_undo", by, **given)
    return job


async def resolve(world: World, by: Headers) -> str:
    job = await world.submitted("doubts", world.kim)
    await world.reached(job, JobState.NEEDS_ATTENTION)
    (effect,) = await (await world.app.handle(job)).effects()
    await world.post(f"/effects/{effect.key}/resolve", by, outcome="happened", reason="seen")
    return job


async def put_schedule(world: World, by: Headers, name: str = "nightly") -> None:
    given = {"cron": "0 3 * * *", "job": "pays", "arguments": {"what": "fine"}}
    await world.change("PUT", f"/schedules/{name}", by, given)


async def fired(world: World, name: str = "nightly") -> str:
    """Let the time of a schedule come, as a worker does it."""
    found = [each for each in await world.app.verbs.schedules("acme") if each.name == name]
    job = replace(found[0].job, id=new_id())
    assert await world.app.verbs.fire(found[0], (found[0].next_at or 0) + 60, [job])
    return job.id


async def change_a_schedule(world: World, by: Headers) -> str:
    await put_schedule(world, world.kim)
    await put_schedule(world, by)
    return await fired(world)


async def a_schedule_that_another_runs(world: World, by: Headers) -> str:
    await put_schedule(world, by)
    return (await world.post("/schedules/nightly/run", world.kim))["id"]


async def resume_a_schedule(world: World, by: Headers) -> str:
    await put_schedule(world, world.kim)
    await world.post("/schedules/nightly/pause", world.kim)
    await world.post("/schedules/nightly/resume", by)
    return await fired(world)


async def resume_a_schedule_that_is_put_again(world: World, by: Headers) -> str:
    await put_schedule(world, world.kim)
    await world.post("/schedules/nightly/pause", world.kim)
    await world.post("/schedules/nightly/resume", by)
    await put_schedule(world, world.kim)
    return await fired(world)


async def run_a_schedule(world: World, by: Headers) -> str:
    await put_schedule(world, world.kim)
    return (await world.post("/schedules/nightly/run", by))["id"]


async def import_a_job(world: World, by: Headers) -> str:
    """There is no route for it: programs and the command line import."""
    data = await world.app.export_job(await rejected(world))
    copy = await world.app.import_job(data, by=await who_is(world, by))
    return (await copy.fork("prepare#1", by="kim")).id


async def a_tool_of_mcp(world: World, by: Headers) -> str:
    """Your MCP server has authenticated the principal."""
    person = Person(id=await who_is(world, by), tenant="acme")
    tasks = PerdureTasks(world.app, who=lambda _: person, jobs=[world.app.jobs["pays"]])
    known = SimpleNamespace(client_capabilities=SimpleNamespace(extensions={EXTENSION: {}}))
    version = max(MODERN_PROTOCOL_VERSIONS)
    ctx: Any = SimpleNamespace(session=known, protocol_version=version, meta=None)
    params = CallToolRequestParams(name="pays", arguments={"what": "fine"})
    answer: Any = await tasks.intercept_tool_call(params, ctx, _never)
    return answer["taskId"]


async def a_message_by_a2a(world: World, by: Headers) -> str:
    """Your A2A server has authenticated the principal."""
    person = Person(id=await who_is(world, by), tenant="acme")
    agent = PerdureAgent(world.app, world.app.jobs["pays"], who=lambda _: person)
    call, queue, task_id = ServerCallContext(), cast("Any", SimpleNamespace()), new_id()
    queue.enqueue_event = _never
    message = Message(message_id=task_id, role=A2ARole.ROLE_USER, parts=[Part(text="fine")])
    asked = SendMessageRequest(message=message)
    context = RequestContext(call, asked, task_id=task_id, context_id=new_id())
    following = asyncio.ensure_future(agent.execute(context, queue))
    while (job := await agent.tasks.job(task_id, person)) is None:
        await pause(0.005)
    following.cancel()
    return job.id


async def _never(*_: Any) -> Any:
    """Pass nothing on."""


Way = Callable[[World, Headers], Awaitable[str]]
_JOB = "/api/v1/jobs/{id}"
_SCHEDULE = "/api/v1/schedules/{name}"
BY_ROUTE: Final[Mapping[str, tuple[Way, ...]]] = {
    "POST /api/v1/jobs": (submit, submit_a_parent),
    "POST /api/v1/jobs/bulk": (retry_in_bulk, resume_in_bulk, cancel_in_bulk),
    f"POST {_JOB}/fork": (fork, fork_of_a_fork, fork_with_other_arguments_what_was_forked),
    f"POST {_JOB}/retry": (retry, retry_a_parent),
    f"POST {_JOB}/resume": (resume,),
    f"POST {_JOB}/skip": (skip, skip_in_a_child),
    f"POST {_JOB}/skip_item": (skip_item,),
    f"POST {_JOB}/cancel": (cancel,),
    f"POST {_JOB}/compensate": (compensate,),
    f"POST {_JOB}/abandon_undo": (abandon_undo,),
    "POST /api/v1/effects/{key}/resolve": (resolve,),
    f"PUT {_SCHEDULE}": (change_a_schedule, a_schedule_that_another_runs),
    f"POST {_SCHEDULE}/resume": (resume_a_schedule, resume_a_schedule_that_is_put_again),
    f"POST {_SCHEDULE}/run": (run_a_schedule,),
}
ELSEWHERE: Final[tuple[Way, ...]] = (import_a_job, a_tool_of_mcp, a_message_by_a2a)
# They start no job, and change none.
STARTS_NOTHING: Final = frozenset(
    {
        *("POST /api/v1/tokens", "DELETE /api/v1/tokens/{id}"),  # see CREDENTIALS
        "DELETE /api/v1/sessions",
        *(f"POST {_JOB}/pause", f"DELETE {_SCHEDULE}", f"POST {_SCHEDULE}/pause"),
        f"POST {_JOB}/send",  # a job that acts on messages decides itself whom it believes
        *("POST /api/v1/approvals/{id}/decide", "POST /api/v1/approvals/{id}/delegate"),
        "POST /api/v1/approvals/{id}/reveal",
        *("POST /api/v1/queues/{name}/pause", "POST /api/v1/queues/{name}/resume"),
        *("POST /api/v1/workers/{id}/drain", "POST /api/v1/workers/{id}/resume"),
        "POST /api/v1/workers/{id}/processes/{pid}/kill",
        "POST /api/v1/workers/{id}/processes/{pid}/restart",
        "POST /api/v1/errors/{fingerprint}/mark",
        *("PUT /api/v1/views/{name}", "DELETE /api/v1/views/{name}"),
    }
)
# The functions of the store that make or change jobs and schedules, and which of them people call.
STARTING: Final = frozenset(
    {
        *("submit.submit", "submit._insert", "bundle.import_job"),
        *("command._apply", "command._new_lease"),
        *("schedule.put_schedule", "schedule.pause_schedule", "schedule.fire"),
    }
)
BY_WORKERS: Final = frozenset({"claim.claim", "write._change", "write.end_jobs"})
WAYS: Final = (*(way for ways in BY_ROUTE.values() for way in ways), *ELSEWHERE)


def test_every_route_that_starts_something_is_in_the_matrix() -> None:
    changing = {f"{each.method} {each.path}" for each in ROUTES if each.method != "GET"}
    assert changing == {*BY_ROUTE, *STARTS_NOTHING}
    in_bulk = {
        each.__name__.removesuffix("_in_bulk") for each in BY_ROUTE["POST /api/v1/jobs/bulk"]
    }
    assert {*BULK_ACTIONS} == in_bulk | {"pause"}


def test_every_function_of_the_store_that_starts_something_is_known() -> None:
    """A new one must note who asks for it: see `store.verbs.requester`."""
    starts = re.compile(r"INTO (job|lease|schedule)\b|UPDATE schedule\b|UPDATE job SET\s+state")
    statements = {name for name, text in load("sqlite").items() if starts.search(text)}
    found: set[str] = set()
    for path in Path(verbs.__file__).parent.glob("*.py"):
        for each in ast.parse(path.read_text("utf-8")).body:
            if isinstance(each, ast.FunctionDef) and statements & set(_texts(each)):
                found.add(f"{path.stem}.{each.name}")
    assert found == STARTING | BY_WORKERS


def _texts(function: ast.FunctionDef) -> Iterator[str]:
    for each in ast.walk(function):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


async def decided(world: World, approval: Approval, by: Headers) -> httpx.Response:
    path = f"/api/v1/approvals/{approval.id}/decide"
    vote = {"verdict": "approve", "action_hash": approval.action.hash}
    return await world.web.post(path, json=vote, headers=dict(by))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_who_starts_something_does_not_decide_about_it_by_whichever_credential(
    url: str, way: Way
) -> None:
    async with world_of(url) as world:
        for credential in CREDENTIALS:
            by = await credential(world)
            job_id = await way(world, by)
            approval = await world.question(job_id)
            where = f"{way.__name__} by {credential.__name__}"
            if approval.tenant == "acme":
                await _is_decided_by_anna_alone(world, approval, where)
            else:
                await _is_decided_by_another_alone(world, approval, where)


async def _is_decided_by_anna_alone(world: World, approval: Approval, where: str) -> None:
    path = f"/api/v1/approvals/{approval.id}"
    shown = (await world.web.get(path, headers=dict(world.boss))).json()
    assert shown["may_decide"].get("code") == "four_eyes", where
    own = await decided(world, approval, world.boss)
    assert (own.status_code, own.json().get("code")) == (403, "four_eyes"), where
    passed = await world.web.post(f"{path}/delegate", json={"to": "boss"}, headers=dict(world.anna))
    assert (passed.status_code, passed.json().get("code")) == (403, "four_eyes"), where
    theirs = await decided(world, approval, world.anna)
    assert theirs.status_code == 200, f"{where}: {theirs.text}"


async def _is_decided_by_another_alone(world: World, approval: Approval, where: str) -> None:
    """A job of another tenant than theirs, such as an imported one, is decided in a program."""
    anna = replace(ANNA, tenant=approval.tenant)
    refused = await world.app.verbs.vote(approval.id, _vote(approval, replace(anna, id="boss")))
    assert getattr(refused, "code", "") == "four eyes", where
    said = await world.app.verbs.vote(approval.id, _vote(approval, anna))
    assert isinstance(said, Approval), where
    assert said.state is ApprovalState.APPROVED, where


def _vote(approval: Approval, person: Person) -> Vote:
    return Vote(person=person, verdict="approve", action_hash=approval.action.hash)
