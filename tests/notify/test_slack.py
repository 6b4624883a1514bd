import gzip
import json
from typing import Any
from urllib.parse import quote_plus, urlencode

import httpx
import pytest
from msgspec.structs import replace
from slack_sdk.signature import SignatureVerifier

from perdure.base.secret import Secret
from perdure.jobs.approval import Approval, ApprovalState, ApprovalTerms, Vote, decide
from perdure.jobs.outbox import NoticeKind
from perdure.jobs.risk import RiskLevel
from perdure.notify.slack import (
    Replays,
    SlackChannel,
    SlackRefused,
    SlackSettings,
    blocks_of,
    read_press,
)
from perdure.notify.web import ApprovalWeb
from tests.support.approvals import ASKED, EDITED, NOTICE, MemoryStore, person, staff
from tests.support.servers import http

SETTINGS = SlackSettings(
    token=Secret("xoxb-1"),
    signing_secrets=(Secret("old secret"), Secret("new secret")),
    channel="C1",
    teams=frozenset({"T1"}),
    apps=frozenset({"A1"}),
)
POSTED = b'{"ok":true,"channel":"C1","ts":"17.5"}'


def payload(**other: Any) -> dict[str, Any]:
    value = json.dumps({"approval": "approval-1", "hash": ASKED.action.hash})
    return {
        "type": "block_actions",
        "api_app_id": "A1",
        "team": {"id": "T1"},
        "user": {"id": "U1"},
        "actions": [{"action_id": "perdure.approve", "value": value}],
        **other,
    }


def body_of(payload: Any) -> bytes:
    return urlencode({"payload": json.dumps(payload)}).encode()


def signed(body: bytes, time: float, secret: str = "new secret") -> dict[str, str]:
    stamp = str(int(time))
    signature = SignatureVerifier(secret).generate_signature(timestamp=stamp, body=body)
    assert signature is not None
    return {"x-slack-request-timestamp": stamp, "x-slack-signature": signature}


class Door:
    """The app as Slack sees it."""

    def __init__(self, store: MemoryStore, settings: SlackSettings = SETTINGS) -> None:
        self.store = store
        app = ApprovalWeb(store, staff(), slack=settings)
        transport = httpx.ASGITransport(app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://door")

    async def press(self, body: bytes, headers: dict[str, str]) -> int:
        answer = await self.client.post("/slack/interactive", content=body, headers=headers)
        return answer.status_code

    async def press_now(self, **other: Any) -> int:
        body = body_of(payload(**other))
        return await self.press(body, signed(body, self.store.time))


# Deciding


async def test_a_signed_press_of_a_known_person_decides() -> None:
    door = Door(MemoryStore())
    assert await door.press_now() == 200
    approval = door.store.only
    assert approval.state is ApprovalState.APPROVED
    assert approval.decisions[0].person == "ann"
    assert approval.decisions[0].channel == "slack"


async def test_the_other_button_rejects() -> None:
    door = Door(MemoryStore())
    value = payload()["actions"][0]["value"]
    await door.press_now(actions=[{"action_id": "perdure.reject", "value": value}])
    assert door.store.only.state is ApprovalState.REJECTED


async def test_while_the_secret_is_changed_both_are_believed() -> None:
    for secret in ("old secret", "new secret"):
        door, body = Door(MemoryStore()), body_of(payload())
        assert await door.press(body, signed(body, door.store.time, secret)) == 200
        assert door.store.only.state is ApprovalState.APPROVED


async def test_a_forged_request_decides_nothing() -> None:
    door, body = Door(MemoryStore()), body_of(payload())
    time = door.store.time
    right = signed(body, time)
    wrong = [
        {},
        signed(body, time, "a guess"),
        {**right, "x-slack-signature": "v0=" + "0" * 64},
        {**right, "x-slack-signature": "v0=ü"},
        {**right, "x-slack-request-timestamp": str(int(time) + 1)},
        {**right, "x-slack-request-timestamp": "soon"},
    ]
    for headers in wrong:
        assert await door.press(body, {k: quote_ascii(v) for k, v in headers.items()}) == 401
    assert door.store.only == ASKED
    assert len(door.store.refused) == len(wrong)


def quote_ascii(text: str) -> str:
    return text if text.isascii() else quote_plus(text)


async def test_a_body_that_was_written_anew_is_not_the_one_that_was_signed() -> None:
    door, body = Door(MemoryStore()), body_of(payload())
    again = body.replace(b"+", b"%20")
    assert again != body
    assert await door.press(again, signed(body, door.store.time)) == 401


@pytest.mark.parametrize(("off", "status"), [(-301, 401), (301, 401), (-299, 200), (299, 200)])
async def test_a_request_is_believed_for_five_minutes(off: int, status: int) -> None:
    door, body = Door(MemoryStore()), body_of(payload())
    assert await door.press(body, signed(body, door.store.time + off)) == status


async def test_a_replayed_request_is_turned_away() -> None:
    two = replace(ASKED, terms=ApprovalTerms(quorum=2))
    door, body = Door(MemoryStore(two)), body_of(payload())
    headers = signed(body, door.store.time)
    assert await door.press(body, headers) == 200
    assert await door.press(body, headers) == 409
    assert len(door.store.only.decisions) == 1
    door.store.time += 299
    assert await door.press(body, headers) == 409


async def test_a_double_click_is_one_decision() -> None:
    door = Door(MemoryStore())
    assert await door.press_now(trigger_id="1") == 200
    assert await door.press_now(trigger_id="2") == 200
    assert len(door.store.only.decisions) == 1


@pytest.mark.parametrize(
    "other", [{"team": {"id": "T2"}}, {"api_app_id": "A2"}, {"response_url": "https://evil.test/"}]
)
async def test_another_workspace_app_or_answer_address_is_turned_away(other: Any) -> None:
    door = Door(MemoryStore())
    assert await door.press_now(**other) == 403
    assert door.store.only == ASKED


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.slack.com/x",
        "https://hooks.slack.com.evil.test/x",
        "https://evil.test/hooks.slack.com",
        "https://hooks.slack.com@evil.test/",
        "https://hooks.slack.com:444/x",
    ],
)
async def test_an_answer_goes_to_slack_and_nowhere_else(url: str) -> None:
    assert await Door(MemoryStore()).press_now(response_url=url) == 403


