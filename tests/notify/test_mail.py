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
from perdure.notify.links import LinkTokens
from perdure.notify.mail import MailChannel, MailSettings
from perdure.notify.people import People
from perdure.notify.web import ApprovalWeb, LinkPages, Scope
from tests.support.approvals import ASKED, EDITED, NOTICE, MemoryStore, person, staff
from tests.support.servers import smtp

KEY = Secret("k" * 32)


class Invitation(NamedTuple):
    """What the mail to one person says."""

    to: str
    token: str
    code: str
    mail: EmailMessage


async def invite(store: MemoryStore, people: People | None = None) -> dict[str, Invitation]:
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
        channel = MailChannel(settings, store, people or staff(), LinkTokens((KEY,)))
        await tell_all(channel, NOTICE, store.only)
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
    code = re.search(r"Type this code there: (\d{4} \d{4})", text)
    assert token is not None
    assert code is not None
    return Invitation(str(mail["To"]), token[1], code[1], mail)


class Browser:
    """The app as a browser, or a program that looks at links, sees it."""

    def __init__(self, store: MemoryStore, session: Person | None = None) -> None:
        async def authenticate(scope: Scope) -> Person | None:
            return session

        self.store = store
        pages = LinkPages(store, staff(), LinkTokens((KEY,)))
        app = ApprovalWeb(store, staff(), pages, authenticate=authenticate)
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
    invited = await invite(MemoryStore())
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
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    browser = Browser(store)
    page = await browser.view(ann.token)
    assert page.status_code == 200
    assert "pay the invoice" in page.text
    answer = await browser.decide(ann.token, ann.code, reason="fine with me")
    assert answer.status_code == 200
    assert store.only.state is ApprovalState.APPROVED
    said = store.only.decisions[0]
    assert (said.person, said.channel, said.reason) == ("ann", "mail", "fine with me")


async def test_a_person_rejects_likewise() -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    await Browser(store).decide(ann.token, ann.code.replace(" ", ""), "reject")
    assert store.only.state is ApprovalState.REJECTED


async def test_a_program_that_follows_and_submits_everything_changes_nothing() -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    browser = Browser(store)
    for _ in range(100):
        for method in ("GET", "HEAD"):
            for path in ("link", "link.js", "view", "decide"):
                await browser.client.request(method, f"/approvals/{path}?token={ann.token}")
        await browser.view(ann.token)
    # One that runs scripts finds the form, and presses its buttons without a code.
    for verdict in ("approve", "reject"):
        await browser.decide(ann.token, "", verdict)
    assert store.only == ASKED
    # The person can still decide.
    assert (await browser.decide(ann.token, ann.code)).status_code == 200


@pytest.mark.parametrize("path", ["link", "link.js", "page.css"])
async def test_the_page_of_a_link_holds_nothing_and_may_not_be_kept_or_framed(path: str) -> None:
    answer = await Browser(MemoryStore()).client.get(f"/approvals/{path}")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "invoice" not in answer.text


@pytest.mark.parametrize("path", ["view", "decide"])
async def test_a_get_never_acts(path: str) -> None:
    answer = await Browser(MemoryStore()).client.get(f"/approvals/{path}")
    assert answer.status_code == 405


async def test_a_link_works_once() -> None:
    store = MemoryStore(replace(ASKED, terms=ApprovalTerms(quorum=2)))
    ann = (await invite(store))["ann@example.com"]
    browser = Browser(store)
    assert (await browser.decide(ann.token, ann.code)).status_code == 200
    assert (await browser.decide(ann.token, ann.code, "reject")).status_code == 409
    assert len(store.only.decisions) == 1
    assert store.refused


async def test_two_at_once_are_one_decision() -> None:
    store = MemoryStore()
    ann, bob = (await invite(store)).values()
    browser = Browser(store)
    statuses = [
        (await browser.decide(ann.token, ann.code)).status_code,
        (await browser.decide(bob.token, bob.code, "reject")).status_code,
    ]
    assert statuses == [200, 409]
    assert store.only.state is ApprovalState.APPROVED


