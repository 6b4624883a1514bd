import logging
import re
from email.message import EmailMessage
from typing import NamedTuple

import aiosmtplib
import httpx
import pytest
from msgspec.structs import replace

from perdure.base.secret import Secret
from perdure.jobs.approval import (
    MOST_WRONG,
    Approval,
    ApprovalState,
    ApprovalTerms,
    Delegation,
    Person,
    Vote,
    decide,
    delegate,
)
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.risk import RiskLevel
from perdure.notify.links import Tokens
from perdure.notify.mail import MailChannel, MailSettings
from perdure.notify.people import People
from perdure.notify.web import ApprovalWeb, Pages, Scope
from tests.notify.desk import MemoryDesk, person, staff
from tests.notify.question import ASKED, EDITED, NOTICE
from tests.notify.servers import smtp

KEY = Secret("k" * 32)


class Invitation(NamedTuple):
    """What the mail to one person says."""

    to: str
    token: str
    code: str
    mail: EmailMessage


async def invite(desk: MemoryDesk, people: People | None = None) -> dict[str, Invitation]:
    """Ask by mail; give what everybody got."""
    async with smtp() as box:
        settings = MailSettings(
            host="127.0.0.1",
            port=box.port,
            sender="perdure@example.com",
            base_url="https://perdure.example.com/",
            alerts_to=("ops@example.com",),
            insecure=True,
        )
        channel = MailChannel(settings, desk, people or staff(), Tokens((KEY,)))
        await tell_all(channel, NOTICE, desk.only)
        return {str(mail["To"]): read(mail) for mail in box.mails}


async def tell_all(channel: MailChannel, notice: Notice, approval: Approval | None) -> None:
    """Deliver to everybody whom the channel names."""
    for recipient in await channel.recipients(notice, approval):
        await channel.deliver(notice, approval, recipient)


def text_of(mail: EmailMessage) -> str:
    body = mail.get_body(("plain",))
    assert body is not None
    return str(body.get_content())


def read(mail: EmailMessage) -> Invitation:
    text = text_of(mail)
    token = re.search(r"https://perdure\.example\.com/approvals/link#(\S+)", text)
    code = re.search(r"The code to type there: (\d{4} \d{4})", text)
    assert token is not None
    assert code is not None
    return Invitation(str(mail["To"]), token[1], code[1], mail)


class Browser:
    """The app as a browser, or a program that looks at links, sees it."""

    def __init__(self, desk: MemoryDesk, session: Person | None = None) -> None:
        async def authenticate(scope: Scope) -> Person | None:
            return session

        self.desk = desk
        pages = Pages(desk, staff(), Tokens((KEY,)))
        app = ApprovalWeb(desk, staff(), pages, authenticate=authenticate)
        transport = httpx.ASGITransport(app)
        self.client = httpx.AsyncClient(transport=transport, base_url="https://perdure.example.com")

    async def view(self, token: str) -> httpx.Response:
        return await self.client.post("/approvals/view", data={"token": token})

    async def decide(
        self, token: str, code: str, verdict: str = "approve", **more: str
    ) -> httpx.Response:
        form = {"token": token, "code": code, "verdict": verdict, **more}
        return await self.client.post("/approvals/decide", data=form)


async def test_everybody_who_may_decide_gets_a_link_of_their_own_and_nobody_else() -> None:
    invited = await invite(MemoryDesk())
    assert set(invited) == {"ann@example.com", "bob@example.com"}
    one, other = invited.values()
    assert one.token != other.token
    mail = one.mail
    assert mail["Auto-Submitted"] == "auto-generated"
    text = text_of(mail)
    assert '"amount": 120' in text
    html = mail.get_body(("html",))
    assert html is not None
    assert one.token in html.get_content()


