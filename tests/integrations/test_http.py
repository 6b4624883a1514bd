"""HTTP calls as effects, to real servers on the loopback."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import Retry
from perdure.app import App
from perdure.engine.context import JobContext
from perdure.engine.step_context import StepContext
from perdure.integrations.http import reply_of, send
from perdure.jobs.state import JobState
from tests.engine.gateway import Gateway
from tests.engine.rig import durable, until

QUICK = Retry(attempts=4, first="1ms", jitter=0)


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
        return await ctx.run(pay)

    return job


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
        await until(app, handle.id, JobState.ATTENTION)
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
        await until(app, handle.id, JobState.ATTENTION)  # an outage: not undone, but parked
        assert {line.state for line in await handle.effects()} == {"FAILED"}


def test_an_answer_that_is_not_the_json_that_it_says_is_kept_as_text() -> None:
    wrong = httpx.Response(200, headers={"content-type": "application/json"}, text="oops")
    assert reply_of(wrong)["body"] == "oops"
