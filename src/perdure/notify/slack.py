"""Slack: a message with two buttons, and the check that a press of one is what it seems.

The message goes out by the Web API. The press comes back as a request that Slack has signed. Who
pressed is looked up in our own table of people; the names in the request decide nothing.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

from perdure.base.checked import Checked
from perdure.base.extra import extra
from perdure.base.secret import Secret
from perdure.base.visible import visible
from perdure.jobs.approval import Approval, VoteVerdict
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.risk import RiskLevel
from perdure.notify.message import ApprovalMessage, alert_text, approval_message, edited_text

with extra("slack", "Slack"):
    import httpx
    from slack_sdk.signature import Clock, SignatureVerifier

    from perdure.base.http_response import fetch

WINDOW: Final = 300  # seconds that a request may be old, or from the future
MOST_REMEMBERED: Final = 100_000  # requests within that window
TIMEOUT: Final = 20.0  # for one whole request
LONGEST_ANSWER: Final = 1024 * 1024

_ACTIONS: Final[Mapping[str, VoteVerdict]] = {
    "perdure.approve": "approve",
    "perdure.reject": "reject",
}
_CHANGES: Final = frozenset({NoticeKind.DECIDED, NoticeKind.EDITED})
_MOST_FIELDS: Final = 10  # that Slack takes in one section


class SlackSettings(Checked, frozen=True, kw_only=True):
    """How to reach Slack, and what to trust.

    Attributes:
        token: The bot's token.
        signing_secrets: The app's signing secret; two while it is being rotated.
        channel: The channel to post to.
        teams: The workspaces whose presses count.
        apps: The ids of our Slack app.
        base_url: The URL of Slack's Web API.
        response_hosts: The hosts to which a reply may be posted.
    """

    token: Secret[str]
    signing_secrets: tuple[Secret[str], ...]
    channel: str
    teams: frozenset[str]
    apps: frozenset[str]
    base_url: str = "https://slack.com/api/"
    response_hosts: frozenset[str] = frozenset({"hooks.slack.com"})

    def __post_init__(self) -> None:
        super().__post_init__()
        # With an empty secret, everybody could sign.
        if not self.signing_secrets or not all(
            each.reveal().strip() for each in self.signing_secrets
        ):
            raise ValueError(
                "the signing secret of the Slack app is empty: "
                "find it under Basic Information, App Credentials"
            )


# Sending


class SlackChannel:
    """Asks in a Slack channel; a message about a decided approval loses its buttons."""

    def __init__(self, settings: SlackSettings, name: str = "slack") -> None:
        self.name = name
        self._settings = settings

    async def recipients(
        self,
        notice: Notice,  # noqa: ARG002  part of the protocol
        approval: Approval | None,  # noqa: ARG002  part of the protocol
    ) -> list[str]:
        """Return the channel of the settings."""
        return [self._settings.channel]

    async def deliver(self, notice: Notice, approval: Approval | None, recipient: str) -> str:
        """Post the message; after the decision, update it."""
        if approval is None:
            text = alert_text(notice)
            return await self._post(recipient, text, [_plain(text)])
        blocks = blocks_of(approval)
        if notice.kind in _CHANGES and notice.asked:
            channel, time = notice.asked.split("/")
            await self._call(
                "chat.update",
                channel=channel,
                ts=time,
                blocks=blocks,
                **_message(approval_message(approval).title),
            )
            if notice.kind is NoticeKind.EDITED:  # Slack notifies nobody of an update
                text = edited_text(approval)
                await self._post(recipient, _headline(notice, approval), [_plain(text)])
            return notice.asked
        return await self._post(recipient, _headline(notice, approval), blocks)

    async def _post(self, channel: str, text: str, blocks: list[dict[str, Any]]) -> str:
        posted = await self._call(
            "chat.postMessage",
            channel=channel,
            blocks=blocks,
            unfurl_links=False,
            unfurl_media=False,
            **_message(text),
        )
        return f"{posted['channel']}/{posted['ts']}"

    async def _call(self, method: str, **fields: Any) -> dict[str, Any]:
        """Call a method of the Web API.

        Raises:
            SlackRefused: Slack did not do it.
            httpx.TransportError: There was no response.
        """
        bearer = {"authorization": f"Bearer {self._settings.token.reveal()}"}
        text = await _post(method, f"{self._settings.base_url}{method}", fields, bearer)
        try:
            said = msgspec.json.decode(text, type=dict[str, Any])
        except ValueError:
            raise SlackRefused(method, "the response is not JSON") from None
        if said.get("ok") is not True:
            raise SlackRefused(method, str(said.get("error", "nothing")))
        return said


class SlackRefused(Exception):
    """Slack refused a request; `error` is its code for why: `ratelimited`."""

    def __init__(self, method: str, error: str) -> None:
        super().__init__(f"Slack refused {method}: {error[:100]}")
        self.error = error


async def _post(
    what: str, url: str, fields: dict[str, Any], headers: dict[str, str] | None = None
) -> bytes:
    """Post JSON to Slack; return the response. Errors name `what`, since the URL may be a secret.

    Raises:
        SlackRefused: The status is not 2xx, or the response cannot be read.
        httpx.TransportError: There was no response.
    """
    async with httpx.AsyncClient(timeout=TIMEOUT) as client:
        request = client.build_request("POST", url, json=fields, headers=headers)
        reply_to_press, unread = await fetch(client, request, limit=LONGEST_ANSWER, within=TIMEOUT)
    if unread or not reply_to_press.is_success:
        raise SlackRefused(what, unread or str(reply_to_press.status_code))
    return reply_to_press.content


def _headline(notice: Notice, approval: Approval) -> str:
    if notice.kind is NoticeKind.EXPIRES_SOON:
        return alert_text(notice, approval)
    return f"{notice.kind.removeprefix('approval.')}: {approval_message(approval).title}"


def blocks_of(approval: Approval) -> list[dict[str, Any]]:
    """Return the blocks of a message; all words of others are plain text, without markup."""
    message = approval_message(approval)
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _text(message.title or "An approval", 150)},
        *([_plain(f"⚠ {message.note}")] if message.note else []),
        *_sections(message),
        *[_plain(f"• {reason}") for reason in message.reasons],
        {"type": "context", "elements": [_text(message.footer, 300)]},
    ]
    if message.outcome:
        return [*blocks, _plain(message.outcome)]
    return [*blocks, _buttons(approval)]


def _sections(message: ApprovalMessage) -> list[dict[str, Any]]:
    all_of_it = [_plain(f"All of it: {message.in_full}")] if message.in_full else []
    return [*_pages(message.fields), _plain("Arguments"), *_pages(message.arguments), *all_of_it]


def _pages(pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    texts = [_text(f"{name}: {value}", 2000) for name, value in pairs]
    pages = range(0, len(texts), _MOST_FIELDS)
    return [{"type": "section", "fields": texts[at : at + _MOST_FIELDS]} for at in pages]


def _buttons(approval: Approval) -> dict[str, Any]:
    value = json.dumps({"approval": approval.id, "hash": approval.action.hash})
    approve = {
        "type": "button",
        "action_id": "perdure.approve",
        "text": _text("Approve", 75),
        "style": "primary",
        "value": value,
    }
    if approval.risk >= RiskLevel.HIGH:
        approve["confirm"] = {
            "title": _text(f"{approval.risk} risk", 100),
            "text": _text(f"Approve “{approval_message(approval).title}”?", 300),
            "confirm": _text("Approve", 30),
            "deny": _text("Back", 30),
        }
    reject = {
        "type": "button",
        "action_id": "perdure.reject",
        "text": _text("Reject", 75),
        "style": "danger",
        "value": value,
    }
    return {"type": "actions", "elements": [approve, reject]}


def _message(text: str) -> dict[str, Any]:
    """Return the text of a message, in which Slack finds neither mentions nor links."""
    return {"text": plain(text), "parse": "none", "link_names": False}


def plain(text: str) -> str:
    """Return a text without what Slack reads as markup: `<!channel>`, `<@U1>`, `<https://…|a>`."""
    return visible(text, None).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _text(text: str, most: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": text[:most] or "-", "emoji": False}


def _plain(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _text(text, 3000)}


async def reply_to_press(press: "ButtonPress", text: str) -> None:
    """Tell the person who pressed the button, and nobody else, what happened."""
    if press.response_url:
        said = {"text": plain(text), "response_type": "ephemeral", "replace_original": False}
        await _post("a reply to a press", press.response_url, said)


# Receiving


class ButtonPress(Struct, frozen=True, kw_only=True):
    """A press of a button."""

    team: str
    member: str
    approval_id: str
    action_hash: str
    verdict: VoteVerdict
    response_url: str = ""


class BadPress(Struct, frozen=True):
    """A request that is not what it seems: the status of the response, and why."""

    status: Literal[400, 401, 403, 409]
    why: str


class Replays:
    """Remembers requests for as long as their signatures are valid."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()

    def is_new(self, signature: str, now: float) -> bool:
        """Whether a signature is seen for the first time; from now on it is known."""
        while self._seen and next(iter(self._seen.values())) < now:
            self._seen.popitem(last=False)
        if signature in self._seen or len(self._seen) >= MOST_REMEMBERED:
            return False
        # A request from the future stays valid for twice the window.
        self._seen[signature] = now + 2 * WINDOW
        return True