async def test_a_person_decides_with_the_link_and_the_code() -> None:
    desk = MemoryDesk()
    ann = (await invite(desk))["ann@example.com"]
    browser = Browser(desk)
    page = await browser.view(ann.token)
    assert page.status_code == 200
    assert "pay the invoice" in page.text
    answer = await browser.decide(ann.token, ann.code, reason="fine with me")
    assert answer.status_code == 200
    assert desk.only.state is ApprovalState.APPROVED
    said = desk.only.decisions[0]
    assert (said.person, said.channel, said.reason) == ("ann", "mail", "fine with me")


async def test_a_person_rejects_likewise() -> None:
    desk = MemoryDesk()
    ann = (await invite(desk))["ann@example.com"]
    await Browser(desk).decide(ann.token, ann.code.replace(" ", ""), "reject")
    assert desk.only.state is ApprovalState.REJECTED


async def test_a_program_that_follows_and_submits_everything_changes_nothing() -> None:
    desk = MemoryDesk()
    ann = (await invite(desk))["ann@example.com"]
    browser = Browser(desk)
    for _ in range(100):
        for method in ("GET", "HEAD"):
            for path in ("link", "link.js", "view", "decide"):
                await browser.client.request(method, f"/approvals/{path}?token={ann.token}")
        await browser.view(ann.token)
    # One that runs scripts finds the form, and presses its buttons without a code.
    for verdict in ("approve", "reject"):
        await browser.decide(ann.token, "", verdict)
    assert desk.only == ASKED
    # The person can still decide.
    assert (await browser.decide(ann.token, ann.code)).status_code == 200


@pytest.mark.parametrize("path", ["link", "link.js", "page.css"])
async def test_the_page_of_a_link_holds_nothing_and_may_not_be_kept_or_framed(path: str) -> None:
    answer = await Browser(MemoryDesk()).client.get(f"/approvals/{path}")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "invoice" not in answer.text


@pytest.mark.parametrize("path", ["view", "decide"])
async def test_a_get_never_acts(path: str) -> None:
    answer = await Browser(MemoryDesk()).client.get(f"/approvals/{path}")
    assert answer.status_code == 405


async def test_a_link_works_once() -> None:
    desk = MemoryDesk(replace(ASKED, terms=ApprovalTerms(quorum=2)))
    ann = (await invite(desk))["ann@example.com"]
    browser = Browser(desk)
    assert (await browser.decide(ann.token, ann.code)).status_code == 200
    assert (await browser.decide(ann.token, ann.code, "reject")).status_code == 409
    assert len(desk.only.decisions) == 1
    assert desk.refused


async def test_two_at_once_are_one_decision() -> None:
    desk = MemoryDesk()
    ann, bob = (await invite(desk)).values()
    browser = Browser(desk)
    statuses = [
        (await browser.decide(ann.token, ann.code)).status_code,
        (await browser.decide(bob.token, bob.code, "reject")).status_code,
    ]
    assert statuses == [200, 409]
    assert desk.only.state is ApprovalState.APPROVED


async def test_a_tampered_or_invented_link_is_turned_away() -> None:
    desk = MemoryDesk()
    ann = (await invite(desk))["ann@example.com"]
    # Not its last letter: some of the bits of that mean nothing.
    tampered = ann.token[:-5] + ("A" if ann.token[-5] != "A" else "B") + ann.token[-4:]
    foreign = Tokens((Secret("x" * 32),)).make(desk.time)
    unknown = Tokens((KEY,)).make(desk.time)
    browser = Browser(desk)
    for token, status in [
        (tampered, 403),
        (foreign, 403),
        ("", 403),
        ("x" * 10_000, 403),
        (unknown, 404),
    ]:
        assert (await browser.view(token)).status_code == status
        assert (await browser.decide(token, ann.code)).status_code == status
    assert desk.only == ASKED


