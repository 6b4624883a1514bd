"""Who gets in, by token, session, link or hook, and who does not: through the whole ASGI app."""

import asyncio
import re

import httpx
import pytest
from starlette.requests import Request

from perdure import App
from perdure.web.access.gate import Access
from perdure.web.access.principal import Permission, Principal, Role
from perdure.web.access.rates import Rate, Rates, address_key
from perdure.web.access.secret_text import csrf_token, hash_secret, new_token
from perdure.web.access.sessions import local_operator, new_sign_in_link
from perdure.web.access.settings import AccessSettings
from perdure.web.app import CSP
from perdure.web.login import local_path
from tests.support.browser_like import (
    bearer,
    csrf_of,
    from_page,
    operator,
    signed_in,
    token_of,
    web_of,
)
from tests.support.tenants import tenant_app

SUBMIT = {"name": "business", "arguments": {"text": "x"}}


@pytest.fixture
def app(url: str) -> App:
    return tenant_app(url)


# Tokens


async def test_without_a_credential_nobody_gets_in(app: App) -> None:
    async with web_of(app) as web:
        for path in ("/api/v1/session", "/api/v1/jobs", "/api/v1/tokens", "/api/v1/audit"):
            answer = await web.get(path)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_token_opens_what_its_roles_and_scopes_allow(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.SERVICE, scopes=(Permission.JOBS_SUBMIT,))
        made = await web.post("/api/v1/jobs", json=SUBMIT, headers=bearer(secret))
        assert made.status_code == 201
        assert made.json()["tenant"] == "acme"
        assert (await web.get("/api/v1/jobs", headers=bearer(secret))).status_code == 403


async def test_a_revoked_an_expired_and_an_altered_token_open_nothing(app: App) -> None:
    async with web_of(app) as web:
        id, secret = await token_of(app, Role.VIEWER)
        assert (await web.get("/api/v1/jobs", headers=bearer(secret))).status_code == 200
        other = secret[:-1] + ("A" if secret[-1] != "A" else "B")
        for wrong in (other, secret[:-1], secret + "A", new_token(), "pdr_", "pdr_" + "A" * 9000):
            assert (await web.get("/api/v1/jobs", headers=bearer(wrong))).status_code == 401
        assert await app.verbs.revoke_token(id)
        assert (await web.get("/api/v1/jobs", headers=bearer(secret))).status_code == 401
        _, short = await token_of(app, Role.VIEWER, lifetime=1e-9)
        assert (await web.get("/api/v1/jobs", headers=bearer(short))).status_code == 401


async def test_only_the_hash_of_a_token_is_stored(app: App) -> None:
    async with app:
        _, secret = await token_of(app, Role.VIEWER)
        assert re.fullmatch(r"pdr_[\w-]{43}", secret)
        (row,) = await app.verbs.tokens()
        assert row.hash == hash_secret(secret)
        assert secret not in repr(row)
        assert secret.removeprefix("pdr_") not in repr(row)


async def test_tokens_are_made_listed_and_revoked_by_an_admin_of_the_tenant(app: App) -> None:
    async with web_of(app) as web:
        _, admin = await token_of(app, Role.ADMIN)
        _, stranger = await token_of(app, Role.ADMIN, tenant="globex")
        body = {"name": "ci", "roles": ["service"], "scopes": ["jobs.submit"]}
        made = await web.post("/api/v1/tokens", json=body, headers=bearer(admin))
        assert made.status_code == 201, made.text
        secret, id = made.json()["secret"], made.json()["token"]["id"]
        listed = await web.get("/api/v1/tokens", headers=bearer(admin))
        assert [each["name"] for each in listed.json()["items"]] == ["ci", "test"]
        assert secret not in listed.text
        assert (await web.post("/api/v1/jobs", json=SUBMIT, headers=bearer(secret))).is_success
        gone = await web.delete(f"/api/v1/tokens/{id}", headers=bearer(stranger))
        assert gone.status_code == 404
        assert (await web.delete(f"/api/v1/tokens/{id}", headers=bearer(admin))).is_success
        refused = await web.post("/api/v1/jobs", json=SUBMIT, headers=bearer(secret))
        assert refused.status_code == 401


