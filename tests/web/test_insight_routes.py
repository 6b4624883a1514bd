"""Attempts, timeline, previews, errors, metrics and saved queries over HTTP."""

import pytest

from perdure import App, JobContext
from perdure.errors import Permanent
from tests.support.web_client import api_of


@pytest.fixture
def app(url: str) -> App:
    app = App(url)

    @app.step
    async def refuse(number: int) -> int:
        raise Permanent(f"{number} is odd")

    @app.job
    async def fails(ctx: JobContext, number: int) -> int:
        return await refuse(number)

    _ = fails
    return app


async def _failed(app: App, number: int, tenant: str = "default") -> str:
    handle = await app.submit(app.jobs["fails"](number), tenant=tenant)
    await handle.wait("10s")
    return handle.id


async def test_a_failed_job_shows_its_attempts_timeline_undo_and_fork(app: App) -> None:
    async with api_of(app) as api, app.running():
        path = f"/api/v1/jobs/{await _failed(app, 3)}"
        (attempt,) = (await api.get(f"{path}/attempts")).json()["items"]
        assert (attempt["step"], attempt["outcome"]) == ("refuse#1", "failed")
        assert (await api.get(f"{path}/timeline")).json()["queue"][0]["kind"] == "queue"
        undo = (await api.get(f"{path}/undo")).json()
        assert (undo["items"], undo["plain"]) == ([], 1)
        fork = (await api.get(f"{path}/fork", params={"before": "refuse"})).json()
        assert [each["outcome"] for each in fork["entries"]] == ["anew"]
        assert (await api.get(f"{path}/fork", params={"before": "no"})).status_code == 404


async def test_a_tenant_sees_only_its_own_jobs_errors_and_numbers(app: App) -> None:
    async with api_of(app) as api, app.running():
        theirs = await _failed(app, 3, "globex")
        for part in ("attempts", "timeline", "undo", "fork?before=x"):
            assert (await api.get(f"/api/v1/jobs/{theirs}/{part}")).status_code == 404
        assert (await api.get("/api/v1/errors")).json()["items"] == []
        metrics = (await api.get("/api/v1/metrics?minutes=5")).json()
        assert sum(number for _, number in metrics["series"]["failed"]) == 0
        await _failed(app, 5)
        metrics = (await api.get("/api/v1/metrics?minutes=5")).json()
        assert sum(number for _, number in metrics["series"]["failed"]) == 1
        assert (await api.get("/api/v1/metrics?minutes=0")).status_code in (400, 422)


async def test_a_group_of_errors_is_resolved(app: App) -> None:
    async with api_of(app) as api, app.running():
        await _failed(app, 3)
        await _failed(app, 5)
        (group,) = (await api.get("/api/v1/errors")).json()["items"]
        assert (group["count"], group["state"]) == (2, "open")
        path = f"/api/v1/errors/{group['fingerprint']}/mark"
        assert (await api.post(path, json={"state": "resolved"})).status_code == 200
        assert (await api.get("/api/v1/errors?state=open")).json()["items"] == []
        await _failed(app, 7)
        (group,) = (await api.get("/api/v1/errors?state=open")).json()["items"]
        assert group["count"] == 3


async def test_queries_are_saved_shared_and_deleted(app: App) -> None:
    async with api_of(app) as api:
        path = "/api/v1/views/my%20failures"
        assert (await api.put(path, json={"query": "state:failed"})).status_code == 200
        (view,) = (await api.get("/api/v1/views")).json()["items"]
        assert (view["name"], view["query"]) == ("my failures", "state:failed")
        assert (await api.delete(path)).status_code == 200
        assert (await api.delete(path)).status_code == 404
    async with api_of(app, "ann@default viewer") as viewer:
        assert (await viewer.put(path, json={"query": "x"})).status_code == 403


async def test_a_job_is_exported_by_those_who_may(app: App) -> None:
    async with api_of(app) as api, app.running():
        id = await _failed(app, 3)
        answer = await api.get(f"/api/v1/jobs/{id}/export")
        assert (answer.status_code, answer.json()["job"]["id"]) == (200, id)
        assert answer.headers["content-disposition"].endswith(f'job-{id}.json"')
    async with api_of(app, "ann@default viewer") as viewer:
        assert (await viewer.get(f"/api/v1/jobs/{id}/export")).status_code == 403
