"""Who may listen to a stream of events, and for how long."""

import re

import pytest

from perdure import App
from perdure.web import stream
from perdure.web.access.gate import Access
from perdure.web.access.principal import Role
from perdure.web.access.tokens import revoke_token
from perdure.web.stream_place import read_place, spell_place
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


async def test_the_ids_of_events_tell_nothing_of_what_other_tenants_do(app: App) -> None:
    async with served(app) as client:
        who = {"x-who": f"eve@acme {EVERYTHING}"}
        ids: list[str] = []
        for _ in range(2):
            async with following(client, "jobs", **who) as frames:
                await frames.opened()
                ids += re.findall(r"id: at=(.*)", frames.text)
            await seeded(app)  # jobs of every tenant
        for each in ids:
            assert not re.fullmatch(r"[0-9]*", each)
        assert len(set(ids)) == len(ids) == 2
        # Nor does it help to compare: the same place is spelled in another way each time.
        async with following(client, "jobs", **who) as frames:
            await frames.opened()
            first = frames.text
        async with following(client, "jobs", **who) as frames:
            await frames.opened()
            assert frames.text != first


def test_a_place_is_read_back_by_its_tenant_alone_and_whatever_else_comes_is_none() -> None:
    key = b"k" * 32
    for place in (0, 1, 2**40, 2**62 - 1):
        for tenant in (None, "", "all", "acme", "\ud800"):
            spelled = spell_place(key, tenant, place)
            assert read_place(key, tenant, spelled) == place
            others = {None, "", "all", "acme", "globex"} - {tenant}
            assert {read_place(key, each, spelled) for each in others} == {None}
            assert read_place(b"j" * 32, tenant, spelled) is None
    for made_up in ("", "0", "7", "=", "A" * 32, "A" * 4000, "%00", "AAAA"):
        assert read_place(key, "acme", made_up) is None


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
