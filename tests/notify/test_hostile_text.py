"""What a job wrote to deceive, in Slack, in a mail, and on the page of a link."""

import json
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from perdure.base.secret import Secret
from perdure.jobs.approval import Vote, decide
from perdure.jobs.outbox import NoticeKind
from perdure.notify.slack import ButtonPress, SlackChannel, SlackSettings, reply_to_press
from tests.notify.test_mail import Browser, invite, text_of
from tests.support.approvals import ASKED, NOTICE, MemoryStore, person
from tests.support.servers import http

HIDDEN = "\x1b\x9b\u202e\u2066\u200b\ufeff\u3164"
BAD = (
    "<!channel> <@U1> <https://evil.example|Approve> & <script>alert(1)</script> \"'"
    "\x1b[2J\x9b31m\u202eevil\u2066\u200b\ufeff\u3164\nRisk: LOW\nApproved by: ann"
)
ARGUMENTS = {"Risk": "LOW", BAD: BAD, "to": [BAD, 1], "deep": {BAD: BAD}}
WICKED = replace(
    ASKED,
    title=BAD,
    step=BAD,
    requester=BAD,
    reasons=(BAD,),
    shown=msgspec.json.encode(ARGUMENTS),
    delegates=((BAD, BAD),),
)
ALERT = replace(
    NOTICE,
    kind=NoticeKind.STUCK,
    approval_id=None,
    job_id=BAD,
    data=msgspec.json.encode({"text": BAD}),
)


def nothing_hides(text: str) -> None:
    assert not any(letter in text for letter in HIDDEN)


def no_line_is_made_up(text: str) -> None:
    labels = [line for line in text.splitlines() if line.startswith(("Risk:", "Approved by:"))]
    assert labels == ["Risk: MEDIUM"]


class Words(HTMLParser):
    """Reads a page as a browser would."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


async def posted(*deliveries: Any) -> list[dict[str, Any]]:
    async with http((200, b'{"ok":true,"channel":"C1","ts":"17.5"}')) as site:
        settings = SlackSettings(
            token=Secret("xoxb-1"),
            signing_secrets=(Secret("s"),),
            channel="C1",
            teams=frozenset(),
            apps=frozenset(),
            base_url=f"http://{site.address}/",
        )
        channel = SlackChannel(settings)
        for notice, approval in deliveries:
            await channel.deliver(notice, approval, "C1")
        return [json.loads(site.requests.get_nowait().body) for _ in deliveries]


async def test_slack_gets_neither_a_mention_nor_a_link_nor_anything_hidden() -> None:
    vote = Vote(person=person("ann"), verdict="reject", action_hash=WICKED.action.hash, reason=BAD)
    decided: Any = decide(WICKED, vote, WICKED.created_at)
    told = replace(NOTICE, kind=NoticeKind.DECIDED, asked="C1/17.5")
    soon = replace(NOTICE, kind=NoticeKind.EXPIRES_SOON)
    for message in await posted((NOTICE, WICKED), (told, decided), (soon, WICKED), (ALERT, None)):
        nothing_hides(json.dumps(message, ensure_ascii=False))
        assert "<" not in message["text"]
        assert "&lt;!channel&gt;" in message["text"]
        assert message["parse"] == "none"
        blocks = json.dumps(message["blocks"])
        assert "mrkdwn" not in blocks


async def test_who_presses_is_answered_without_mentions() -> None:
    async with http() as site:
        press = ButtonPress(
            team="T1",
            member="U1",
            approval_id="1",
            action_hash="",
            verdict="approve",
            response_url=f"http://{site.address}/",
        )
        await reply_to_press(press, BAD)
        text = json.loads(site.requests.get_nowait().body)["text"]
    assert "<" not in text
    nothing_hides(text)


async def test_a_mail_shows_everything_and_nobodys_lines() -> None:
    for each in (await invite(MemoryStore(WICKED))).values():
        nothing_hides(str(each.mail["Subject"]))
        text = text_of(each.mail)
        nothing_hides(text)
        no_line_is_made_up(text)
        html = each.mail.get_body(("html",))
        assert html is not None
        page = html.get_content()
        nothing_hides(page)
        seen = Words(page)
        assert "script" not in seen.tags
        assert seen.tags.count("a") == 1


async def test_the_page_shows_everything_in_full_and_nothing_of_it_works() -> None:
    store = MemoryStore(replace(WICKED, shown=msgspec.json.encode({**ARGUMENTS, "x": "y" * 9999})))
    token = (await invite(store))["ann@example.com"].token
    page = (await Browser(store).client.post("/approvals/view", data={"token": token})).text
    nothing_hides(page)
    seen = Words(page)
    assert "script" not in seen.tags
    assert "a" not in seen.tags
    assert "y" * 9999 in page
    words = "".join(seen.words)
    assert words.count('"Risk"') == 1
    assert "characters more" not in words


@pytest.mark.parametrize("text", [BAD, "\u05d0" * 5])
async def test_letters_that_are_read_from_the_right_do_not_move_their_neighbours(text: str) -> None:
    store = MemoryStore(replace(ASKED, title=text))
    token = (await invite(store))["ann@example.com"].token
    page = (await Browser(store).client.post("/approvals/view", data={"token": token})).text
    assert "<h1><bdi>" in page
