"""How sessions of browsers begin, and end: idle beside a stream, and everywhere at once."""

import httpx
import pytest

import perdure
from perdure import App
from perdure.web import stream
from perdure.web.access.audit_trail import verify_audit
from perdure.web.access.gate import Access
from perdure.web.access.principal import Role
from perdure.web.access.sessions import link_path, local_operator, new_sign_in_link
from tests.support.browser_like import (
    SITE,
    bearer,
    csrf_of,
    from_page,
    signed_in,
    token_of,
    web_of,
)
from tests.support.live_server import following, served
from tests.support.store import sql
from tests.support.tenants import tenant_app

AGES_AGO = 1000.0  # seconds: not idle yet, and long enough to be noted again


@pytest.fixture
def app(url: str) -> App:
    return tenant_app(url)


async def browser(
    client: httpx.AsyncClient, app: App, person: str, tenant: str | None = "acme"
) -> None:
    """Sign a person in with a client."""
    _, secret = await token_of(app, *Role, person=person, tenant=tenant)
    assert (await signed_in(client, token=secret)).status_code == 303


async def cookie(
    client: httpx.AsyncClient, app: App, person: str, tenant: str | None
) -> dict[str, str]:
    """Sign a person in with a browser of their own; return the header of its cookie."""
    await browser(client, app, person, tenant)
    header = {"cookie": f"__Host-perdure={client.cookies['__Host-perdure']}"}
    client.cookies.clear()
    return header


def was_away(url: str) -> None:
    """Let everybody who is signed in have done nothing for a while."""
    sql(url, f"UPDATE session SET seen_at = seen_at - {AGES_AGO}")


def seen_at(url: str) -> float:
    ((found,),) = sql(url, "SELECT seen_at FROM session")
    return found


async def test_an_open_stream_is_no_activity_of_the_person(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CHECK_EVERY", 0.0)
    monkeypatch.setattr(stream, "HEARTBEAT", 0.0)
    async with served(app, Access()) as client:
        await browser(client, app, "ann")
        was_away(url)
        before = seen_at(url)
        async with following(client, "jobs") as frames:
            for _ in range(4):  # between two of them, it is checked who listens
                await frames.opened()
        assert seen_at(url) == before


async def test_a_stream_ends_when_the_person_has_been_idle(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CHECK_EVERY", 0.0)
    async with served(app, Access()) as client:
        await browser(client, app, "ann")
        async with following(client, "jobs") as frames:
            await frames.opened()
            sql(url, "UPDATE session SET seen_at = 0")
            assert await frames.next("bye") == {"code": "signed_out"}
        assert (await client.get("/api/v1/jobs")).status_code == 401


async def test_what_a_page_reads_by_itself_is_no_activity_and_what_a_person_asks_for_is(
    app: App, url: str
) -> None:
    async with web_of(app) as web:
        await browser(web, app, "ann")
        was_away(url)
        before = seen_at(url)
        alone = {"x-unattended": "1"}
        assert (await web.get("/api/v1/summary", headers=alone)).status_code == 200
        assert seen_at(url) == before
        assert (await web.get("/api/v1/summary")).status_code == 200
        assert seen_at(url) > before


async def test_who_signs_out_everywhere_is_signed_out_in_every_browser_and_nobody_else_is(
    app: App,
) -> None:
    async with web_of(app) as web:
        laptop, phone, bob, namesake, boss = [
            await cookie(web, app, person, tenant)
            for person, tenant in (
                ("ann", "acme"), ("ann", "acme"), ("bob", "acme"), ("ann", "globex"), ("ann", None),
            )
        ]  # fmt: skip

        async def sign_out(mine: dict[str, str]) -> int:
            csrf = (await web.get("/api/v1/session", headers=mine)).json()["csrf"]
            answer = await web.delete("/api/v1/sessions", headers=from_page(web, csrf) | mine)
            return answer.json()["ended"]

        async def who_is_in() -> list[int]:
            asked = (laptop, phone, bob, namesake, boss)
            return [(await web.get("/api/v1/jobs", headers=each)).status_code for each in asked]

        assert await sign_out(laptop) == 2
        assert await who_is_in() == [401, 401, 200, 200, 200]
        assert await sign_out(boss) == 1
        assert await who_is_in() == [401, 401, 200, 200, 401]
        (entry,) = [
            row.entry for row in await app.verbs.audit_rows("acme")
            if row.entry.action == "sign_out_everywhere"
        ]  # fmt: skip
        assert (entry.actor, entry.target, entry.data) == ("ann", "ann", {"sessions": 2})
        assert (await verify_audit(app.verbs)).ok


async def test_signing_out_everywhere_needs_our_own_page_or_a_token(app: App) -> None:
    async with web_of(app) as web:
        await browser(web, app, "ann")
        assert (await web.delete("/api/v1/sessions")).status_code == 403
        assert (await web.get("/api/v1/jobs")).status_code == 200
        _, token = await token_of(app, Role.VIEWER, person="ann")
        headers = bearer(token) | {"cookie": ""}
        assert (await web.delete("/api/v1/sessions", headers=headers)).json() == {"ended": 1}
        assert (await web.get("/api/v1/jobs", headers=bearer(token))).status_code == 200


@pytest.mark.parametrize("everywhere", [True, False])
async def test_streams_end_with_a_sign_out(
    app: App, monkeypatch: pytest.MonkeyPatch, *, everywhere: bool
) -> None:
    monkeypatch.setattr(stream, "CHECK_EVERY", float("inf"))
    async with served(app, Access()) as client:
        await browser(client, app, "ann")
        csrf = from_page(client, await csrf_of(client))
        async with following(client, "jobs") as frames:
            await frames.opened()
            if everywhere:
                assert (await client.delete("/api/v1/sessions", headers=csrf)).is_success
            else:
                assert (await client.post("/logout", headers=csrf)).status_code == 303
            assert await frames.next("bye") == {"code": "signed_out"}


async def test_a_decision_that_needs_a_recent_sign_in_says_how_to_get_one_and_takes_a_link(
    app: App, url: str
) -> None:
    async with web_of(app) as web, app.running():
        await app.submit(app.jobs["business"](text="x"), tenant="acme", user="kim")
        while not (found := await app.approvals()):
            await perdure.process.sleep("5ms")
        body = {"verdict": "approve", "action_hash": found[0].action.hash}
        path = f"/api/v1/approvals/{found[0].id}/decide"
        for status in (403, 200):
            link = link_path(await new_sign_in_link(app.verbs, local_operator()))
            assert (await signed_in(web, token=f" {SITE}{link} ")).status_code == 303
            if status == 403:
                sql(url, "UPDATE session SET created_at = created_at - 3600")
            headers = from_page(web, await csrf_of(web))
            answer = await web.post(path, json=body, headers=headers)
            assert answer.status_code == status, answer.text
            if status == 403:
                assert answer.json()["code"] == "reauthenticate"
                assert "`perdure tokens sign-in` prints a new one" in answer.json()["detail"]
        again = await web.get("/login?again=1")
        assert "perdure tokens sign-in" in again.text


async def test_who_signs_in_with_the_token_of_a_program_is_told_what_a_person_needs(
    app: App,
) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.APPROVER)
        refused = await signed_in(web, token=secret)
        assert refused.status_code == 403
        assert "perdure tokens create NAME --role ROLE --person ID" in refused.text