async def test_a_tampered_or_invented_link_is_turned_away() -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    # Not its last letter: some of the bits of that mean nothing.
    tampered = ann.token[:-5] + ("A" if ann.token[-5] != "A" else "B") + ann.token[-4:]
    foreign = LinkTokens((Secret("x" * 32),)).make(store.time)
    unknown = LinkTokens((KEY,)).make(store.time)
    browser = Browser(store)
    for token, status in [
        (tampered, 403),
        (foreign, 403),
        ("", 403),
        ("x" * 10_000, 403),
        (unknown, 404),
    ]:
        assert (await browser.view(token)).status_code == status
        assert (await browser.decide(token, ann.code)).status_code == status
    assert store.only == ASKED


@pytest.mark.parametrize("later", [24 * 3600, 25 * 3600])
async def test_a_link_is_over_after_a_day(later: float) -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    store.time += later
    answer = await Browser(store).decide(ann.token, ann.code)
    assert answer.status_code in (403, 410)
    assert store.only == ASKED


async def test_a_link_is_over_when_the_approval_is() -> None:
    store = MemoryStore(replace(ASKED, terms=ApprovalTerms(expires=600.0)))
    ann = (await invite(store))["ann@example.com"]
    store.time += 600
    assert (await Browser(store).decide(ann.token, ann.code)).status_code == 410


async def test_a_code_is_guessed_five_times_and_no_more() -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    browser = Browser(store)
    wrong = "0000 0000" if ann.code != "0000 0000" else "1111 1111"
    for _ in range(MOST_WRONG):
        assert (await browser.decide(ann.token, wrong)).status_code == 403
    assert (await browser.decide(ann.token, ann.code)).status_code == 403
    assert store.only == ASKED


async def test_the_code_of_another_link_does_not_fit() -> None:
    store = MemoryStore()
    ann, bob = (await invite(store)).values()
    assert (await Browser(store).decide(ann.token, bob.code)).status_code == 403


async def test_a_link_to_an_action_that_has_changed_decides_nothing() -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    changed = replace(ASKED, action=replace(ASKED.action, input=b'{"amount":9999}'))
    store.approvals[ASKED.id] = changed
    page = await Browser(store).view(ann.token)
    assert "changed" in page.text
    assert "<form" not in page.text
    assert (await Browser(store).decide(ann.token, ann.code)).status_code == 409
    assert store.only == changed


# Dangerous actions need a session


@pytest.mark.parametrize("risk", [RiskLevel.HIGH, RiskLevel.CRITICAL])
async def test_a_dangerous_action_needs_the_person_to_have_signed_in(risk: RiskLevel) -> None:
    store = MemoryStore(replace(ASKED, risk=risk))
    ann = (await invite(store))["ann@example.com"]
    for session in (None, person("bob"), person("ann", tenant="other")):
        answer = await Browser(store, session).decide(ann.token, ann.code)
        assert answer.status_code == 403
    assert store.only.state is ApprovalState.PENDING
    assert (await Browser(store, person("ann")).decide(ann.token, ann.code)).status_code == 200
    assert store.only.state is ApprovalState.APPROVED


async def test_a_person_who_is_gone_or_lost_the_role_does_not_decide() -> None:
    store, people = MemoryStore(), staff()
    ann = (await invite(store, people))["ann@example.com"]
    for left in (
        people.contacts[1:],
        [replace(people.contacts[0], person=person("ann", "viewer"))],
    ):
        pages = LinkPages(store, People(left), LinkTokens((KEY,)))
        app = ApprovalWeb(store, People(left), pages)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="https://x") as client:
            form = {"token": ann.token, "code": ann.code, "verdict": "approve"}
            assert (await client.post("/approvals/decide", data=form)).status_code == 403
    assert store.only == ASKED