async def test_the_secret_of_a_token_is_not_kept_for_an_idempotency_key(app: App) -> None:
    async with web_of(app) as web:
        _, admin = await token_of(app, Role.ADMIN)
        headers = {**bearer(admin), "idempotency-key": "one"}
        body = {"name": "ci", "roles": ["service"]}
        first = await web.post("/api/v1/tokens", json=body, headers=headers)
        again = await web.post("/api/v1/tokens", json=body, headers=headers)
        assert first.json()["secret"] != again.json()["secret"]


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "roles": ["approver"]},
        {"name": "x", "roles": ["approver"], "kind": "person", "principal": "bob"},
        {"name": "x", "roles": ["viewer"], "kind": "person", "principal": "bob"},
    ],
)
async def test_nobody_makes_a_token_that_may_do_more_than_they_or_is_another_person(
    app: App, body: dict[str, object]
) -> None:
    async with web_of(app) as web:
        _, admin = await token_of(app, Role.ADMIN)
        answer = await web.post("/api/v1/tokens", json=body, headers=bearer(admin))
        if body.get("kind") != "person":
            assert answer.status_code == 403 or "approvals.decide" not in answer.text
        else:
            assert answer.status_code == 403


# Signing in


async def test_a_person_signs_in_with_a_token_and_gets_a_cookie_that_nothing_else_reads(
    app: App,
) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.OPERATOR, person="ann")
        answer = await signed_in(web, token=secret)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-perdure=")
        assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        shown = (await web.get("/api/v1/session")).json()
        assert (shown["principal"]["id"], shown["principal"]["tenant"]) == ("ann", "acme")
        assert shown["principal"]["signed_in_at"]


async def test_on_loopback_without_tls_the_cookie_has_another_name(app: App) -> None:
    async with web_of(app, site="http://127.0.0.1:8080") as web:
        _, secret = await token_of(app, Role.OPERATOR, person="ann")
        cookie = (await signed_in(web, token=secret)).headers["set-cookie"]
        assert cookie.startswith("perdure-local=")
        assert "Secure" not in cookie
        assert (await web.get("/api/v1/jobs")).status_code == 200


async def test_nobody_signs_in_over_a_connection_that_others_can_read(app: App) -> None:
    async with web_of(app, site="http://jobs.test") as web:
        _, secret = await token_of(app, Role.OPERATOR, person="ann")
        answer = await signed_in(web, token=secret)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


async def test_a_program_does_not_sign_in(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.SERVICE)
        answer = await signed_in(web, token=secret)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


async def test_a_cookie_that_somebody_planted_is_never_that_of_a_person(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.OPERATOR, person="ann")
        planted = "A" * 43
        web.cookies.set("__Host-perdure", planted, domain="jobs.test")
        assert (await web.get("/api/v1/jobs")).status_code == 401
        await signed_in(web, token=secret)
        web.cookies.clear()
        answer = await web.get("/api/v1/jobs", headers={"cookie": f"__Host-perdure={planted}"})
        assert answer.status_code == 401


def cookie_of(answer: httpx.Response) -> dict[str, str]:
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


async def test_each_sign_in_has_a_new_secret_and_ends_the_session_before(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.OPERATOR, person="ann")
        first = cookie_of(await signed_in(web, token=secret))
        second = cookie_of(await signed_in(web, token=secret))
        web.cookies.clear()
        assert first != second
        assert (await web.get("/api/v1/jobs", headers=first)).status_code == 401
        assert (await web.get("/api/v1/jobs", headers=second)).status_code == 200


async def test_a_cookie_that_was_stolen_is_worth_nothing_after_the_sign_out(
    app: App, url: str
) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.OPERATOR, person="ann")
        stolen = cookie_of(await signed_in(web, token=secret))
        out = await web.post("/logout", headers=from_page(web, await csrf_of(web)))
        assert out.status_code == 303
    async with web_of(tenant_app(url)) as web:  # also not after a restart
        assert (await web.get("/api/v1/jobs", headers=stolen)).status_code == 401