@pytest.mark.parametrize("later", [24 * 3600, 25 * 3600])
async def test_a_link_is_over_after_a_day(later: float) -> None:
    desk = MemoryDesk()
    ann = (await invite(desk))["ann@example.com"]
    desk.time += later
    answer = await Browser(desk).decide(ann.token, ann.code)
    assert answer.status_code in (403, 410)
    assert desk.only == ASKED


async def test_a_link_is_over_when_the_approval_is() -> None:
    desk = MemoryDesk(replace(ASKED, terms=ApprovalTerms(expires=600.0)))
    ann = (await invite(desk))["ann@example.com"]
    desk.time += 600
    assert (await Browser(desk).decide(ann.token, ann.code)).status_code == 410


async def test_a_code_is_guessed_five_times_and_no_more() -> None:
    desk = MemoryDesk()
    ann = (await invite(desk))["ann@example.com"]
    browser = Browser(desk)
    wrong = "0000 0000" if ann.code != "0000 0000" else "1111 1111"
    for _ in range(MOST_WRONG):
        assert (await browser.decide(ann.token, wrong)).status_code == 403
    assert (await browser.decide(ann.token, ann.code)).status_code == 403
    assert desk.only == ASKED


async def test_the_code_of_another_link_does_not_fit() -> None:
    desk = MemoryDesk()
    ann, bob = (await invite(desk)).values()
    assert (await Browser(desk).decide(ann.token, bob.code)).status_code == 403


async def test_a_link_to_an_action_that_has_changed_decides_nothing() -> None:
    desk = MemoryDesk()
    ann = (await invite(desk))["ann@example.com"]
    changed = replace(ASKED, action=replace(ASKED.action, input=b'{"amount":9999}'))
    desk.approvals[ASKED.id] = changed
    page = await Browser(desk).view(ann.token)
    assert "changed" in page.text
    assert "<form" not in page.text
    assert (await Browser(desk).decide(ann.token, ann.code)).status_code == 409
    assert desk.only == changed


# Dangerous actions need a session


@pytest.mark.parametrize("risk", [RiskLevel.HIGH, RiskLevel.CRITICAL])
async def test_a_dangerous_action_needs_the_person_to_have_signed_in(risk: RiskLevel) -> None:
    desk = MemoryDesk(replace(ASKED, risk=risk))
    ann = (await invite(desk))["ann@example.com"]
    for session in (None, person("bob"), person("ann", tenant="other")):
        answer = await Browser(desk, session).decide(ann.token, ann.code)
        assert answer.status_code == 403
    assert desk.only.state is ApprovalState.PENDING
    assert (await Browser(desk, person("ann")).decide(ann.token, ann.code)).status_code == 200
    assert desk.only.state is ApprovalState.APPROVED


async def test_a_person_who_is_gone_or_lost_the_role_does_not_decide() -> None:
    desk, people = MemoryDesk(), staff()
    ann = (await invite(desk, people))["ann@example.com"]
    for left in (
        people.contacts[1:],
        [replace(people.contacts[0], person=person("ann", "viewer"))],
    ):
        pages = Pages(desk, People(left), Tokens((KEY,)))
        app = ApprovalWeb(desk, People(left), pages)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="https://x") as client:
            form = {"token": ann.token, "code": ann.code, "verdict": "approve"}
            assert (await client.post("/approvals/decide", data=form)).status_code == 403
    assert desk.only == ASKED


async def test_a_form_of_another_site_is_turned_away() -> None:
    desk = MemoryDesk()
    ann = (await invite(desk))["ann@example.com"]
    form = {"token": ann.token, "code": ann.code, "verdict": "approve"}
    answer = await Browser(desk).client.post(
        "/approvals/decide", data=form, headers={"sec-fetch-site": "cross-site"}
    )
    assert answer.status_code == 403
    assert desk.only == ASKED


@pytest.mark.parametrize("path", ["/", "/approvals", "/slack/interactive", "/approvals/link/x"])
async def test_there_is_nothing_else(path: str) -> None:
    assert (await Browser(MemoryDesk()).client.get(path)).status_code == 404


