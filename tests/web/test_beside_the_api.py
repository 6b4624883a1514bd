"""What `app.asgi` serves beside the API: pages of mail links, Slack, probes and metrics."""

from collections.abc import AsyncGenerator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from perdure import App, Secret
from perdure.notify.links import LinkTokens
from perdure.notify.slack import SlackSettings
from perdure.web.approval_pages import recently_signed_in
from tests.support.web_client import TrustingGate

TOKENS = LinkTokens((Secret("a key of at least thirty-two bytes, for tests"),))
SLACK = SlackSettings(
    token=Secret("xoxb"),
    signing_secrets=(Secret("signing secret"),),
    channel="C1",
    teams=frozenset({"T1"}),
    apps=frozenset({"A1"}),
)


@pytest.fixture
async def client(url: str) -> AsyncGenerator[httpx.AsyncClient]:
    app = App(url)
    asgi = app.asgi(access=TrustingGate(), links=TOKENS, slack=SLACK)
    outer = Starlette(routes=[Mount("/ops", asgi)])
    transport = httpx.ASGITransport(app=outer)
    async with (
        app,
        httpx.AsyncClient(transport=transport, base_url="http://test/ops/") as client,
    ):
        yield client


async def test_the_pages_of_links_are_served_below_the_prefix(client: httpx.AsyncClient) -> None:
    shown = await client.get("approvals/link")
    assert "The part of your link after #" in shown.text
    forged = await client.post("approvals/view", data={"token": "forged"})
    assert forged.status_code == 403
    # A form of our own must say where it comes from.
    assert shown.headers["referrer-policy"] == "same-origin"


async def test_a_press_that_slack_has_not_signed_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("slack/interactive", content=b"payload={}")
    assert answer.status_code in (400, 401, 403)


@pytest.mark.parametrize(("ago", "who"), [(60.0, "kim"), (3600.0, None), (None, None)])
async def test_only_a_recent_sign_in_counts_beside_a_link(
    url: str, ago: float | None, who: str | None
) -> None:
    app = App(url)
    backend = app.asgi(access=TrustingGate(), links=TOKENS).backend
    async with app:
        at = 0.0 if ago is None else await (await app.store()).now() - ago
        headers = [(b"x-who", b"kim@acme approver"), (b"x-signed-in", str(at).encode())]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        found = await recently_signed_in(backend, scope)
    assert (found and found.id) == who


async def test_paths_of_parts_that_are_not_given_belong_to_the_page(url: str) -> None:
    app = App(url)
    transport = httpx.ASGITransport(app=app.asgi(access=TrustingGate()))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert "part of your link" not in (await client.get("/approvals/link")).text
        assert (await client.post("/slack/interactive")).status_code == 405


async def test_probes_are_open_and_metrics_are_not(client: httpx.AsyncClient) -> None:
    assert (await client.get("healthz")).text == "ok\n"
    assert (await client.get("readyz")).text == "ok\n"
    assert (await client.get("metrics")).status_code == 401
    mine = await client.get("metrics", headers={"x-who": "kim@acme admin"})
    assert (mine.status_code, mine.json()["code"]) == (403, "forbidden")
    whole = await client.get("metrics", headers={"x-who": "kim@* admin"})
    assert "# TYPE perdure_" in whole.text
