"""One question, asked by Slack and by mail from the same row: the first good answer decides."""

import asyncio
import json
from typing import Any

import httpx
from msgspec.structs import replace

import perdure
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import MOST_WRONG, ApprovalTerms
from perdure.jobs.definition import JobDefinition
from perdure.jobs.gate import Gate, GatePolicy
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from perdure.notify.links import LinkTokens
from perdure.notify.mail import MailChannel, MailSettings
from perdure.notify.slack import SlackChannel
from perdure.notify.web import ApprovalWeb, LinkPages
from tests.engine.test_approval import asked
from tests.notify.test_mail import KEY, read
from tests.notify.test_slack import POSTED, SETTINGS, body_of, signed
from tests.support.approvals import staff
from tests.support.engine import durable, until
from tests.support.servers import HttpSite, Mailbox, http, smtp


class Office:
    """An app with both channels, and their doors from outside."""

    def __init__(self, app: App, site: HttpSite, box: Mailbox) -> None:
        self.app, self.box = app, box
        people, tokens = staff(), LinkTokens((KEY,))
        self.slack = replace(SETTINGS, base_url=f"http://{site.address}/api/")
        mail = MailSettings(
            host="127.0.0.1",
            port=box.port,
            sender="perdure@example.com",
            base_url="https://perdure.example.com/",
            insecure=True,
        )
        channels = (SlackChannel(self.slack), MailChannel(mail, app.approval_store, people, tokens))
        app.policy = Policy(people=people, channels=channels)
        web = ApprovalWeb(
            app.approval_store,
            people,
            LinkPages(app.approval_store, people, tokens),
            slack=self.slack,
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(web), base_url="https://perdure.example.com"
        )

        @app.job
        async def job(ctx: JobContext) -> list[str]:
            return list((await ctx.approve("Ship it?", risk="medium")).by)

        self.job: JobDefinition[..., Any] = job

    async def ask(self) -> tuple[Handle[Any], str, str]:
        handle = await self.app.submit(self.job(), tenant="acme", user="rob")
        approval = await asked(self.app)
        while len(self.box.mails) < 2:
            await perdure.process.sleep("5ms")
        return handle, approval.id, approval.action.hash

    async def press(self, approval: str, digest: str, member: str = "U1", **wrong: Any) -> int:
        value = json.dumps({"approval": approval, "hash": digest})
        payload = {
            "type": "block_actions",
            "api_app_id": "A1",
            "team": {"id": "T1"},
            "user": {"id": member},
            "actions": [{"action_id": "perdure.approve", "value": value}],
        }
        body = body_of(payload)
        now = await self.app.approval_store.now()
        headers = wrong.get("headers") or signed(body, now - wrong.get("late", 0))
        answer = await self.client.post("/slack/interactive", content=body, headers=headers)
        return answer.status_code

    async def follow(self, to: str) -> int:
        return (await self.type(to)).status_code

    async def type(self, to: str, *, wrong: bool = False) -> httpx.Response:
        """Type the code of a mail on the page of its link, or another one."""
        mail = next(each for each in self.box.mails if each["To"] == to)
        token, code = read(mail)[1:3]
        code = code.translate(str.maketrans("0123456789", "1234567890")) if wrong else code
        form = {"token": token, "code": code, "verdict": "approve"}
        return await self.client.post("/approvals/decide", data=form)


@durable
async def test_a_press_in_slack_decides_and_the_mail_comes_too_late(app: App) -> None:
    async with http((200, POSTED)) as site, smtp() as box:
        office = Office(app, site, box)
        async with app.running():
            handle, approval, digest = await office.ask()
            forged = {"x-slack-signature": "v0=0"}
            assert await office.press(approval, digest, headers=forged) == 401
            assert await office.press(approval, digest, late=301) == 401
            assert await office.press(approval, digest, member="U3") == 200  # who asked for the job
            assert await office.press(approval, digest) == 200
            assert await handle.result("5s") == ["ann"]
            assert await office.follow("bob@example.com") == 409
    kinds = [event.type for event in await handle.events()]
    assert kinds.count("approval.approve") == 1
    assert kinds.count("approval.refused") == 2  # the requester, and the one who came too late


