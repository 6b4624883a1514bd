"""A small ASGI app with the pages of links and the door for Slack; mount it where you like."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from msgspec import Struct

from perdure.jobs.approval import Person, Refusal, Vote
from perdure.notify.card import outcome_of
from perdure.notify.desk import Desk
from perdure.notify.page import SCRIPT, SHELL, STYLE, Form, Pages
from perdure.notify.people import People
from perdure.notify.slack import Bad, Press, Replays, SlackSettings, answer, read_press

LONGEST_BODY: Final = 64 * 1024

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
# Who has signed in, as whatever stands in front of this app knows.
Authenticate: TypeAlias = Callable[[Scope], Awaitable[Person | None]]

_log = logging.getLogger("perdure.notify")

_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; form-action 'self'; "
    b"frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", _POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


class Answer(Struct, frozen=True):
    """What is sent back."""

    status: int
    body: str = ""
    kind: str = "text/html; charset=utf-8"


_FILES: Final = {
    "/approvals/link": Answer(200, SHELL),
    "/approvals/link.js": Answer(200, SCRIPT, "text/javascript; charset=utf-8"),
    "/approvals/page.css": Answer(200, STYLE, "text/css; charset=utf-8"),
}


class TooLarge(Exception):
    """The request has more to say than we listen to."""


class ApprovalWeb:
    """The ASGI app."""

    def __init__(
        self,
        desk: Desk,
        people: People,
        pages: Pages | None = None,
        slack: SlackSettings | None = None,
        authenticate: Authenticate | None = None,
    ) -> None:
        """Take the parts; what is not given is not there.

        Args:
            desk: Where the approvals are.
            people: Who is who.
            pages: The pages of links.
            slack: Whom to believe in Slack.
            authenticate: Tells who has signed in.
        """
        self._desk = desk
        self._people = people
        self._pages = pages
        self._slack = slack
        self._authenticate = authenticate
        self._replays = Replays()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        try:
            if path == "/slack/interactive" and self._slack is not None:
                await self._pressed(scope, receive, send, self._slack)
            else:
                await _send(send, await self._page(scope, path, receive))
        except TooLarge:
            await _send(send, Answer(413))

    async def _page(self, scope: Scope, path: str, receive: Receive) -> Answer:
        method = scope["method"]
        match path:
            case "/approvals/link" | "/approvals/link.js" | "/approvals/page.css" if self._pages:
                return _FILES[path] if method in ("GET", "HEAD") else Answer(405)
            case "/approvals/view" | "/approvals/decide" if self._pages is not None:
                if method != "POST":
                    return Answer(405)
                if not _is_same_site(scope):
                    return Answer(403, "from another site")
                return await self._act(scope, path, _form(await _body(receive)), self._pages)
            case _:
                return Answer(404)

    async def _act(self, scope: Scope, path: str, form: Form, pages: Pages) -> Answer:
        if path == "/approvals/view":
            shown = await pages.view(form)
        else:
            session = None if self._authenticate is None else await self._authenticate(scope)
            shown = await pages.decide(form, session)
        return Answer(shown.status, shown.html)

    async def _pressed(
        self, scope: Scope, receive: Receive, send: Send, settings: SlackSettings
    ) -> None:
        if scope["method"] != "POST":
            return await _send(send, Answer(405))
        body = await _body(receive)
        now = await self._desk.now()
        press = read_press(settings, _headers(scope), body, now, self._replays)
        if isinstance(press, Bad):
            await self._desk.turned_away(None, "slack", press.why)
            return await _send(send, Answer(press.status, press.why))
        # Slack wants an answer within three seconds, whatever becomes of it.
        await _send(send, Answer(200))
        try:
            await answer(press, await self._voted(press))
        except Exception as error:  # noqa: BLE001  who pressed can press again
            # Its text may hold the URL of the answer, which is a secret.
            _log.warning("a press in Slack could not be answered: %s", type(error).__name__)
        return None

    async def _voted(self, press: Press) -> str:
        """Cast the vote of a press; give what to tell who pressed."""
        person = self._people.by_slack(press.team, press.member)
        if person is None:
            why = f"{press.team}/{press.member} is nobody we know"
            await self._desk.turned_away(press.approval_id, "slack", why)
            return "You are not known here, so your answer does not count."
        vote = Vote(
            person=person, verdict=press.verdict, action_hash=press.action_hash, channel="slack"
        )
        result = await self._desk.vote(press.approval_id, vote)
        if isinstance(result, Refusal):
            return f"Your answer does not count: {result.text}."
        return outcome_of(result) or "Your answer counts; others must answer, too."


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
        if sum(map(len, parts)) > LONGEST_BODY:
            raise TooLarge
    return b"".join(parts)


def _form(body: bytes) -> Form:
    try:
        fields = parse_qs(body.decode(), max_num_fields=10)
    except ValueError:
        return Form()
    known = {name: values[0] for name, values in fields.items() if name in Form.__struct_fields__}
    return Form(**known)


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _is_same_site(scope: Scope) -> bool:
    """Refuse a form of another site; who is no browser says nothing, and needs the token anyway."""
    return _headers(scope).get("sec-fetch-site", "same-origin") in ("same-origin", "none")


async def _send(send: Send, answer: Answer) -> None:
    body = answer.body.encode()
    kind = (b"content-type", answer.kind.encode())
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": answer.status}
    await send({**start, "headers": [kind, length, *_HEADERS]})
    await send({"type": "http.response.body", "body": body})
