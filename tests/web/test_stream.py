"""Server-sent events: real uvicorn where the server stops, the bare app elsewhere."""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from perdure import App, JobContext
from perdure.approvals import ApprovalTerms, Policy
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from perdure.web.access.principal import Principal, Role
from perdure.web.changes import Changes
from perdure.web.shutdown import ServerShutdown
from perdure.web.stream import MOST_OF_ONE, MOST_OF_TENANT, Streams
from tests.support.asgi_request import SentRequest
from tests.support.live_server import KIM, following, served
from tests.support.store import claim_one, new_job, sql
from tests.support.web_client import TrustingGate


@pytest.fixture
def app(url: str) -> App:
    two = ApprovalTerms(quorum=2, four_eyes=False)
    app = App(url, policy=Policy(terms={RiskLevel.MEDIUM: two}))

    @app.step(risk=RiskLevel.MEDIUM, approval="required")
    async def pay() -> None:
        pass

    @app.job
    async def asks() -> None:
        await pay()

    @app.job
    async def quick(number: int) -> int:
        return number

    @app.job
    async def talks(ctx: JobContext) -> None:
        for word in ("one", "two", "three"):
            ctx.emit(word, topic="words")
        await ctx.receive("go")

    del quick, talks, asks
    return app


async def submit(client: httpx.AsyncClient, name: str, *args: Any, **headers: str) -> str:
    body = {"name": name, "arguments": list(args)}
    answer = await client.post("/api/v1/jobs", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def test_a_change_of_a_job_reaches_who_follows_and_no_other_tenant(app: App) -> None:
    async with served(app) as client, following(client, "jobs") as frames:
        await submit(client, "quick", 1, **{"x-who": "eve@other operator"})
        mine = await submit(client, "quick", 2)
        rows = (await frames.next("jobs"))["items"]
        assert [(row["id"], row["state"]) for row in rows] == [(mine, "PENDING")]
        async with app.running():
            while True:
                rows = (await frames.next("jobs"))["items"]
                assert {row["tenant"] for row in rows} == {"default"}
                if any(row["state"] == "COMPLETED" for row in rows):
                    break


class SubmitsAtOnce(SentRequest):
    """A client that submits a job as soon as it has an answer, and leaves when it hears of it."""

    def __init__(self, app: App) -> None:
        super().__init__("GET", "/api/v1/events?topics=jobs", iter(()), KIM)
        self._app = app

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._app.submit(self._app.jobs["quick"](1))
        await super()._send(message)
        if b"event: jobs" in self.body:
            self.hang_up()


async def test_what_changes_as_soon_as_a_stream_is_answered_reaches_it(app: App) -> None:
    client = SubmitsAtOnce(app)
    async with app, asyncio.timeout(30):
        await client.sent_to(app.asgi(access=TrustingGate()))
    assert client.body.count(b"event: jobs") == 1


async def test_who_comes_back_is_told_what_was_missed(app: App) -> None:
    async with served(app) as client:
        async with following(client, "jobs") as frames:
            await submit(client, "quick", 1)
            await frames.next("jobs")
        missed = await submit(client, "quick", 2)
        async with following(client, "jobs", frames.last_id) as again:
            rows = (await again.next("jobs"))["items"]
            assert missed in {row["id"] for row in rows}


async def test_the_output_of_a_job_is_followed_and_goes_on_where_it_was(app: App) -> None:
    async with served(app) as client, app.running():
        id = await submit(client, "talks")
        topic = f"output:{id}:words"
        seen: list[str] = []
        async with following(client, topic) as frames:
            while len(seen) < 3:
                seen += [each["value"] for each in (await frames.next("output"))["items"]]
        assert seen == ["one", "two", "three"]
        async with following(client, topic, frames.last_id) as again:
            await client.post(f"/api/v1/jobs/{id}/send", json={"topic": "go"})
            assert await again.next("output") == {
                "job": id,
                "topic": "words",
                "items": [],
                "ended": True,
            }


async def test_one_job_and_its_approvals_have_topics_of_their_own(app: App) -> None:
    async with served(app) as client:
        id = await submit(client, "talks")
        async with following(client, f"job:{id}") as frames:
            await client.post(f"/api/v1/jobs/{id}/pause", json={})
            assert (await frames.next("job"))["state"] == "PAUSED"


async def test_a_vote_is_told_although_the_job_still_waits_for_another(app: App) -> None:
    ann = {"x-who": "ann@default approver"}
    async with served(app) as client, app.running():
        id = await submit(client, "asks")
        await (await app.handle(id)).until(JobState.WAITING)
        (asked,) = (await client.get("/api/v1/approvals", headers=ann)).json()["items"]
        async with following(client, "approvals", **ann) as frames:
            await frames.opened()
            yes = {"verdict": "approve", "action_hash": asked["action"]["hash"]}
            path = f"/api/v1/approvals/{asked['id']}/decide"
            assert (await client.post(path, json=yes, headers=ann)).json()["state"] == "PENDING"
            assert await frames.next("approvals") == {"jobs": [id]}


async def test_who_follows_the_workers_gets_them_when_one_comes(app: App) -> None:
    async with served(app) as client, following(client, "workers") as frames:
        await frames.opened()
        async with app.running():
            items = (await frames.next("workers"))["items"]
            listed = (await client.get("/api/v1/workers")).json()["items"]
            assert [each["id"] for each in items] == [each["id"] for each in listed]
            assert (items[0]["stale"], items[0]["host"]) == (False, "")  # a tenant sees no machine


@pytest.mark.parametrize(
    ("topics", "who", "code"),
    [
        ("nothing", KIM["x-who"], "bad_topics"),
        ("job", KIM["x-who"], "bad_topics"),
        (",", KIM["x-who"], "bad_topics"),
        ("job:unknown", KIM["x-who"], "job_not_found"),
        ("workers", "ann@default approver", "forbidden"),
        ("jobs", "", "unauthenticated"),
    ],
)
async def test_a_topic_that_one_may_not_follow_is_refused(
    app: App, topics: str, who: str, code: str
) -> None:
    async with served(app) as client:
        answer = await client.get(
            "/api/v1/events", params={"topics": topics}, headers={"x-who": who}
        )
        assert answer.json()["code"] == code


SERVER = """
import asyncio, sys
import uvicorn
from perdure import App
from perdure.web.server import ServerSettings, serve
from tests.support.web_client import TrustingGate

app = App(sys.argv[1])
asgi = app.asgi(access=TrustingGate())
if sys.argv[2] == "ours":
    asyncio.run(serve(asgi, ServerSettings(port=0), lambda url: print(url, flush=True)))
else:  # a plain uvicorn, which knows nothing of Perdure

    class Plain(uvicorn.Server):
        async def startup(self, sockets=None):
            await super().startup(sockets)
            port = self.servers[0].sockets[0].getsockname()[1]
            print(f"http://127.0.0.1:{port}", flush=True)

    Plain(uvicorn.Config(asgi, port=0, log_level="warning")).run()
"""


@pytest.mark.parametrize("server", ["ours", "plain"])
async def test_a_server_that_is_told_to_stop_says_bye_to_open_streams_and_ends(
    server: str, tmp_path: Path
) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, f"sqlite:///{tmp_path / 'jobs.db'}", server,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    assert program.stdout is not None
    address = (await program.stdout.readline()).decode().strip()
    async with (
        httpx.AsyncClient(base_url=address, headers=KIM, timeout=30) as client,
        following(client, "jobs") as frames,
    ):
        program.send_signal(signal.SIGTERM)
        assert await frames.next("bye") == {"code": "shutdown"}
        await program.wait()  # with the client still there


async def test_a_job_that_only_works_on_is_not_passed_on_again(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.web.changes.READ_AT_MOST_EVERY", 0.0)
    changes, store = Changes(app), await app.store()
    begins = await changes.now()
    await store.submit([new_job("busy")])
    await claim_one(store)
    (batch,) = await changes.since(begins.number)
    assert [row.id for row in batch.rows] == ["busy"]
    sql(app.url, "UPDATE lease SET since = since - 5")  # its worked time and heartbeat are others
    assert await changes.since(batch.number) == []


async def test_neither_one_principal_nor_one_tenant_can_take_all_streams(app: App) -> None:
    streams = Streams(Changes(app), ServerShutdown())

    def who(tenant: str, id: str) -> Principal:
        return Principal(id=id, tenant=tenant, roles=frozenset({Role.VIEWER}))

    async with AsyncExitStack() as stack:

        async def opened(principal: Principal) -> bool:
            return await stack.enter_async_context(streams.counted(principal))

        assert all([await opened(who("acme", "0")) for _ in range(MOST_OF_ONE)])
        assert not await opened(who("acme", "0"))
        others = range(1, MOST_OF_TENANT // MOST_OF_ONE)
        assert all([await opened(who("acme", str(n))) for n in others for _ in range(MOST_OF_ONE)])
        assert not await opened(who("acme", "one more"))
        assert await opened(who("globex", "0"))
    async with streams.counted(who("acme", "0")) as is_open:  # those that have ended count no more
        assert is_open