@durable
async def test_a_link_of_a_mail_decides_once(app: App) -> None:
    async with http((200, POSTED)) as site, smtp() as box:
        office = Office(app, site, box)
        async with app.running():
            handle, approval, digest = await office.ask()
            assert await office.follow("bob@example.com") == 200
            assert await handle.result("5s") == ["bob"]
            assert await office.follow("bob@example.com") == 409
            assert await office.press(approval, digest) == 200  # is told that it does not count
    kinds = [event.type for event in await handle.events()]
    assert kinds.count("approval.approve") == 1
    assert kinds.count("approval.turned_away") + kinds.count("approval.refused") == 2


@durable
async def test_of_many_wrong_codes_at_once_no_more_than_the_limit_are_judged(app: App) -> None:
    async with http((200, POSTED)) as site, smtp() as box:
        office = Office(app, site, box)
        async with app.running():
            handle, approval, _ = await office.ask()
            bob = "bob@example.com"
            many = [office.type(bob, wrong=True) for _ in range(4 * MOST_WRONG)]
            answers = await asyncio.gather(*many)
            judged = [each for each in answers if "not the code from the mail" in each.text]
            # The last of them kills the link, and says so.
            assert len(judged) == MOST_WRONG - 1
            # By now a right code is answered as a wrong one is.
            right, wrong = await office.type(bob), await office.type(bob, wrong=True)
            assert (right.status_code, right.text) == (wrong.status_code, wrong.text)
            assert right.status_code == 403
            assert [each.id for each in await app.approvals()] == [approval]
            await handle.cancel()
            await until(app, handle.id, JobState.CANCELLED)


@durable
async def test_a_right_code_among_many_wrong_ones_decides_or_is_answered_as_they_are(
    app: App,
) -> None:
    async with http((200, POSTED)) as site, smtp() as box:
        office = Office(app, site, box)
        async with app.running():
            handle, _, _ = await office.ask()
            bob = "bob@example.com"
            wrong = [office.type(bob, wrong=True) for _ in range(2 * MOST_WRONG)]
            *others, right = await asyncio.gather(*wrong, office.type(bob))
            dead = await office.type(bob, wrong=True)
            if right.status_code == 200:
                assert await handle.result("5s") == ["bob"]
            else:
                assert (right.status_code, right.text) == (dead.status_code, dead.text)
                await handle.cancel()
                await until(app, handle.id, JobState.CANCELLED)
            judged = [each for each in others if "not the code from the mail" in each.text]
            assert len(judged) < MOST_WRONG


@durable
async def test_after_an_edit_no_channel_takes_an_answer_to_what_was_asked_before(app: App) -> None:
    ran: list[int] = []

    @app.step(risk="medium")
    async def pay(ctx: StepContext, usd: int) -> None:
        ran.append(usd)

    @app.job
    async def pays(ctx: JobContext) -> None:
        await pay(100)

    async with http((200, POSTED)) as site, smtp() as box:
        office = Office(app, site, box)
        office.job = pays
        waits = GatePolicy(gates={RiskLevel.MEDIUM: Gate.WAIT})
        terms = {RiskLevel.MEDIUM: ApprovalTerms(quorum=2)}
        app.policy = replace(app.policy, gates=waits, terms=terms)
        async with app.running():
            handle, approval, seen = await office.ask()
            await app.decide(
                approval, "approve", by="ann", action_hash=seen, arguments={"usd": 900}
            )
            assert await office.press(approval, seen, member="U2") == 200  # told it does not count
            assert await office.follow("bob@example.com") == 409
            assert ran == []
            while len(box.mails) < 4:  # both are asked again
                await perdure.process.sleep("5ms")
            box.mails[:] = box.mails[2:]
            assert await office.follow("bob@example.com") == 200
            await handle.result("5s")
    assert ran == [900]
    kinds = [event.type for event in await handle.events()]
    assert (kinds.count("approval.approve"), kinds.count("approval.refused")) == (2, 2)