async def test_a_form_of_another_site_is_turned_away() -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    form = {"token": ann.token, "code": ann.code, "verdict": "approve"}
    answer = await Browser(store).client.post(
        "/approvals/decide", data=form, headers={"sec-fetch-site": "cross-site"}
    )
    assert answer.status_code == 403
    assert store.only == ASKED


@pytest.mark.parametrize("path", ["/", "/approvals", "/slack/interactive", "/approvals/link/x"])
async def test_there_is_nothing_else(path: str) -> None:
    assert (await Browser(MemoryStore()).client.get(path)).status_code == 404


async def test_words_of_a_program_cannot_become_markup_on_the_page() -> None:
    script = "<script>alert(1)</script>"
    tricky = replace(ASKED, title=script, shown=b'{"<b>x":"\\"><img src=x>"}', reasons=(script,))
    store = MemoryStore(tricky)
    ann = (await invite(store))["ann@example.com"]
    page = await Browser(store).view(ann.token)
    assert "<script>" not in page.text
    assert "<img" not in page.text
    html = ann.mail.get_body(("html",))
    assert html is not None
    assert "<script>" not in html.get_content()


# Sending


async def test_neither_token_nor_code_is_stored_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    browser = Browser(store)
    await browser.view(ann.token)
    await browser.decide(ann.token, "1")
    await browser.decide(ann.token, ann.code)
    stored = repr(store.links) + repr(store.approvals) + repr(store.refused)
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
        channel = MailChannel(
            _settings(box.port), MemoryStore(decided), staff(), LinkTokens((KEY,))
        )
        await tell_all(channel, replace(NOTICE, kind=NoticeKind.DECIDED), decided)
        assert [str(mail["Subject"])[:8] for mail in box.mails] == ["Rejected", "Rejected"]
        assert all("approvals/link" not in text_of(mail) for mail in box.mails)


async def test_an_alert_goes_to_those_who_watch() -> None:
    async with smtp() as box:
        channel = MailChannel(_settings(box.port), MemoryStore(), staff(), LinkTokens((KEY,)))
        await tell_all(channel, replace(NOTICE, kind=NoticeKind.UNDO_FAILED), None)
        (mail,) = box.mails
        assert str(mail["To"]) == "ops@example.com"
        assert "could not be undone" in str(mail["Subject"])


async def test_before_it_expires_those_who_may_decide_get_a_link_again_and_watchers_an_alert() -> (
    None
):
    asked = replace(ASKED, terms=ApprovalTerms(expires=7200.0))
    async with smtp() as box:
        channel = MailChannel(_settings(box.port), MemoryStore(asked), staff(), LinkTokens((KEY,)))
        await tell_all(channel, replace(NOTICE, kind=NoticeKind.EXPIRES_SOON), asked)
        *questions, alert = box.mails
        assert [str(mail["Subject"]) for mail in questions] == ["Expires soon: pay the invoice"] * 2
        assert all("approvals/link" in text_of(mail) for mail in questions)
        assert str(alert["To"]) == "ops@example.com"
        assert "pay the invoice: expires 2027-01-15 10:00 UTC" in text_of(alert)
        assert "approvals/link" not in text_of(alert)


async def test_after_an_edit_the_old_link_is_refused_and_everybody_gets_a_new_one() -> None:
    store = MemoryStore()
    old, browser = (await invite(store))["ann@example.com"], Browser(store)
    store.approvals[EDITED.id] = EDITED
    assert "has changed" in (await browser.view(old.token)).text
    assert (await browser.decide(old.token, old.code)).status_code == 409
    assert store.only == EDITED
    async with smtp() as box:
        channel = MailChannel(_settings(box.port), store, staff(), LinkTokens((KEY,)))
        await tell_all(channel, replace(NOTICE, kind=NoticeKind.EDITED), EDITED)
        subjects = [str(mail["Subject"]) for mail in box.mails]
        assert subjects == ["Edited, approval needed again: pay the invoice"] * 2
        assert all("900 (was: 120)" in text_of(mail) for mail in box.mails)
        assert all("Edited by: bob" in text_of(mail) for mail in box.mails)
        new = next(read(mail) for mail in box.mails if mail["To"] == "ann@example.com")
    assert "900 (was: 120)" in (await browser.view(new.token)).text
    assert (await browser.decide(new.token, new.code)).status_code == 200
    assert store.only.state is ApprovalState.APPROVED