@pytest.mark.parametrize("member", ["U3", "U5", "U9"])
async def test_the_requester_a_viewer_and_a_stranger_do_not_decide(member: str) -> None:
    door = Door(MemoryStore())
    assert await door.press_now(user={"id": member, "name": "ann", "username": "ann"}) == 200
    assert door.store.only == ASKED
    assert door.store.refused[0][:2] == ("approval-1", "slack")


async def test_a_late_press_does_not_count() -> None:
    door = Door(MemoryStore(replace(ASKED, terms=ApprovalTerms(expires=60.0))))
    door.store.time += 60
    await door.press_now()
    assert door.store.only.decisions == ()


async def test_a_press_about_another_action_does_not_count() -> None:
    door = Door(MemoryStore())
    value = json.dumps({"approval": "approval-1", "hash": "0" * 64})
    await door.press_now(actions=[{"action_id": "perdure.approve", "value": value}])
    assert door.store.only == ASKED


@pytest.mark.parametrize(
    "nonsense",
    [
        [],
        None,
        {"type": "view_submission"},
        payload(actions=[]),
        payload(actions=[{"action_id": "other", "value": "{}"}]),
        payload(actions=[{"action_id": "perdure.approve", "value": "[]"}]),
        payload(user=None),
        payload(team="T1"),
    ],
)
async def test_a_signed_request_that_is_no_press_of_ours_is_refused(nonsense: Any) -> None:
    door, body = Door(MemoryStore()), body_of(nonsense)
    assert await door.press(body, signed(body, door.store.time)) == 400
    assert door.store.only == ASKED


@pytest.mark.parametrize("body", [b"", b"payload=", b"payload=%7B", b"\xff\xfe", b"x" * 65_537])
async def test_bytes_that_say_nothing_are_refused(body: bytes) -> None:
    door = Door(MemoryStore())
    headers = signed(body, door.store.time) if body != b"\xff\xfe" else signed(b"", door.store.time)
    assert await door.press(body, headers) in (400, 401, 413)


async def test_a_get_is_not_a_press() -> None:
    answer = await Door(MemoryStore()).client.get("/slack/interactive")
    assert answer.status_code == 405


def test_the_memory_for_requests_is_bounded_by_time() -> None:
    replays = Replays()
    assert replays.is_new("a", 0.0)
    assert not replays.is_new("a", 599.0)
    assert replays.is_new("a", 601.0)


def test_a_request_is_read_with_headers_of_any_case() -> None:
    body = body_of(payload())
    headers = signed(body, 1000.0)
    press = read_press(SETTINGS, headers, body, 1000.0, Replays())
    assert getattr(press, "member", None) == "U1"


# Answering and asking


async def test_who_pressed_is_told_what_came_of_it() -> None:
    async with http((200, b"ok")) as site:
        settings = replace(SETTINGS, response_hosts=frozenset({site.address}))
        door = Door(MemoryStore(), settings)
        url = f"http://{site.address}/actions/1"
        assert await door.press_now(response_url=url) == 200
        told = json.loads((await site.requests.get()).body)
        assert told["text"] == "Approved · ann (approve)"
        assert told["response_type"] == "ephemeral"


async def test_a_vote_counts_although_slack_takes_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = replace(SETTINGS, response_hosts=frozenset({"127.0.0.1:1"}))
    door = Door(MemoryStore(), settings)
    assert await door.press_now(response_url="http://127.0.0.1:1/secret-path") == 200
    assert door.store.only.state is ApprovalState.APPROVED
    assert "secret-path" not in caplog.text


