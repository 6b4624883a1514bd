"""`app.asgi()` mounted in real web frameworks: API, page, events and the end, below a prefix."""

import asyncio
import re
import signal
import sys
from pathlib import Path

import httpx
import pytest

from perdure import App, Client, Plan
from perdure.jobs.plan import PlanCall
from perdure.jobs.state import JobState
from tests.support.live_server import KIM, following
from tests.support.mounted_site import HELLO
from tests.support.web_client import TrustingGate

pytestmark = pytest.mark.once


@pytest.mark.parametrize("framework", ["fastapi", "starlette", "django"])
async def test_a_mounted_app_serves_everything_below_its_prefix_and_ends_with_the_site(
    framework: str, tmp_path: Path
) -> None:
    pytest.importorskip(framework)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.mounted_site", framework, url,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert program.stdout is not None
    address = (await program.stdout.readline()).decode().strip()
    async with httpx.AsyncClient(base_url=address, headers=KIM, timeout=30) as client:
        assert HELLO in (await client.get("/hello")).text
        await _check_page(client)
        async with following(client, "jobs", prefix="/ops") as frames:
            await frames.opened()
            body = {"name": "twice", "arguments": [1]}
            made = await client.post("/ops/api/v1/jobs", json=body)
            assert made.headers["location"] == f"/ops/api/v1/jobs/{made.json()['id']}"
            assert (await client.get(made.headers["location"])).status_code == 200
            rows = (await frames.next("jobs"))["items"]
            assert [row["id"] for row in rows] == [made.json()["id"]]
            whole = await client.get("/ops/metrics", headers={"x-who": "kim@* admin"})
            assert "perdure_jobs_submitted_total" in whole.text  # counted since the lifespan began
            program.send_signal(signal.SIGTERM)
            assert await frames.next("bye") == {"code": "shutdown"}
    assert await program.wait() in (0, -signal.SIGTERM)  # uvicorn raises the signal again
    assert not (tmp_path / "jobs.db-wal").exists()  # the store was closed


async def _check_page(client: httpx.AsyncClient) -> None:
    page = await client.get("/ops/")
    assert page.status_code == 200
    assets = re.findall(r'(?:src|href)="(/ops/assets/[^"]+)"', page.text)
    assert assets
    for each in assets:
        assert (await client.get(each)).status_code == 200
    assert (await client.get("/ops/login")).status_code in (200, 404)  # its own gate has none


async def test_a_client_without_the_code_serves_an_api_that_submits_plans(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = App(url)

    @app.step
    async def double(number: int) -> int:
        return number * 2

    plan = Plan(PlanCall.of("double", {"number": 4}, "first"), name="planned")
    asgi = Client(url).asgi(access=TrustingGate())
    transport = httpx.ASGITransport(app=asgi)
    async with (
        app,
        app.running(),
        asgi.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://test", headers=KIM) as client,
    ):
        del double
        text = plan.to_json().decode()
        made = await client.post("/api/v1/jobs", content=f'{{"plan": {text}}}', headers=_JSON)
        assert made.status_code == 201, made.text
        handle = await app.handle(made.json()["id"])
        await handle.until(JobState.COMPLETED)
        wrong = text.replace('"double"', '"unknown"')
        refused = await client.post("/api/v1/jobs", content=f'{{"plan": {wrong}}}', headers=_JSON)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_plan")
        assert "no worker knows the step 'unknown'" in refused.text


_JSON = {"content-type": "application/json"}
