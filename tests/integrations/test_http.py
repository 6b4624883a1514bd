"""HTTP calls as effects, to real servers on the loopback."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import JobFailed
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.integrations.http import reply_of, send
from perdure.jobs.state import JobState
from tests.support.engine import durable, until
from tests.support.gateway import Gateway
from tests.support.servers import HttpSite, http, speaking

QUICK = Retry(attempts=4, initial_delay="1ms", jitter=0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def paying(app: App, url: str, **options: Any) -> Any:
    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> Any:
        async with httpx.AsyncClient(base_url=url) as client:
            given: dict[str, Any] = {"kind": "payment", "json": {"usd": 5}, **options}
            return await send(ctx, client, "POST", "/pay?token=x", **given)

    @app.job
    async def job(ctx: JobContext) -> Any:
        return await pay()

    return job()


@durable
async def test_the_key_goes_along_and_the_answer_is_kept(app: App) -> None:
    async with Gateway() as gateway, app.running():
        handle = await app.submit(paying(app, gateway.url))
        reply = await handle.result("5s")
        (line,) = await handle.effects()
        assert gateway.calls == [line.key]
        assert reply["body"]["id"] == f"/pay?token=x-{line.key[:6]}"
        assert (line.target, line.kind) == ("POST 127.0.0.1/pay", "payment")


@durable
async def test_a_receiver_that_fails_after_acting_is_called_again_with_its_key(app: App) -> None:
    async with Gateway("errs") as gateway, app.running():
        handle = await app.submit(paying(app, gateway.url, in_doubt="replay"))
        await handle.result("5s")
        assert (len(gateway.calls), len(gateway.acts)) == (2, 1)


@durable
async def test_a_naive_receiver_is_never_called_twice(app: App) -> None:
    async with Gateway("errs") as gateway, app.running():
        handle = await app.submit(paying(app, gateway.url))
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        assert len(gateway.acts) == 1
        assert [line.state for line in await handle.effects()] == ["IN_DOUBT"]


@durable
async def test_a_refusal_is_no_doubt(app: App) -> None:
    async with Gateway() as gateway, app.running():
        gateway.refuses = 1
        handle = await app.submit(paying(app, gateway.url))
        await handle.result("5s")
        assert len(set(gateway.calls)) == 2
        assert [line.state for line in await handle.effects()] == ["FAILED", "DONE"]


@durable
async def test_a_server_that_is_not_there_is_no_doubt(app: App) -> None:
    async with Gateway() as gateway:
        url = gateway.url
    async with app.running():
        handle = await app.submit(paying(app, url))
        await until(app, handle.id, JobState.NEEDS_ATTENTION)  # an outage: not undone, but parked
        assert {line.state for line in await handle.effects()} == {"FAILED"}


def test_an_answer_that_is_not_the_json_that_it_says_is_kept_as_text() -> None:
    wrong = httpx.Response(200, headers={"content-type": "application/json"}, text="oops")
    assert reply_of(wrong)["body"] == "oops"


@durable
async def test_an_ordinary_mock_transport_answers_an_effect(app: App) -> None:
    client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, json={"id": 7})),
        base_url="http://bank.test",
    )

    @app.step
    async def pay(ctx: StepContext) -> Any:
        return await send(ctx, client, "POST", "/pay", json={"usd": 5}, kind="payment")

    @app.job
    async def job(ctx: JobContext) -> Any:
        return await pay()

    async with app.running(), client:
        handle = await app.submit(job())
        reply = await handle.result("5s")
        assert (reply["status"], reply["body"]) == (200, {"id": 7})
        assert [line.state for line in await handle.effects()] == ["DONE"]


def site_url(site: HttpSite) -> str:
    return f"http://{site.address}"


BOMB = b'"' + b"0" * 5_000_000 + b'"'


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(BOMB, mtime=0)),
        ("gzip, gzip", gzip.compress(gzip.compress(BOMB, mtime=0), mtime=0)),
    ],
)
def test_an_answer_that_would_fill_the_memory_is_not_read_and_the_effect_is_done(
    url: str, encoding: str, body: bytes
) -> None:
    @durable
    async def test(app: App) -> None:
        async with http((200, body)) as site, app.running():
            site.headers["content-encoding"] = encoding
            handle = await app.submit(paying(app, site_url(site)))
            with pytest.raises(JobFailed, match="was done, and answered 200"):
                await handle.result("10s")
            assert [line.state for line in await handle.effects()] == ["DONE"]
            assert site.requests.qsize() == 1  # no retry calls it again

    test(url)


@durable
async def test_an_answer_that_drips_ends_at_the_deadline_and_leaves_a_doubt(app: App) -> None:
    async def drip() -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 X\r\ncontent-length: 100\r\n\r\nx"
        await asyncio.Event().wait()

    async with speaking(drip()) as address, app.running():
        handle = await app.submit(paying(app, f"http://{address}", total_timeout="200ms"))
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        (line,) = await handle.effects()
        assert line.state == "IN_DOUBT"
        assert "no complete response" in str(line.error)


@durable
async def test_a_redirect_leaves_a_doubt_and_is_not_followed(app: App) -> None:
    @app.step
    async def pay(ctx: StepContext, url: str) -> Any:
        async with httpx.AsyncClient(base_url=url, follow_redirects=True) as client:
            return await send(ctx, client, "POST", "/pay")

    @app.job
    async def job(ctx: JobContext, url: str) -> Any:
        return await pay(url)

    async with http() as inner, http((303, b"")) as outer, app.running():
        outer.headers["location"] = site_url(inner)
        handle = await app.submit(job(site_url(outer)))
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        assert [line.state for line in await handle.effects()] == ["IN_DOUBT"]
        assert inner.requests.empty()


def test_json_that_is_nested_without_end_is_kept_as_text() -> None:
    deep = httpx.Response(200, headers={"content-type": "application/json"}, text="[" * 100_000)
    assert reply_of(deep)["body"] == deep.text
