"""Nobody decides about what a program of their own has submitted, whichever way they vote."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import httpx
import pytest
from msgspec import Struct
from slack_sdk.signature import SignatureVerifier

from perdure import App, Secret
from perdure.approvals import Policy
from perdure.base.errors import DecisionRefused
from perdure.jobs.approval import Approval, ApprovalState, Person, new_link
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from perdure.notify.links import LinkTokens
from perdure.notify.people import Contact, People
from perdure.notify.slack import SlackSettings
from perdure.web.access.principal import Role
from tests.support.browser_like import bearer, token_of, web_of

LINKS = LinkTokens((Secret("a key of at least thirty-two bytes, for tests"),))
SLACK = SlackSettings(
    token=Secret("xoxb"),
    signing_secrets=(Secret("signing secret"),),
    channel="C1",
    teams=frozenset({"T1"}),
    apps=frozenset({"A1"}),
)
ROLES = frozenset({"approver"})
BOSS = Person(id="boss", tenant="acme", roles=ROLES)
ANNA = Person(id="anna", tenant="acme", roles=ROLES)
PEOPLE = People([Contact(person=BOSS, slack=("T1", "U1")), Contact(person=ANNA)])


class Asked(Struct, frozen=True, kw_only=True):
    """What a program of the boss has asked, and how people reach it."""

    app: App
    web: httpx.AsyncClient
    approval: Approval
    boss: str
    anna: str

    async def is_open(self) -> bool:
        """Whether nobody has decided."""
        found = await self.app.verbs.approval(self.approval.id)
        assert found is not None
        return found.state is ApprovalState.PENDING


@asynccontextmanager
async def asking(url: str) -> AsyncGenerator[Asked]:
    app = App(url, policy=Policy(people=PEOPLE))

    @app.step(risk=RiskLevel.MEDIUM, approval="required")
    async def pay(amount: int) -> int:
        return amount

    @app.job
    async def asks(amount: int) -> int:
        return await pay(amount)

    del asks
    async with web_of(app, links=LINKS, slack=SLACK) as web, app.running():
        _, boss = await token_of(app, Role.ADMIN, Role.APPROVER, person="boss")
        _, anna = await token_of(app, Role.APPROVER, person="anna")
        token = {"name": "bot", "roles": ["service"]}
        bot = (await web.post("/api/v1/tokens", json=token, headers=bearer(boss))).json()["secret"]
        job = {"name": "asks", "arguments": {"amount": 5}}
        id = (await web.post("/api/v1/jobs", json=job, headers=bearer(bot))).json()["id"]
        await (await app.handle(id)).until(JobState.WAITING)
        (approval,) = await app.approvals(tenant="acme")
        yield Asked(app=app, web=web, approval=approval, boss=boss, anna=anna)


async def test_not_by_the_api_which_says_so_before(url: str) -> None:
    async with asking(url) as asked:
        path = f"/api/v1/approvals/{asked.approval.id}"
        vote = {"verdict": "approve", "action_hash": asked.approval.action.hash}
        shown = await asked.web.get(path, headers=bearer(asked.boss))
        assert shown.json()["may_decide"]["code"] == "four_eyes"
        own = await asked.web.post(f"{path}/decide", json=vote, headers=bearer(asked.boss))
        assert (own.status_code, own.json()["code"]) == (403, "four_eyes")
        theirs = await asked.web.get(path, headers=bearer(asked.anna))
        assert theirs.json()["may_decide"]["ok"]
        done = await asked.web.post(f"{path}/decide", json=vote, headers=bearer(asked.anna))
        assert done.status_code == 200


async def test_not_by_a_delegation_to_them(url: str) -> None:
    async with asking(url) as asked:
        path = f"/api/v1/approvals/{asked.approval.id}/delegate"
        answer = await asked.web.post(path, json={"to": "boss"}, headers=bearer(asked.anna))
        assert (answer.status_code, answer.json()["code"]) == (403, "four_eyes")


async def test_not_from_a_program_or_the_command_line(url: str) -> None:
    async with asking(url) as asked:
        with pytest.raises(DecisionRefused, match="made the token of service:bot"):
            await asked.app.decide(asked.approval, "approve", by=BOSS)
        assert await asked.is_open()


async def test_not_by_a_link_in_a_mail_which_they_are_not_even_sent(url: str) -> None:
    async with asking(url) as asked:
        assert [each.person.id for each in PEOPLE.asked(asked.approval)] == ["anna"]
        now = await asked.app.approval_store.now()
        token = LINKS.make(now)
        link = new_link(asked.approval, "boss", token, "12345678", now + 600)
        await asked.app.approval_store.keep_link(link)
        form = {"token": token, "code": "12345678", "verdict": "approve"}
        headers = {"origin": "https://jobs.test"}
        answer = await asked.web.post("/approvals/decide", data=form, headers=headers)
        assert (answer.status_code, "made the token" in answer.text) == (403, True)
        assert await asked.is_open()


async def test_not_by_a_button_in_slack(url: str) -> None:
    async with asking(url) as asked:
        approval = asked.approval
        value = json.dumps({"approval": approval.id, "hash": approval.action.hash})
        body = urlencode({"payload": json.dumps(_press(value))}).encode()
        stamp = str(int(await asked.app.approval_store.now()))
        verifier = SignatureVerifier("signing secret")
        signature = verifier.generate_signature(timestamp=stamp, body=body)
        headers = {"x-slack-request-timestamp": stamp, "x-slack-signature": signature or ""}
        answer = await asked.web.post("/slack/interactive", content=body, headers=headers)
        assert answer.status_code == 200
        events = await (await asked.app.handle(approval.job_id)).events()
        (refused,) = [each for each in events if each.type == "approval.refused"]
        assert (refused.actor, refused.data["channel"]) == ("boss", "slack")
        assert await asked.is_open()


def _press(value: str) -> dict[str, object]:
    return {
        "type": "block_actions",
        "api_app_id": "A1",
        "team": {"id": "T1"},
        "user": {"id": "U1"},
        "actions": [{"action_id": "perdure.approve", "value": value}],
    }
