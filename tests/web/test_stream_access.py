"""Who may listen to a stream of events, and for how long."""

import pytest

from perdure import App
from perdure.web import stream
from perdure.web.access.gate import Access
from perdure.web.access.principal import Role
from perdure.web.access.tokens import revoke_token
from tests.support.browser_like import bearer, token_of
from tests.support.live_server import following, served
from tests.support.tenants import canary, seeded, tenant_app

EVERYTHING = "viewer,operator,approver,admin,service"


@pytest.fixture
def app(url: str) -> App:
    return tenant_app(url)


async def test_the_stream_of_a_token_ends_when_it_is_revoked(app: App) -> None:
    async with served(app, Access()) as client:
        _, admin = await token_of(app, Role.ADMIN)
        id, viewer = await token_of(app, Role.VIEWER)
        async with following(client, "jobs", **bearer(viewer)) as frames:
            await frames.opened()
            answer = await client.delete(f"/api/v1/tokens/{id}", headers=bearer(admin))
            assert answer.status_code == 204
            assert await frames.next("bye") == {"code": "signed_out"}


async def test_the_stream_of_a_token_that_is_revoked_elsewhere_ends_with_the_next_check(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stream.CHECK_EVERY <= 15.0
    monkeypatch.setattr(stream, "CHECK_EVERY", 0.0)
    async with served(app, Access()) as client:
        id, viewer = await token_of(app, Role.VIEWER)
        async with following(client, "jobs", **bearer(viewer)) as frames:
            await frames.opened()
            await revoke_token(app.verbs, id, "acme")
            assert await frames.next("bye") == {"code": "signed_out"}


@pytest.mark.parametrize(
    "position",
    [
        "at=0",
        "at=1&jobs=0",
        "at=%C2%B2",
        "at=-1",
        "at=999999999999999",
        "at=" + "9" * 4000,
        "%00&;",
    ],
    ids=str,
)
async def test_a_position_that_somebody_made_up_shows_nothing_of_another_tenant(
    app: App, position: str
) -> None:
    async with served(app) as client:
        theirs = await seeded(app)
        who = {"x-who": f"eve@acme {EVERYTHING}"}
        topics = f"jobs,approvals,job:{theirs['acme'].job}"
        async with following(client, topics, position, **who) as frames:
            await frames.opened()
            mine = {"name": "business", "arguments": {"text": "mine"}}
            made = await client.post("/api/v1/jobs", json=mine, headers=who)
            while made.json()["id"] not in frames.text:
                await frames.next("jobs")
            assert canary("globex") not in frames.text
            assert theirs["globex"].job not in frames.text


@pytest.mark.parametrize("topic", ["job:{}", "output:{}:default", "jobs,job:{}", "output:{}:a:b"])
async def test_a_topic_of_another_tenant_is_one_that_does_not_exist(app: App, topic: str) -> None:
    async with served(app) as client:
        theirs = await seeded(app)
        who = {"x-who": f"eve@acme {EVERYTHING}"}

        async def refused(job: str) -> tuple[int, str]:
            asked = {"topics": topic.format(job)}
            answer = await client.get("/api/v1/events", params=asked, headers=who)
            return answer.status_code, answer.text.replace(job, "")

        assert await refused(theirs["globex"].job) == await refused("f" * 32)
        assert (await refused(theirs["globex"].job))[0] == 404