async def test_a_question_is_posted_and_changed_when_it_is_decided() -> None:
    async with http((200, POSTED)) as site:
        settings = replace(SETTINGS, base_url=f"http://{site.address}/api/")
        channel = SlackChannel(settings)
        receipt = await channel.deliver(NOTICE, ASKED, "C1")
        assert receipt == "C1/17.5"
        asked = await site.requests.get()
        assert asked.path == "/api/chat.postMessage"
        assert asked.headers["authorization"] == "Bearer xoxb-1"
        assert b"perdure.approve" in asked.body

        vote = Vote(person=person("ann"), verdict="approve", action_hash=ASKED.action.hash)
        decided = decide(ASKED, vote, ASKED.created_at)
        assert isinstance(decided, Approval)
        notice = replace(NOTICE, kind=NoticeKind.DECIDED, asked="C1/17.5")
        await channel.deliver(notice, decided, "C1")
        changed = await site.requests.get()
        assert changed.path == "/api/chat.update"
        assert b"perdure.approve" not in changed.body
        assert b"Approved" in changed.body


async def test_an_edited_question_is_changed_and_everybody_is_told() -> None:
    async with http((200, POSTED)) as site:
        channel = SlackChannel(replace(SETTINGS, base_url=f"http://{site.address}/api/"))
        notice = replace(NOTICE, kind=NoticeKind.EDITED, asked="C1/17.5")
        assert await channel.deliver(notice, EDITED, "C1") == "C1/17.5"
        changed = await site.requests.get()
        assert changed.path == "/api/chat.update"
        assert ASKED.action.hash not in changed.body.decode()
        assert EDITED.action.hash in changed.body.decode()
        assert "900 (was: 120)" in changed.body.decode()
        told = await site.requests.get()
        assert told.path == "/api/chat.postMessage"
        assert b"bob has edited" in told.body
        assert b"perdure.approve" not in told.body  # only the one message has buttons


async def test_a_press_of_a_button_from_before_an_edit_decides_nothing() -> None:
    door = Door(MemoryStore(EDITED))
    assert await door.press_now() == 200
    assert door.store.only == EDITED
    assert "changed since you saw it" in door.store.refused[0][2]


async def test_an_alert_is_posted_without_buttons() -> None:
    async with http((200, POSTED)) as site:
        channel = SlackChannel(replace(SETTINGS, base_url=f"http://{site.address}/api/"))
        await channel.deliver(replace(NOTICE, kind=NoticeKind.IN_DOUBT), None, "C1")
        body = (await site.requests.get()).body
        assert b"Nobody knows" in body
        assert b"perdure.approve" not in body


async def test_an_approval_that_expires_soon_is_posted_again_with_its_buttons() -> None:
    async with http((200, POSTED)) as site:
        channel = SlackChannel(replace(SETTINGS, base_url=f"http://{site.address}/api/"))
        await channel.deliver(replace(NOTICE, kind=NoticeKind.EXPIRES_SOON), ASKED, "C1")
        body = (await site.requests.get()).body
        assert b"An approval expires soon" in body
        assert b"perdure.approve" in body


async def test_an_error_of_slack_is_raised_so_that_it_is_tried_again() -> None:
    async with http((200, b'{"ok":false,"error":"ratelimited"}')) as site:
        channel = SlackChannel(replace(SETTINGS, base_url=f"http://{site.address}/api/"))
        with pytest.raises(SlackRefused):
            await channel.deliver(NOTICE, ASKED, "C1")


async def test_an_answer_of_slack_that_would_fill_the_memory_is_not_read() -> None:
    bomb = gzip.compress(b'{"ok":true,"channel":"C1","ts":"1","x":"' + b"0" * 5_000_000 + b'"}')
    async with http((200, bomb)) as site:
        site.headers["content-encoding"] = "gzip"
        channel = SlackChannel(replace(SETTINGS, base_url=f"http://{site.address}/api/"))
        with pytest.raises(SlackRefused, match="more than"):
            await channel.deliver(NOTICE, ASKED, "C1")


@pytest.mark.parametrize("said", [(500, b"{}"), (200, b"oops"), (200, b"[]"), (302, b"")])
async def test_an_answer_that_is_not_slacks_is_an_error(said: tuple[int, bytes]) -> None:
    async with http(said) as site:
        channel = SlackChannel(replace(SETTINGS, base_url=f"http://{site.address}/api/"))
        with pytest.raises(SlackRefused):
            await channel.deliver(NOTICE, ASKED, "C1")


def test_no_word_of_others_is_markup() -> None:
    tricky = replace(ASKED, title="<!channel> *pay*", shown=b'{"x":"<https://evil.test|ok>"}')
    assert '"mrkdwn"' not in json.dumps(blocks_of(tricky))


def test_a_dangerous_action_asks_once_more() -> None:
    assert "confirm" not in blocks_of(ASKED)[-1]["elements"][0]
    critical = replace(ASKED, risk=RiskLevel.CRITICAL)
    assert "confirm" in blocks_of(critical)[-1]["elements"][0]


def test_secrets_are_not_printed() -> None:
    assert "xoxb" not in repr(SETTINGS)
    assert "new secret" not in repr(SETTINGS)


@pytest.mark.parametrize("secrets", [(), ("",), ("  ",), ("new secret", "")])
def test_an_empty_signing_secret_is_refused(secrets: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="signing secret"):
        replace(SETTINGS, signing_secrets=tuple(Secret(each) for each in secrets))