async def test_words_of_a_program_cannot_become_markup_on_the_page() -> None:
    script = "<script>alert(1)</script>"
    tricky = replace(ASKED, title=script, shown=b'{"<b>x":"\\"><img src=x>"}', reasons=(script,))
    desk = MemoryDesk(tricky)
    ann = (await invite(desk))["ann@example.com"]
    page = await Browser(desk).view(ann.token)
    assert "<script>" not in page.text
    assert "<img" not in page.text
    html = ann.mail.get_body(("html",))
    assert html is not None
    assert "<script>" not in html.get_content()


# Sending


async def test_neither_token_nor_code_is_stored_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    desk = MemoryDesk()
    ann = (await invite(desk))["ann@example.com"]
    browser = Browser(desk)
    await browser.view(ann.token)
    await browser.decide(ann.token, "1")
    await browser.decide(ann.token, ann.code)
    stored = repr(desk.links) + repr(desk.approvals) + repr(desk.refused)
    # The server of the test writes down what it is sent.
    logged = [each.getMessage() for each in caplog.records if each.name != "mail.log"]
    assert logged
    for secret in (ann.token, ann.code, ann.code.replace(" ", "")):
        assert secret not in stored
        assert not any(secret in line for line in logged)


async def test_those_who_were_asked_are_told_the_decision() -> None:
    vote = Vote(person=person("ann"), verdict="reject", action_hash=ASKED.action.hash)
    decided = decide(ASKED, vote, ASKED.created_at)
    assert isinstance(decided, Approval)
    async with smtp() as box:
        channel = MailChannel(_settings(box.port), MemoryDesk(decided), staff(), Tokens((KEY,)))
        await tell_all(channel, replace(NOTICE, kind=NoticeKind.DECIDED), decided)
        assert [str(mail["Subject"])[:8] for mail in box.mails] == ["Rejected", "Rejected"]
        assert all("approvals/link" not in text_of(mail) for mail in box.mails)


async def test_an_alert_goes_to_those_who_watch() -> None:
    async with smtp() as box:
        channel = MailChannel(_settings(box.port), MemoryDesk(), staff(), Tokens((KEY,)))
        await tell_all(channel, replace(NOTICE, kind=NoticeKind.UNDO_FAILED), None)
        (mail,) = box.mails
        assert str(mail["To"]) == "ops@example.com"
        assert "could not be undone" in str(mail["Subject"])


async def test_before_it_expires_those_who_may_decide_get_a_link_again_and_watchers_an_alert() -> (
    None
):
    asked = replace(ASKED, terms=ApprovalTerms(expires=7200.0))
    async with smtp() as box:
        channel = MailChannel(_settings(box.port), MemoryDesk(asked), staff(), Tokens((KEY,)))
        await tell_all(channel, replace(NOTICE, kind=NoticeKind.EXPIRES_SOON), asked)
        *questions, alert = box.mails
        assert [str(mail["Subject"]) for mail in questions] == ["Expires soon: pay the invoice"] * 2
        assert all("approvals/link" in text_of(mail) for mail in questions)
        assert str(alert["To"]) == "ops@example.com"
        assert "pay the invoice: expires 2027-01-15 10:00 UTC" in text_of(alert)
        assert "approvals/link" not in text_of(alert)


