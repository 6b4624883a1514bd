"""Secrets that reach a job by its arguments, effects and errors never leave by the API."""

import pytest

from perdure import App, Secret, StepContext
from perdure.jobs.state import JobState
from perdure.web.access.gate import Access
from perdure.web.access.principal import Role
from perdure.web.routes import ROUTES
from tests.support.browser_like import bearer, token_of, web_of

CANARY = "canary-hunter2-4711"


@pytest.fixture
def app(url: str) -> App:
    app = App(url)

    @app.step
    async def charge(ctx: StepContext, password: str) -> str:
        details = {"api_key": password, "secret": Secret(password)}
        return await ctx.effect("payment", _charged, target="card", details=details)

    @app.step
    async def explode(password: str) -> None:
        raise ValueError(f"cannot connect to postgresql://me:{password}@db/x?password={password}")

    @app.job
    async def leaky(password: str) -> None:
        await charge(password)
        await explode(password)

    del leaky
    return app


async def _charged(key: str) -> str:
    return "ok"


async def test_no_route_page_or_metric_shows_a_secret(app: App) -> None:
    async with web_of(app, Access()) as web, app.running():
        handle = await app.submit(app.jobs["leaky"](password=CANARY), tenant="acme", user="bo")
        await handle.until(JobState.FAILED, JobState.NEEDS_ATTENTION)
        _, mine = await token_of(app, Role.ADMIN, Role.OPERATOR)
        _, every = await token_of(app, Role.ADMIN, tenant=None)
        values = {"id": handle.id, "what": "input", "topic": "default", "name": "x"}
        values |= {"pid": "1", "seq": "1", "key": "x", "fingerprint": "x"}
        for secret in (mine, every):
            for route in ROUTES:
                if route.method != "GET" or route.path == "/api/v1/events":
                    continue
                if "/payload/" in route.path:  # the raw arguments, for who may read jobs
                    continue
                path = route.path.format(**values)
                answer = await web.get(path, headers=bearer(secret))
                assert CANARY not in answer.text, path
                assert secret not in answer.text, path
            for path in ("/", "/login", "/metrics", "/healthz", "/readyz", "/api/openapi.json"):
                answer = await web.get(path, headers=bearer(secret))
                assert CANARY not in answer.text, path