async def test_a_session_ends_with_the_token_that_it_began_with(app: App) -> None:
    async with web_of(app) as web:
        id, secret = await token_of(app, Role.OPERATOR, person="ann")
        await signed_in(web, token=secret)
        assert (await web.get("/api/v1/jobs")).status_code == 200
        await app.verbs.revoke_token(id)
        assert (await web.get("/api/v1/jobs")).status_code == 401


@pytest.mark.parametrize("limit", ["idle", "absolute"])
async def test_a_session_ends_when_it_is_idle_and_at_its_absolute_end(app: App, limit: str) -> None:
    settings = AccessSettings(idle=0.0) if limit == "idle" else AccessSettings(absolute=0.0)
    async with web_of(app, Access(settings=settings)) as web:
        _, secret = await token_of(app, Role.OPERATOR, person="ann")
        assert (await signed_in(web, token=secret)).status_code == 303
        assert (await web.get("/api/v1/jobs")).status_code == 401


async def test_sign_ins_and_sign_outs_are_in_the_audit_log(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.OPERATOR, person="ann")
        await signed_in(web, token=secret)
        await web.post("/logout", headers=from_page(web, await csrf_of(web)))
        entries = [each.entry for each in await app.verbs.audit_rows("acme")]
        assert [(each.action, each.actor) for each in entries] == [
            ("sign_in", "ann"), ("sign_out", "ann"),
        ]  # fmt: skip
        assert entries[0].address == "127.0.0.1"


# Links


async def test_a_link_signs_in_once_and_looking_at_it_does_not_use_it_up(app: App) -> None:
    async with web_of(app) as web:
        link = await new_sign_in_link(app.verbs, local_operator())
        for _ in range(3):
            page = await web.get("/login", params={"link": link})
            assert page.status_code == 200
            assert "set-cookie" not in page.headers
            assert link not in page.text  # a secret in an address is none any more
            await web.head("/login", params={"link": link})
        assert (await signed_in(web, link=link)).status_code == 303
        assert (await web.get("/api/v1/jobs")).status_code == 200
        web.cookies.clear()
        again = await signed_in(web, link=link)
        assert again.status_code == 403
        assert "set-cookie" not in again.headers


async def test_of_many_who_use_a_link_at_once_one_gets_in(app: App) -> None:
    async with web_of(app) as web:
        link = await new_sign_in_link(app.verbs, local_operator())
        answers = await asyncio.gather(*(signed_in(web, link=link) for _ in range(8)))
        assert sorted(each.status_code for each in answers) == [303, *[403] * 7]


async def test_an_expired_link_signs_nobody_in(app: App) -> None:
    async with web_of(app) as web:
        link = await new_sign_in_link(app.verbs, local_operator(), lifetime=0.0)
        assert (await signed_in(web, link=link)).status_code == 403


# Requests from elsewhere


async def test_what_changes_something_by_a_cookie_must_come_from_our_own_page(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.OPERATOR, person="ann")
        await signed_in(web, token=secret)
        csrf = await csrf_of(web)
        ours = from_page(web, csrf)
        wrong: list[dict[str, str]] = [
            {},
            {"x-csrf-token": csrf},
            from_page(web),
            {**ours, "x-csrf-token": csrf_token("another session")},
            {**ours, "x-csrf-token": ""},
            {**ours, "origin": "https://evil.test"},
            {**ours, "origin": "http://jobs.test"},
            {**ours, "origin": "https://jobs.test.evil.test"},
            {**ours, "origin": "null"},
            {**ours, "sec-fetch-site": "cross-site"},
            {**ours, "sec-fetch-site": "same-site"},
            {"x-csrf-token": csrf, "sec-fetch-site": "none"},
        ]
        for headers in wrong:
            answer = await web.post("/api/v1/jobs", json=SUBMIT, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "csrf"), headers
        assert (await web.get("/api/v1/jobs")).json()["items"] == []
        assert (await web.post("/api/v1/jobs", json=SUBMIT, headers=ours)).status_code == 201