async def test_after_an_edit_the_old_link_is_refused_and_everybody_gets_a_new_one() -> None:
    desk = MemoryDesk()
    old, browser = (await invite(desk))["ann@example.com"], Browser(desk)
    desk.approvals[EDITED.id] = EDITED
    assert "has changed" in (await browser.view(old.token)).text
    assert (await browser.decide(old.token, old.code)).status_code == 409
    assert desk.only == EDITED
    async with smtp() as box:
        channel = MailChannel(_settings(box.port), desk, staff(), Tokens((KEY,)))
        await tell_all(channel, replace(NOTICE, kind=NoticeKind.EDITED), EDITED)
        subjects = [str(mail["Subject"]) for mail in box.mails]
        assert subjects == ["Edited, approval needed again: pay the invoice"] * 2
        assert all("900 (was: 120)" in text_of(mail) for mail in box.mails)
        assert all("Edited by: bob" in text_of(mail) for mail in box.mails)
        new = next(read(mail) for mail in box.mails if mail["To"] == "ann@example.com")
    assert "900 (was: 120)" in (await browser.view(new.token)).text
    assert (await browser.decide(new.token, new.code)).status_code == 200
    assert desk.only.state is ApprovalState.APPROVED


async def test_who_is_to_decide_instead_gets_a_link_and_nobody_else_a_mail() -> None:
    passed = delegate(ASKED, Delegation(by=person("ann"), to=person("vic")), ASKED.created_at)
    assert isinstance(passed, Approval)
    async with smtp() as box:
        channel = MailChannel(_settings(box.port), MemoryDesk(passed), staff(), Tokens((KEY,)))
        notice = replace(NOTICE, kind=NoticeKind.DELEGATED, data=b'{"to":"vic"}')
        await tell_all(channel, notice, passed)
        (mail,) = box.mails
        assert str(mail["To"]) == "vic@example.com"
        assert "approvals/link" in text_of(mail)


async def test_a_server_that_does_not_take_it_is_an_error_so_that_it_is_tried_again() -> None:
    async with smtp() as box:
        box.refuse = "451 later"
        channel = MailChannel(_settings(box.port), MemoryDesk(), staff(), Tokens((KEY,)))
        with pytest.raises(aiosmtplib.SMTPException):
            await tell_all(channel, NOTICE, ASKED)
    with pytest.raises((OSError, aiosmtplib.SMTPException)):
        await tell_all(channel, NOTICE, ASKED)


async def test_a_question_that_nobody_can_get_has_no_recipients() -> None:
    channel = MailChannel(_settings(1), MemoryDesk(), People(), Tokens((KEY,)))
    assert await channel.recipients(NOTICE, ASKED) == []


async def test_who_may_not_decide_any_more_or_need_not_gets_no_question() -> None:
    decided = replace(ASKED, state=ApprovalState.APPROVED)
    channel = MailChannel(_settings(1), MemoryDesk(), staff(), Tokens((KEY,)))
    for approval, whom in ((ASKED, "person:zoe"), (decided, "person:ann")):
        assert "not sent" in await channel.deliver(NOTICE, approval, whom)


async def test_a_title_cannot_smuggle_headers_into_the_mail() -> None:
    desk = MemoryDesk(replace(ASKED, title="pay\r\nBcc: all@example.com"))
    mail = (await invite(desk))["ann@example.com"].mail
    assert mail["Bcc"] is None


def test_a_short_key_is_refused_and_an_old_one_still_believed() -> None:
    with pytest.raises(ValueError, match="at least 32"):
        Tokens((Secret("short"),))
    old = Tokens((KEY,)).make(1000.0)
    both = Tokens((KEY, Secret("n" * 32)))
    assert both.is_ours(old, 1001.0)
    assert not Tokens((Secret("n" * 32),)).is_ours(old, 1001.0)
    assert not Tokens((KEY,)).is_ours(both.make(1000.0), 1001.0)


def test_a_token_is_over_after_its_time_and_not_believed_before_it() -> None:
    tokens = Tokens((KEY,), lives=60.0)
    token = tokens.make(1000.0)
    assert tokens.is_ours(token, 1060.0)
    assert not tokens.is_ours(token, 1061.0)
    assert not tokens.is_ours(token, 999.0)


def _settings(port: int) -> MailSettings:
    return MailSettings(
        host="127.0.0.1",
        port=port,
        sender="perdure@example.com",
        base_url="https://perdure.example.com",
        alerts_to=("ops@example.com",),
        insecure=True,
    )
