"""Where the money goes: the last characters for all, the whole number by a permission, audited."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from msgspec import Struct

from perdure import App, JobContext
from perdure.approvals import ApprovalTerms, Policy
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from perdure.notify.message import approval_message
from tests.support.web_client import api_of

IBAN, OTHER = "DE02120300000000202051", "DE02500105170137075030"
PASSWORD = "canary-password"


class Asked(Struct, frozen=True, kw_only=True):
    """A payment that waits for a person."""

    app: App
    api: httpx.AsyncClient
    id: str
    job: str

    async def shown(self) -> dict[str, Any]:
        return (await self.api.get(f"/api/v1/approvals/{self.id}")).json()

    async def reveal(self, who: str) -> httpx.Response:
        path = f"/api/v1/approvals/{self.id}/reveal"
        return await self.api.post(path, json={}, headers={"x-who": who})


@asynccontextmanager
async def asking(url: str) -> AsyncGenerator[Asked]:
    policy = Policy(terms={level: ApprovalTerms(four_eyes=False) for level in RiskLevel})
    app = App(url, policy=policy)

    @app.step(risk=RiskLevel.MEDIUM, approval="required")
    async def pay(iban: str, usd: int, password: str) -> str:
        return f"{usd} to {iban}"

    @app.job
    async def pays(iban: str, usd: int) -> str:
        return await pay(iban, usd, PASSWORD)

    async with api_of(app, "ann@acme approver") as api, app.running():
        job = await app.submit(pays(IBAN, 1400), tenant="acme", user="kim")
        await job.until(JobState.WAITING)
        (approval,) = await app.approvals()
        yield Asked(app=app, api=api, id=approval.id, job=job.id)


async def test_all_who_are_asked_see_the_end_and_the_fingerprint_of_an_account(
    url: str,
) -> None:
    async with asking(url) as asked:
        shown = (await asked.shown())["action"]["arguments"]
        assert shown["iban"].startswith("[removed: …2051, fp ")
        assert (shown["usd"], shown["password"]) == (1400, "[removed]")
        (approval,) = await asked.app.approvals()
        assert ('"iban"', f'"{shown["iban"]}"') in approval_message(approval).arguments
        assert IBAN.encode() not in approval.shown
        assert IBAN.encode() in approval.action.input


async def test_an_edit_of_an_account_shows_both_and_runs_with_the_new_one(url: str) -> None:
    async with asking(url) as asked:
        before = (await asked.shown())["action"]
        body = {"verdict": "approve", "action_hash": before["hash"], "arguments": {"iban": OTHER}}
        decided = await asked.api.post(f"/api/v1/approvals/{asked.id}/decide", json=body)
        (edit,) = decided.json()["edits"]
        assert edit["before"] == before["arguments"]
        assert edit["after"]["iban"].startswith("[removed: …5030, fp ")
        (approval,) = await asked.app.approvals(None)
        shown = dict(approval_message(approval).arguments)
        assert shown['"iban"'].endswith(f'(was: "{before["arguments"]["iban"]}")')
        assert "was" not in shown['"password"']
        assert await (await asked.app.handle(asked.job)).result("20s") == f"1400 to {OTHER}"


async def test_an_account_is_revealed_to_an_approver_and_that_is_audited(url: str) -> None:
    async with asking(url) as asked:
        answer = await asked.reveal("ann@acme approver")
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"arguments": {"iban": IBAN, "usd": 1400, "password": "[removed]"}}
        assert answer.headers["cache-control"] == "no-store"
        audit = await asked.api.get("/api/v1/audit", headers={"x-who": "joe@acme admin"})
        entry = audit.json()["items"][0]
        assert (entry["action"], entry["actor"], entry["target"]) == (
            "approvals.reveal",
            "ann",
            asked.id,
        )
        assert IBAN not in audit.text
        log = await (await asked.app.handle(asked.job)).events()
        assert [each.actor for each in log if each.type == "approval.revealed"] == ["ann"]


@pytest.mark.parametrize(
    ("who", "status"),
    [
        ("ann@acme viewer,operator,admin,service", 403),
        ("eve@globex approver", 404),
        ("", 401),
    ],
)
async def test_nobody_else_sees_it_and_nothing_says_that_they_did(
    url: str, who: str, status: int
) -> None:
    async with asking(url) as asked:
        answer = await asked.reveal(who)
        assert answer.status_code == status, answer.text
        assert IBAN not in answer.text
        log = await (await asked.app.handle(asked.job)).events()
        assert [each for each in log if each.type == "approval.revealed"] == []


async def test_what_a_question_is_about_is_revealed_too(url: str) -> None:
    app = App(url)

    @app.job
    async def asks(ctx: JobContext) -> None:
        await ctx.approve("Pay?", details={"iban": IBAN, "token": PASSWORD})

    async with app.running():
        job = await app.submit(asks(), user="kim")
        await job.until(JobState.WAITING)
        (approval,) = await app.approvals()
        assert IBAN.encode() not in approval.shown
        assert PASSWORD.encode() not in approval.shown
        assert await app.reveal(approval, by="ann") == {"iban": IBAN, "token": "[removed]"}
