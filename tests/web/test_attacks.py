"""What attackers send, and clients that hang up: through the whole ASGI app."""

import asyncio
from pathlib import Path

import httpx
import pytest

from perdure import App
from perdure.web.access.principal import Role
from perdure.web.body import LIMITS, RequestLimits
from tests.support.browser_like import bearer, token_of, web_of
from tests.support.tenants import TENANTS, seeded, tenant_app

SUBMIT = {"name": "business", "arguments": {"text": "x"}}


@pytest.fixture
def app(url: str) -> App:
    return tenant_app(url)


@pytest.mark.parametrize("end", [b"", b"\\", b"\\\n"], ids=["none", "a backslash", "a line"])
async def test_a_string_without_an_end_costs_no_more_than_one_with_an_end(
    app: App, end: bytes
) -> None:
    start = b"[" * (LIMITS.depth + 1) + b'"'
    body = start + b'\\"' * ((LIMITS.body - len(start) - len(end)) // 2) + end
    async with web_of(app) as web:  # with quadratic time, this took hours
        _, secret = await token_of(app, Role.OPERATOR)
        answer = await web.post("/api/v1/jobs", content=body, headers=bearer(secret))
        assert answer.json()["code"] == "too_deep"


def _content(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir() if each.is_file())


async def test_the_secret_of_a_token_is_not_kept_for_an_idempotency_key(
    app: App, url: str, tmp_path: Path
) -> None:
    async with web_of(app) as web:
        _, admin = await token_of(app, Role.ADMIN)
        headers = {**bearer(admin), "idempotency-key": "once"}
        body = {"name": "ci", "roles": ["service"]}
        made = await web.post("/api/v1/tokens", json=body, headers=headers)
        assert made.status_code == 201, made.text
    if url.startswith("sqlite"):
        stored = _content(tmp_path)
        assert made.json()["token"]["id"].encode() in stored
        assert made.json()["secret"].encode() not in stored


async def test_a_command_to_the_jobs_of_another_tenant_reaches_none_of_ones_own(app: App) -> None:
    async with web_of(app) as web:
        mine = await seeded(app)
        _, secret = await token_of(app, Role.OPERATOR)
        headers = bearer(secret)
        body = {"action": "cancel", "q": "tenant:globex", "reason": "cleaning up"}
        refused = await web.post("/api/v1/jobs/bulk", json=body, headers=headers)
        unknown = {**body, "q": "tenant:nobody"}
        other = await web.post("/api/v1/jobs/bulk", json=unknown, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_query")
        assert refused.text.replace("globex", "nobody") == other.text
        for tenant in TENANTS:
            assert (await (await app.handle(mine[tenant].job)).job()).state == "WAITING"


@pytest.mark.parametrize(
    "wrong",
    [{"delay": "soon"}, {"delay": -1}, {"deadline": ""}, {"priority": 10**20}],
    ids=str,
)
async def test_an_option_that_cannot_be_is_no_fault_of_the_server(
    app: App, wrong: dict[str, object]
) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.OPERATOR)
        answer = await web.post("/api/v1/jobs", json=SUBMIT | wrong, headers=bearer(secret))
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_body")
        assert next(iter(wrong)) in answer.text


async def test_a_schedule_whose_priority_no_database_has_is_refused(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.OPERATOR)
        body = {"cron": "* * * * *", "job": "business", "arguments": {"text": "x"}}
        body = {**body, "priority": 10**20}
        answer = await web.put("/api/v1/schedules/s", json=body, headers=bearer(secret))
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_body")


async def test_an_exported_job_stays_in_no_cache(app: App) -> None:
    async with web_of(app) as web:
        mine = await seeded(app)
        _, secret = await token_of(app, Role.OPERATOR)
        answer = await web.get(f"/api/v1/jobs/{mine['acme'].job}/export", headers=bearer(secret))
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")


async def test_the_audit_log_names_the_view_and_the_error_that_were_changed(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.ADMIN)
        headers = bearer(secret)
        await web.put("/api/v1/views/mine", json={"query": "state:failed"}, headers=headers)
        await web.delete("/api/v1/views/mine", headers=headers)
        await web.delete("/api/v1/views/mine", headers=headers)
        await web.post("/api/v1/errors/f00/mark", json={"state": "ignored"}, headers=headers)
        found = (await web.get("/api/v1/audit", headers=headers)).json()["items"]
        said = [(each["action"], each["target"]) for each in reversed(found)]
        assert said == [("views.save", "mine"), ("views.delete", "mine"), ("errors.mark", "f00")]


async def _interrupted(web: httpx.AsyncClient, turns: int, headers: dict[str, str]) -> bool:
    """Send a request, and cancel it after some turns of the loop; return whether it was."""
    request = asyncio.ensure_future(web.post("/api/v1/jobs", json=SUBMIT, headers=headers))
    for _ in range(turns):
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    return request.cancelled()


async def test_a_request_with_a_key_that_is_cancelled_anywhere_happens_once(app: App) -> None:
    async with web_of(app) as web:
        _, secret = await token_of(app, Role.SERVICE)
        turns, interrupted = 0, True
        while interrupted and turns < 60:
            headers = {**bearer(secret), "idempotency-key": f"key {turns}"}
            interrupted = await _interrupted(web, turns, headers)
            again = await web.post("/api/v1/jobs", json=SUBMIT, headers=headers)
            assert again.status_code == 201, again.text
            turns += 3
        counts = (await web.get("/api/v1/jobs/counts", headers=bearer(secret))).json()["counts"]
        assert counts == {"PENDING": turns // 3}


async def test_a_request_with_a_key_that_comes_too_late_happens_once(app: App) -> None:
    limits = RequestLimits(deadline=0.001)
    async with web_of(app, limits=limits) as slow, web_of(app) as web:
        _, secret = await token_of(app, Role.SERVICE)
        for number in range(5):
            headers = {**bearer(secret), "idempotency-key": f"key {number}"}
            await slow.post("/api/v1/jobs", json=SUBMIT, headers=headers)
            again = await web.post("/api/v1/jobs", json=SUBMIT, headers=headers)
            assert again.status_code == 201, again.text
        counts = (await web.get("/api/v1/jobs/counts", headers=bearer(secret))).json()["counts"]
        assert counts == {"PENDING": 5}