async def test_another_site_can_neither_sign_a_browser_in_nor_out(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.OPERATOR, person="ann")
        evil = {"origin": "https://evil.test", "sec-fetch-site": "cross-site"}
        for headers in (evil, {}):
            answer = await web.post("/login", data={"token": secret}, headers=headers)
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers
        await signed_in(web, token=secret)
        assert (await web.post("/logout", headers=evil)).status_code == 403
        assert (await web.get("/api/v1/jobs")).status_code == 200


async def test_a_form_of_another_site_is_not_json(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.OPERATOR)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            headers = {**bearer(secret), "content-type": kind}
            answer = await web.post("/api/v1/jobs", content=b"{}", headers=headers)
            assert answer.status_code == 415


async def test_a_configured_origin_counts_and_not_what_a_proxy_says(app: App) -> None:
    settings = AccessSettings(origin="https://public.test")
    async with web_of(app, Access(settings=settings)) as web:
        _, secret = await token_of(app, Role.OPERATOR, person="ann")
        assert (await signed_in(web, token=secret)).status_code == 403
        headers = {"origin": "https://public.test"}
        answer = await web.post("/login", data={"token": secret}, headers=headers)
        assert answer.status_code == 303


async def test_a_server_that_knows_its_names_is_not_reached_by_another(app: App) -> None:
    access = Access(settings=AccessSettings(hosts=frozenset({"127.0.0.1", "[::1]"})))
    async with web_of(app, access, site="http://127.0.0.1:8080") as web:
        _, secret = await token_of(app, Role.VIEWER)
        assert (await web.get("/api/v1/jobs", headers=bearer(secret))).status_code == 200
        ipv6 = {**bearer(secret), "host": "[::1]:8080"}
        assert (await web.get("/api/v1/jobs", headers=ipv6)).status_code == 200
        rebound = {**bearer(secret), "host": "evil.test:8080"}
        assert (await web.get("/api/v1/jobs", headers=rebound)).status_code == 421


# Your own authentication


async def test_your_own_code_may_say_who_asks(app: App) -> None:
    async def hook(request: Request) -> Principal | None:
        return operator("acme") if request.headers.get("x-mine") == "yes" else None

    async with web_of(app, Access(authenticate=hook)) as web:
        assert (await web.get("/api/v1/jobs")).status_code == 401
        mine = {"x-mine": "yes"}
        assert (await web.get("/api/v1/jobs", headers=mine)).status_code == 200
        assert (await web.post("/api/v1/jobs", json=SUBMIT, headers=mine)).status_code == 201
        evil = {**mine, "origin": "https://evil.test"}
        assert (await web.post("/api/v1/jobs", json=SUBMIT, headers=evil)).status_code == 403


# Limits and headers


async def test_an_address_that_asks_too_often_is_told_when_to_come_back(app: App) -> None:
    access = Access(settings=AccessSettings(per_address=Rate(1e-3, 2)))
    async with web_of(app, access) as web:
        answers = [await web.get("/api/v1/jobs") for _ in range(4)]
        assert [each.status_code for each in answers] == [401, 401, 429, 429]
        assert int(answers[-1].headers["retry-after"]) >= 1


@pytest.mark.parametrize("limit", ["per_credential", "per_tenant"])
async def test_a_token_and_a_tenant_that_ask_too_often_are_refused(app: App, limit: str) -> None:
    access = Access(settings=AccessSettings(**{limit: Rate(1e-3, 2)}))  # pyright: ignore[reportArgumentType]
    async with web_of(app, access) as web:
        _, first = await token_of(app, Role.VIEWER)
        _, second = await token_of(app, Role.VIEWER)
        _, others = await token_of(app, Role.VIEWER, tenant="globex")
        for _ in range(2):
            assert (await web.get("/api/v1/jobs", headers=bearer(first))).status_code == 200
        assert (await web.get("/api/v1/jobs", headers=bearer(first))).status_code == 429
        same_tenant = (await web.get("/api/v1/jobs", headers=bearer(second))).status_code
        assert same_tenant == (200 if limit == "per_credential" else 429)
        assert (await web.get("/api/v1/jobs", headers=bearer(others))).status_code == 200


