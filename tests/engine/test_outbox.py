"""The outbox sender: each recipient is told once, and those who do not answer delay nobody."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

import perdure
from perdure.app import App
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.engine.worker import periodic
from perdure.jobs.approval import Approval
from perdure.jobs.outbox import RETRY, Notice, NoticeKind, NoticeState
from perdure.notify.links import LinkTokens
from perdure.notify.mail import MailChannel, MailSettings
from perdure.notify.people import Contact, People
from tests.notify.test_mail import KEY
from tests.support.approvals import person
from tests.support.engine import durable
from tests.support.servers import Mailbox, smtp
from tests.support.store import notices


class Crowd:
    """A channel with many recipients, of whom some never answer, and some refuse."""

    def __init__(self, name: str, *recipients: str) -> None:
        self.name = name
        self.whom = list(recipients)
        self.silent: set[str] = set()
        self.refusing: set[str] = set()
        self.tried: Counter[str] = Counter()
        self.told: Counter[str] = Counter()

    async def recipients(self, notice: Notice, approval: Approval | None) -> list[str]:
        return self.whom

    async def deliver(
        self, notice: Notice, approval: Approval | None, recipient: str = "all"
    ) -> str:
        self.tried[recipient] += 1
        if recipient in self.silent:
            await asyncio.Event().wait()
        if recipient in self.refusing:
            raise ConnectionError("no")
        self.told[recipient] += 1
        return f"{self.name}/{recipient}"

    async def has_told(self, recipient: str, number: int = 1) -> None:
        while self.told[recipient] < number:
            await perdure.process.sleep("5ms")


def alarming(app: App, *channels: Crowd) -> Any:
    """Give a job of which people are alerted: nobody knows whether its payment happened."""
    app.policy = Policy(channels=channels)

    async def unsure(key: str) -> None:
        raise TimeoutError

    @app.step
    async def pay(ctx: StepContext) -> None:
        await ctx.effect("payment", unsure, target="card")

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()

    return job


async def rows(app: App, job_id: str) -> dict[str, Notice]:
    """Read the notices of a job by recipient."""
    found = await notices(await app.store(), job_id)
    return {each.recipient: each for each in found}


async def settled(app: App, job_id: str, recipient: str, tries: int) -> Notice:
    """Wait until it was tried so often to tell somebody."""
    while (row := (await rows(app, job_id)).get(recipient)) is None or row.tries < tries:
        await perdure.process.sleep("5ms")
    return row


async def hurry(app: App, notice: Notice) -> None:
    """Let a notice be due now that was to be tried again later."""
    await (await app.store()).settle_notice(replace(notice, due_at=0.0))


@durable
async def test_a_channel_that_never_answers_delays_no_other(app: App) -> None:
    bad, good = Crowd("bad", "all"), Crowd("good", "all")
    bad.silent.add("all")
    job = alarming(app, bad, good)
    async with app.running():
        for _ in range(3):
            await app.submit(job())
        await good.has_told("all", 3)
    assert bad.told["all"] == 0


@durable
async def test_a_recipient_who_never_answers_delays_no_other_of_the_channel(app: App) -> None:
    crowd = Crowd("crowd", "bad", "good")
    crowd.silent.add("bad")
    job, number = alarming(app, crowd), periodic.SENDS_PER_CHANNEL + 5
    async with app.running():
        for _ in range(number):
            await app.submit(job())
        await crowd.has_told("good", number)
    assert crowd.tried["bad"] == 1  # one at a time, so there is room for the others


@durable
async def test_a_delivery_ends_at_its_deadline_and_is_tried_again(app: App) -> None:
    crowd = Crowd("crowd", "slow")
    crowd.silent.add("slow")
    job = alarming(app, crowd)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(periodic, "SEND_TIMEOUT", 0.05)
        async with app.running():
            handle = await app.submit(job())
            row = await settled(app, handle.id, "slow", 1)
            assert row.state is NoticeState.WAITING
            assert "no answer within 0.05 seconds" in row.error
            patch.undo()
            crowd.silent.clear()
            await hurry(app, row)
            await crowd.has_told("slow")


@durable
async def test_who_was_told_is_not_told_again_because_another_could_not_be(app: App) -> None:
    crowd = Crowd("crowd", "ann", "bob", "kim")
    crowd.refusing.add("bob")
    job = alarming(app, crowd)
    async with app.running():
        handle = await app.submit(job())
        for time in (1, 2):
            await hurry(app, await settled(app, handle.id, "bob", time))
        await settled(app, handle.id, "bob", 3)
        await crowd.has_told("ann")
        await crowd.has_told("kim")
    assert (crowd.tried["ann"], crowd.tried["kim"]) == (1, 1)
    states = {whom: row.state.value for whom, row in (await rows(app, handle.id)).items()}
    assert states == {"": "ADDRESSED", "ann": "DELIVERED", "bob": "WAITING", "kim": "DELIVERED"}


@durable
async def test_a_mail_that_bounces_is_not_sent_again_to_the_others(app: App) -> None:
    names = ("ann", "bob", "kim", "lee", "max")
    people = People(Contact(person=person(name), email=f"{name}@example.com") for name in names)
    async with smtp() as box:
        box.bounces.add("kim@example.com")
        mail = MailSettings(
            host="127.0.0.1",
            port=box.port,
            sender="perdure@example.com",
            base_url="https://perdure.example.com/",
            insecure=True,
        )
        channel = MailChannel(mail, app.approval_store, people, LinkTokens((KEY,)))
        app.policy = Policy(people=people, channels=(channel,))

        @app.job
        async def job(ctx: JobContext) -> None:
            await ctx.approve("Ship it?", risk="medium")

        async with app.running():
            handle = await app.submit(job(), tenant="acme", user="rob")
            row = await settled(app, handle.id, "person:kim", 1)
            assert "550" in row.error
            await has_mails(box, 4)
            box.bounces.clear()
            await hurry(app, row)
            await has_mails(box, 5)
        told = Counter(str(each["To"]) for each in box.mails)
        assert told == Counter(f"{name}@example.com" for name in names)


async def has_mails(box: Mailbox, number: int) -> None:
    while len(box.mails) < number:
        await perdure.process.sleep("5ms")


@durable
async def test_a_recipient_who_is_given_up_is_told_of_by_the_other_channels(app: App) -> None:
    crowd, other = Crowd("crowd", "ann", "bob"), Crowd("other", "ops")
    crowd.refusing.add("bob")
    job = alarming(app, crowd, other)
    async with app.running():
        handle = await app.submit(job())
        row = await settled(app, handle.id, "bob", 1)
        await hurry(app, replace(row, tries=RETRY.attempts - 1))
        await other.has_told("ops", 2)
    found = await notices(await app.store(), handle.id)
    (told,) = [each for each in found if each.kind is NoticeKind.UNDELIVERED and each.recipient]
    assert b"crowd could not deliver alert.in_doubt to bob" in told.data


@durable
async def test_a_channel_that_knows_nobody_is_asked_again(app: App) -> None:
    crowd = Crowd("crowd")
    job = alarming(app, crowd)
    async with app.running():
        handle = await app.submit(job())
        row = await settled(app, handle.id, "", 1)
        assert (row.state, row.error) == ("WAITING", "LookupError: there is no recipient")
        crowd.whom.append("ann")
        await hurry(app, row)
        await crowd.has_told("ann")
