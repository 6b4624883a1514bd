"""What the API shows in the place of a value is refused when it comes back."""

from typing import Any

import httpx
import pytest

from perdure import App, JobContext
from perdure.approvals import ApprovalTerms, Policy
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from tests.support.web_client import api_of

IBAN = "DE02120300000000202051"
SHOWN = "[removed: …2051, fp 0123abcd]"
WHO = "kim@default operator,approver,admin"


@pytest.fixture
def app(url: str) -> App:
    policy = Policy(terms={level: ApprovalTerms(four_eyes=False) for level in RiskLevel})
    app = App(url, policy=policy)

    @app.step(risk=RiskLevel.MEDIUM, approval="required")
    async def pay(payments: list[dict[str, Any]], usd: int) -> list[Any]:
        return [*payments, usd]

    @app.job
    async def pays(payments: list[dict[str, Any]], usd: int) -> list[Any]:
        return await pay(payments, usd)

    @app.job
    async def listens(ctx: JobContext, iban: str = "") -> Any:
        return await ctx.receive("go")

    del pays, listens
    return app


async def asked(app: App, api: httpx.AsyncClient) -> tuple[str, dict[str, Any]]:
    payments = [{"iban": IBAN, "usd": 5}, {"iban": IBAN[::-1], "usd": 6}]
    body = {"name": "pays", "arguments": {"payments": payments, "usd": 11}}
    job = (await api.post("/api/v1/jobs", json=body)).json()["id"]
    await (await app.handle(job)).until(JobState.WAITING)
    return job, (await api.get("/api/v1/approvals")).json()["items"][0]


async def test_a_change_inside_of_arguments_leaves_alone_what_is_not_shown(app: App) -> None:
    async with api_of(app, WHO) as api, app.running():
        job, approval = await asked(app, api)
        change = {"path": ["payments", 1, "usd"], "value": 7}
        body = {"verdict": "approve", "action_hash": approval["action"]["hash"]}
        where = f"/api/v1/approvals/{approval['id']}/decide"
        decided = await api.post(where, json={**body, "changes": [change]})
        assert decided.status_code == 200, decided.text
        payments = [{"iban": IBAN, "usd": 5}, {"iban": IBAN[::-1], "usd": 7}]
        assert await (await app.handle(job)).result("20s") == [*payments, 11]
        change = {"path": ["payments", 0, "usd"], "value": 1}
        fork = {"before": "pay#1", "changes": [change]}
        made = await api.post(f"/api/v1/jobs/{job}/fork", json=fork)
        assert made.status_code == 201, made.text
        copy = await (await app.handle(made.json()["id"])).job()
        assert IBAN.encode() in copy.input
        assert b'"usd":1}' in copy.input


async def test_a_change_needs_the_permission_to_edit(app: App) -> None:
    async with api_of(app, WHO) as api, app.running():
        job, approval = await asked(app, api)
        headers = {"x-who": "lee@default service"}
        fork = {"before": "pay#1", "changes": [{"path": ["usd"], "value": 1}]}
        path = f"/api/v1/jobs/{job}/fork"
        assert (await api.post(path, json=fork, headers=headers)).status_code == 403
        nowhere = {"before": "pay#1", "changes": [{"path": ["usd", "x"], "value": 1}]}
        answer = await api.post(path, json=nowhere)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_arguments")
        assert approval["state"] == "PENDING"


async def test_every_route_that_takes_values_refuses_what_only_stands_for_one(app: App) -> None:
    async with api_of(app, WHO) as api, app.running():
        job, approval = await asked(app, api)
        listens = (await api.post("/api/v1/jobs", json={"name": "listens"})).json()["id"]
        await (await app.handle(listens)).until(JobState.WAITING)
        seen = {"verdict": "approve", "action_hash": approval["action"]["hash"]}
        decide, jobs = f"/api/v1/approvals/{approval['id']}/decide", "/api/v1/jobs"
        payments = approval["action"]["arguments"]["payments"]
        plan = {
            "name": "p",
            "calls": [{"id": "pay", "step": "pay", "arguments": {"payments": payments, "usd": 1}}],
        }
        change = {"path": ["payments", 0, "iban"], "value": SHOWN}
        given, from_here = {"iban": SHOWN}, {"before": "pay#1"}
        cron = {"cron": "0 3 * * *", "job": "listens", "arguments": given}
        requests: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", jobs, {"name": "listens", "arguments": given}),
            ("POST", jobs, {"name": "listens", "arguments": [SHOWN]}),
            ("POST", jobs, {"plan": plan}),
            ("POST", decide, {**seen, "arguments": {"payments": payments}}),
            ("POST", decide, {**seen, "changes": [change]}),
            (
                "POST",
                f"{jobs}/{job}/fork",
                {"before": "pay#1", "arguments": {"payments": payments}},
            ),
            ("POST", f"{jobs}/{job}/fork", {**from_here, "changes": [change]}),
            ("POST", f"{jobs}/{listens}/send", {"topic": "go", "payload": given}),
            (
                "POST",
                f"{jobs}/{listens}/skip",
                {"step": "receive:go#1", "reason": "x", "output": given},
            ),
            ("PUT", "/api/v1/schedules/nightly", cron),
        ]
        for method, path, body in requests:
            answer = await api.request(method, path, json=body)
            assert answer.status_code == 422, f"{method} {path} {body}: {answer.text}"
            assert "only stands for a value" in answer.text, answer.text
        counts = (await api.get("/api/v1/jobs/counts")).json()["counts"]
        assert counts == {"WAITING": 2}