async def test_guesses_at_the_login_page_are_limited(app: App) -> None:
    async with web_of(app) as web:
        answers = [await signed_in(web, token=new_token()) for _ in range(12)]
        assert [each.status_code for each in answers] == [*[403] * 10, 429, 429]
        assert answers[-1].headers["retry-after"]


class StillClock:
    """Stands still until it is set."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return 0

    time = monotonic
    time_ns = monotonic_ns


def test_buckets_fill_again_and_never_take_more_memory_than_allowed() -> None:
    clock = StillClock()
    rates = Rates(Rate(1.0, 1), clock, most=100)
    rates.take("a", "x")
    with pytest.raises(Exception, match="too many requests"):
        rates.take("a", "x")
    clock.now = 1.0
    rates.take("a", "x")
    for no in range(1000):
        rates.take(f"{no}", "x")
    assert len(rates) == 100


def test_an_ipv6_network_counts_as_one_address() -> None:
    assert address_key("2001:db8::1") == address_key("2001:db8::ffff:1")
    assert address_key("2001:db8:0:1::1") != address_key("2001:db8::1")
    assert address_key("::ffff:10.0.0.1") == address_key("10.0.0.1")
    assert address_key("testclient") == "testclient"


async def test_a_body_that_is_too_large_is_refused_before_anybody_is_asked_who_they_are(
    app: App,
) -> None:
    async with web_of(app) as web:
        large = b"x" * (2 * 1024 * 1024)
        for path in ("/api/v1/jobs", "/login"):
            answer = await web.post(path, content=large)
            assert answer.status_code == 413


@pytest.mark.parametrize("path", ["/login", "/login.css", "/", "/api/v1/jobs", "/nowhere"])
async def test_every_answer_has_the_headers_that_bind_a_browser(app: App, path: str) -> None:
    async with web_of(app) as web:
        headers = (await web.get(path)).headers
        assert headers["content-security-policy"] == CSP
        assert "unsafe" not in CSP
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["x-frame-options"] == "DENY"
        assert "max-age" in headers["strict-transport-security"]
        assert "access-control-allow-origin" not in headers
    async with web_of(tenant_app(app.url), site="http://localhost") as web:
        assert "strict-transport-security" not in (await web.get(path)).headers


# The page


async def test_what_the_login_page_repeats_is_text(app: App) -> None:
    async with web_of(app) as web:
        bad = '"><script>alert(1)</script>'
        for name in ("link", "next"):
            page = await web.get("/login", params={name: bad})
            assert "alert" not in page.text
        page = await web.get("/login")
        text = page.text.replace('<script src="/login.js"></script>', "")
        assert not re.search(r"<script|<style|style=|javascript:|\son\w+=", text)
        assert "no-store" in page.headers["cache-control"]


@pytest.mark.parametrize(
    "text",
    ["https://evil.test", "//evil.test", "/\\evil.test", "javascript:alert(1)", "", "x",
     "/a\r\nset-cookie: x=1", "/\t/evil.test"],
)  # fmt: skip
async def test_after_a_sign_in_nobody_is_sent_elsewhere(app: App, text: str) -> None:
    assert local_path(text) == "/"
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.VIEWER, person="ann")
        answer = await signed_in(web, token=secret, next=text)
        assert answer.headers["location"] == "/"
        assert len(answer.headers.get_list("set-cookie")) == 1


async def test_after_a_sign_in_one_comes_back_to_the_page_one_wanted(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.VIEWER, person="ann")
        answer = await signed_in(web, token=secret, next="/approvals?mine=1")
        assert answer.headers["location"] == "/approvals?mine=1"