class _Fixed(Clock):
    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now


def read_press(
    settings: SlackSettings,
    headers: Mapping[str, str],
    body: bytes,
    now: float,
    replays: Replays,
) -> ButtonPress | BadPress:
    """Return the press in a request; the body must be exactly the bytes that were received."""
    if not _is_signed(settings, headers, body, now):
        return BadPress(401, "invalid or expired Slack signature")
    if not replays.is_new(headers["x-slack-signature"], now):
        return BadPress(409, "this request was received before")
    try:
        payload = json.loads(parse_qs(body.decode())["payload"][0])
        press, app = _press_in(payload)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, RecursionError):
        return BadPress(400, "this is not a press of one of our buttons")
    if press.team not in settings.teams or app not in settings.apps:
        return BadPress(403, "unknown workspace or app")
    host = urlsplit(press.response_url)
    if press.response_url and not _is_slacks(settings, host.scheme, host.netloc):
        return BadPress(403, "the reply would not go to Slack")
    return press


def _is_signed(
    settings: SlackSettings, headers: Mapping[str, str], body: bytes, now: float
) -> bool:
    clock = _Fixed(now)
    for secret in settings.signing_secrets:
        verifier = SignatureVerifier(secret.reveal(), clock)
        try:
            if verifier.is_valid_request(body, dict(headers)):
                return True
        except (ValueError, TypeError):  # not a number, not UTF-8, not ASCII
            return False
    return False


def _press_in(payload: Any) -> tuple[ButtonPress, str]:
    if payload["type"] != "block_actions":
        raise ValueError(payload["type"])
    (action,) = payload["actions"]
    value = cast("dict[str, Any]", json.loads(action["value"]))
    press = ButtonPress(
        team=str(payload["team"]["id"]),
        member=str(payload["user"]["id"]),
        approval_id=str(value["approval"]),
        action_hash=str(value["hash"]),
        verdict=_ACTIONS[action["action_id"]],
        response_url=str(payload.get("response_url") or ""),
    )
    return press, str(payload["api_app_id"])


def _is_slacks(settings: SlackSettings, scheme: str, host: str) -> bool:
    # Plain HTTP is for a test server on this machine, whose host must be listed.
    plain = host.startswith(("127.0.0.1:", "[::1]:"))
    return host in settings.response_hosts and (scheme == "https" or plain)
