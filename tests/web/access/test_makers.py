"""Nobody gives what they do not have: by a token, a person, a link, a schedule, a kept answer."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from perdure import App
from perdure.approvals import Person, Policy
from perdure.base.errors import AccessDenied, ArgumentError
from perdure.jobs.approval import ApprovalState
from perdure.jobs.bulk import BULK_ACTIONS
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from perdure.notify.people import Contact, People
from perdure.web.access.gate import Access
from perdure.web.access.principal import PEOPLE_ONLY, Permission, Principal, Role
from perdure.web.access.secret_text import hash_secret
from perdure.web.access.sessions import local_operator, new_sign_in_link, use_sign_in_link
from perdure.web.access.tokens import MOST_MAKERS, NewToken, create_token, principal_of
from perdure.web.request import Route
from perdure.web.routes import ROUTES
from tests.support.browser_like import bearer, csrf_of, from_page, signed_in, token_of, web_of
from tests.support.store import new_job
from tests.support.tenants import of, seeded, tenant_app
from tests.web.access.test_matrix import BODIES

TENANTS = (None, "acme")
KINDS = ("person", "service")


# Tokens


async def test_a_program_that_may_manage_tokens_makes_no_person_who_decides(url: str) -> None:
    app = tenant_app(url)
    async with web_of(app) as web:
        scopes = (Permission.TOKENS_MANAGE,)
        _, program = await token_of(app, Role.ADMIN, tenant=None, scopes=scopes)
        asked = {"name": "x", "kind": "person", "principal": "eve", "roles": [*Role]}
        for roles in ([*Role], ["approver"], ["viewer"]):
            body = {**asked, "roles": roles, "scopes": ["tokens.manage"]}
            for each in (body, {**body, "scopes": None}):
                answer = await web.post("/api/v1/tokens", json=each, headers=bearer(program))
                assert answer.status_code == 403, answer.text
        assert [each.principal for each in await app.verbs.tokens()] == ["service:test"]


def makers() -> Iterator[Principal]:
    """Yield a principal of every kind, with every role, and with scopes that leave less of it."""
    scopes = (None, frozenset({Permission.TOKENS_MANAGE}), frozenset({*Permission} - PEOPLE_ONLY))
    sets = [(), *((role,) for role in Role), tuple(Role)]
    for tenant, kind, roles, given in product(TENANTS, KINDS, sets, scopes):
        yield of(tenant, *roles, name="ann", kind=kind, scopes=given)


def wishes(maker: Principal) -> Iterator[NewToken]:
    for kind, roles in product(KINDS, [*((role,) for role in Role), tuple(Role)]):
        for name in (maker.id, "eve") if kind == "person" else ("",):
            for scopes in (None, (Permission.APPROVALS_DECIDE,), (Permission.TOKENS_MANAGE,)):
                yield NewToken(name="x", kind=kind, roles=roles, principal=name, scopes=scopes)


async def test_whatever_is_made_may_do_no_more_than_its_maker(url: str) -> None:
    app, made = tenant_app(url), 0
    async with app:
        for maker in makers():
            for asked in wishes(maker):
                for tenant in {maker.tenant, "globex"}:
                    try:
                        token = await create_token(app.verbs, asked, tenant, maker)
                    except AccessDenied:
                        continue
                    found = await app.verbs.token_by_hash(hash_secret(token.secret))
                    assert found is not None
                    row = found[0]
                    given, made = principal_of(row), made + 1
                    assert given.permissions <= maker.permissions, (maker, asked)
                    assert maker.tenant in (None, given.tenant), (maker, asked)
                    assert given.kind == "service" or maker.kind == "person", (maker, asked)
                    assert maker.id in row.makers
        assert made > 50


@pytest.mark.parametrize("name", ["service:bot", "local", "root (command line)"])
async def test_no_person_is_called_like_a_program_or_like_who_has_the_store(
    url: str, name: str
) -> None:
    app = tenant_app(url)
    asked = NewToken(name="x", roles=(Role.VIEWER,), kind="person", principal=name)
    async with app:
        with pytest.raises(ArgumentError, match="not that of a person"):
            await create_token(app.verbs, asked, "acme", local_operator())


# People whom somebody has made


def paying_app(url: str, people: People) -> App:
    app = App(url, policy=Policy(people=people))

    @app.step(risk=RiskLevel.MEDIUM, approval="required")
    async def pay(amount: int) -> int:
        return amount

    @app.job
    async def pays(amount: int) -> int:
        return await pay(amount)

    del pays
    return app


async def asked_by(app: App, web: httpx.AsyncClient, secret: str) -> tuple[str, dict[str, Any]]:
    job = {"name": "pays", "arguments": {"amount": 5}}
    id = (await web.post("/api/v1/jobs", json=job, headers=bearer(secret))).json()["id"]
    await (await app.handle(id)).until(JobState.WAITING)
    (approval,) = [each for each in await app.approvals() if each.job_id == id]
    vote = {"verdict": "approve", "action_hash": approval.action.hash}
    return f"/api/v1/approvals/{approval.id}/decide", vote


APPROVERS = [
    Contact(person=Person(id=id, tenant="default", roles=frozenset({"approver"})))
    for id in ("chief", "zed", "anna")
]


@pytest.mark.parametrize("people", [[], APPROVERS], ids=["unlisted", "listed"])
async def test_a_person_whose_token_one_has_made_is_no_second_pair_of_eyes(
    url: str, people: list[Contact]
) -> None:
    """Who has made it knows its secret; what is made at the machine of the store is trusted."""
    app = paying_app(url, People(people))
    async with web_of(app) as web, app.running():
        _, chief = await token_of(app, Role.ADMIN, Role.APPROVER, tenant=None, person="chief")
        _, anna = await token_of(app, Role.APPROVER, tenant="default", person="anna")
        made: dict[str, str] = {}
        for name, by, more in (
            ("bot", chief, {"roles": ["admin"]}),
            ("zed", chief, {"roles": ["approver"], "kind": "person", "principal": "zed"}),
        ):
            body = {"name": name, **more}
            answer = await web.post("/api/v1/tokens", json=body, headers=bearer(by))
            assert answer.status_code == 201, answer.text
            made[name] = answer.json()["secret"]
        for secret in (chief, made["bot"]):
            path, vote = await asked_by(app, web, secret)
            own = await web.post(path, json=vote, headers=bearer(made["zed"]))
            assert (own.status_code, own.json()["code"]) == (403, "four_eyes")
            assert (await signed_in(web, token=made["zed"])).status_code == 303
            headers = from_page(web, await csrf_of(web))
            again = await web.post(path, json=vote, headers=headers)
            assert (again.status_code, again.json()["code"]) == (403, "four_eyes")
            done = await web.post(path, json=vote, headers=bearer(anna))
            assert done.status_code == 200, done.text


async def test_who_approves_and_then_starts_it_again_has_approved_nothing(url: str) -> None:
    """The yes of somebody who then asks for the job themselves would be one pair of eyes."""
    app, fails = App(url), True

    @app.step(risk=RiskLevel.MEDIUM, approval="required")
    async def pay(amount: int) -> int:
        if fails:
            raise ValueError("not yet")
        return amount

    @app.job
    async def pays(amount: int) -> int:
        return await pay(amount)

    def person(id: str) -> Person:
        return Person(id=id, tenant="default", roles=frozenset({"approver"}))

    async with app, app.running():
        handle = await app.submit(pays(5), user="kim")
        await handle.until(JobState.WAITING)
        (first,) = await app.approvals()
        await app.decide(first, "approve", by=person("boss"))
        await handle.until(JobState.FAILED, JobState.NEEDS_ATTENTION)
        fails = False
        await handle.retry(by="boss")
        await handle.until(JobState.WAITING)
        (again,) = await app.approvals()
        assert (again.id != first.id, again.requesters) == (True, {"boss"})
        refused = await app.verbs.approvals(ApprovalState.PENDING)
        assert [each.id for each in refused] == [again.id]
        await app.decide(again, "approve", by=person("anna"))
        assert await handle.result("20s") == 5


# Links and schedules


async def test_a_link_signs_in_with_the_scopes_of_the_person_and_never_a_program(url: str) -> None:
    app = tenant_app(url)
    async with app:
        limited = of("acme", Role.ADMIN, scopes=frozenset({Permission.JOBS_READ}))
        found = await use_sign_in_link(app.verbs, await new_sign_in_link(app.verbs, limited))
        assert found is not None
        assert found.permissions == {Permission.JOBS_READ}
        with pytest.raises(AccessDenied):
            await new_sign_in_link(app.verbs, of("acme", Role.ADMIN, kind="service"))


async def test_who_may_not_submit_does_not_let_a_schedule_do_it(url: str) -> None:
    app = tenant_app(url)
    async with web_of(app) as web:
        scopes = (Permission.SCHEDULES_WRITE, Permission.SCHEDULES_READ)
        _, operator = await token_of(app, Role.OPERATOR)
        _, limited = await token_of(app, Role.OPERATOR, scopes=scopes)
        path, body = "/api/v1/schedules/nightly", BODIES["ScheduleBody"]
        assert (await web.put(path, json=body, headers=bearer(limited))).status_code == 403
        assert (await web.put(path, json=body, headers=bearer(operator))).status_code == 200
        for verb, status in (("pause", 200), ("resume", 403), ("run", 403)):
            answer = await web.post(f"{path}/{verb}", headers=bearer(limited))
            assert (verb, answer.status_code) == (verb, status)


# Kept answers


def posts() -> Iterator[tuple[Route, dict[str, Any] | None]]:
    """Yield every POST whose answer is kept, each command to many jobs by itself."""
    for route in ROUTES:
        if route.method != "POST" or route.shown_once:
            continue
        if route.path.endswith("/bulk"):
            for action in BULK_ACTIONS:
                yield route, {"action": action, "q": ""}
        else:
            yield route, None if route.request is None else BODIES[route.request.__name__]


@pytest.mark.parametrize(
    ("route", "body"), [pytest.param(*each, id=f"{each[0].path} {each[1]}") for each in posts()]
)
async def test_a_kept_answer_is_given_to_nobody_who_could_not_get_it(
    url: str, route: Route, body: dict[str, Any] | None
) -> None:
    """The same person has a token with fewer permissions, and sends the same key."""
    app, path = tenant_app(url), route.path
    async with web_of(app) as web:
        mine = (await seeded(app))["acme"]
        _, strong = await token_of(app, *Role, person="ann")
        ids = {"id": mine.approval if "/approvals/" in path else mine.job}
        given = {"key": "x", "pid": "1", "fingerprint": "f" * 32, "name": "nightly", **ids}
        where, key = path.format(**given), {"idempotency-key": "one"}
        more: dict[str, Any] = {} if body is None else {"json": body}
        first = await web.post(where, headers={**bearer(strong), **key}, **more)
        assert first.status_code < 500, first.text
        own = {route.permission} if route.permission else set[Permission]()
        for scopes in (own, {*Permission} - own):
            _, weak = await token_of(app, *Role, person="ann", scopes=tuple(scopes))
            fresh = await web.post(where, headers=bearer(weak), **more)
            again = await web.post(where, headers={**bearer(weak), **key}, **more)
            refused = fresh.status_code == 403 and fresh.json()["code"] == "forbidden"
            assert not refused or again.status_code == 403, f"with {scopes}: {again.text}"
        if first.is_success:
            answer = await web.post(where, headers={**bearer(strong), **key}, **more)
            assert answer.headers["idempotent-replayed"] == "true"


async def test_a_bulk_answer_is_not_replayed_to_a_weaker_token(url: str) -> None:
    app = tenant_app(url)
    async with web_of(app) as web:
        await seeded(app)
        _, strong = await token_of(app, Role.OPERATOR, person="ann")
        _, weak = await token_of(app, Role.VIEWER, person="ann")
        body = {"action": "cancel", "q": ""}
        key = {"idempotency-key": "one"}
        first = await web.post("/api/v1/jobs/bulk", json=body, headers={**bearer(strong), **key})
        assert first.json()["affected"] == 1
        again = await web.post("/api/v1/jobs/bulk", json=body, headers={**bearer(weak), **key})
        assert (again.status_code, again.json()["code"]) == (403, "forbidden")


# The tenant without a name


@pytest.mark.parametrize(
    ("id", "tenant"), [("eve", ""), ("eve", "\u200b"), ("", "acme"), (" ", None)]
)
async def test_nobody_and_a_tenant_without_a_name_get_in_nowhere(
    url: str, id: str, tenant: str | None
) -> None:
    """A claim that is missing must make nobody an operator of the installation."""
    who = Principal(id=id, tenant=tenant, roles=frozenset(Role), signed_in_at=9e9)

    async def hook(request: Request) -> Principal:
        return who

    app = tenant_app(url)
    async with web_of(app, Access(authenticate=hook)) as web:
        assert who.permissions == frozenset()
        for route in ROUTES:
            path = route.path.format(
                id="x", key="x", name="x", what="input", seq="1", topic="x", pid="1",
                fingerprint="x",
            )  # fmt: skip
            body: dict[str, Any] = {}
            if route.request is not None:
                body["json"] = BODIES[route.request.__name__]
            answer = await web.request(route.method, path, **body)
            assert answer.status_code == 403, f"{route.method} {path}: {answer.text}"


async def test_no_token_and_no_job_belongs_to_a_tenant_without_a_name(url: str) -> None:
    app = tenant_app(url)
    asked = NewToken(name="x", roles=(Role.ADMIN,))
    async with app:
        with pytest.raises(ArgumentError, match="must not be empty"):
            await create_token(app.verbs, asked, "", local_operator())
        with pytest.raises(ArgumentError, match="must not be empty"):
            await app.submit(app.jobs["business"](text="x"), tenant="")
        with pytest.raises(Exception, match=r"(?i)check"):
            await app.verbs.submit([new_job("a", tenant="")])


async def test_a_chain_of_tokens_has_an_end(url: str) -> None:
    app = tenant_app(url)
    async with app:
        maker = of("acme", Role.ADMIN, makers=frozenset(map(str, range(MOST_MAKERS - 1))))
        made = await create_token(app.verbs, NewToken(name="x", roles=(Role.ADMIN,)), "acme", maker)
        found = await app.verbs.token_by_hash(hash_secret(made.secret))
        assert found is not None
        last = principal_of(found[0])
        with pytest.raises(AccessDenied, match="let a person make it"):
            await create_token(app.verbs, NewToken(name="y", roles=(Role.ADMIN,)), "acme", last)