async def test_who_is_to_decide_instead_gets_a_link_and_nobody_else_a_mail() -> None:
    passed = delegate(ASKED, Delegation(by=person("ann"), to=person("vic")), ASKED.created_at)
    assert isinstance(passed, Approval)
    async with smtp() as box:
        channel = MailChannel(_settings(box.port), MemoryStore(passed), staff(), LinkTokens((KEY,)))
        notice = replace(NOTICE, kind=NoticeKind.DELEGATED, data=b'{"to":"vic"}')
        await tell_all(channel, notice, passed)
        (mail,) = box.mails
        assert str(mail["To"]) == "vic@example.com"
        assert "approvals/link" in text_of(mail)


async def test_a_server_that_does_not_take_it_is_an_error_so_that_it_is_tried_again() -> None:
    async with smtp() as box:
        box.refuse = "451 later"
        channel = MailChannel(_settings(box.port), MemoryStore(), staff(), LinkTokens((KEY,)))
        with pytest.raises(aiosmtplib.SMTPException):
            await tell_all(channel, NOTICE, ASKED)
    with pytest.raises((OSError, aiosmtplib.SMTPException)):
        await tell_all(channel, NOTICE, ASKED)


async def test_a_question_that_nobody_can_get_has_no_recipients() -> None:
    channel = MailChannel(_settings(1), MemoryStore(), People(), LinkTokens((KEY,)))
    assert await channel.recipients(NOTICE, ASKED) == []


async def test_who_may_not_decide_any_more_or_need_not_gets_no_question() -> None:
    decided = replace(ASKED, state=ApprovalState.APPROVED)
    channel = MailChannel(_settings(1), MemoryStore(), staff(), LinkTokens((KEY,)))
    for approval, whom in ((ASKED, "person:zoe"), (decided, "person:ann")):
        assert "not sent" in await channel.deliver(NOTICE, approval, whom)


async def test_a_title_cannot_smuggle_headers_into_the_mail() -> None:
    store = MemoryStore(replace(ASKED, title="pay\r\nBcc: all@example.com"))
    mail = (await invite(store))["ann@example.com"].mail
    assert mail["Bcc"] is None


def test_a_short_key_is_refused_and_an_old_one_still_believed() -> None:
    with pytest.raises(ValueError, match="at least 32"):
        LinkTokens((Secret("short"),))
    old = LinkTokens((KEY,)).make(1000.0)
    both = LinkTokens((KEY, Secret("n" * 32)))
    assert both.made_at(old) == 1000.0
    assert LinkTokens((Secret("n" * 32),)).made_at(old) is None
    assert LinkTokens((KEY,)).made_at(both.make(1000.0)) is None


def test_a_token_is_over_after_its_time_and_not_believed_before_it() -> None:
    tokens = LinkTokens((KEY,), ttl=60.0)
    made_at = tokens.made_at(tokens.make(1000.5))
    assert made_at is not None
    assert tokens.is_current(made_at, 1060.5)
    assert not tokens.is_current(made_at, 1061.0)
    assert not tokens.is_current(made_at, 999.0)


def _settings(port: int) -> MailSettings:
    return MailSettings(
        host="127.0.0.1",
        port=port,
        sender="perdure@example.com",
        base_url="https://perdure.example.com",
        alerts_to=("ops@example.com",),
        insecure=True,
    )
