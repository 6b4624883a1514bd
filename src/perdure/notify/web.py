"""A small ASGI app with the pages of links and the door for Slack; mount it where you like."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from perdure.base.errors import StoreError
from perdure.jobs.approval import Person, Refusal, Vote
from perdure.notify.card import outcome_of
from perdure.notify.desk import Desk
from perdure.notify.page import SCRIPT, SHELL, STYLE, Form, Pages
from perdure.notify.people import People
from perdure.notify.slack import Bad, Press, Replays, SlackSettings, answer, read_press

LONGEST_BODY: Final = 64 * 1024
MOST_MESSAGES: Final = 1024  # of a server, for one body: a piece costs time even if it is empty
BODY_TIMEOUT: Final = 15.0  # seconds until a body must be there as a whole
_PORTS: Final = {"http": 80, "https": 443}

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
    # Not `no-referrer`: with that a browser calls the origin of our own forms `null`.
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
)
_FOREIGN: Final = (
    "This form comes from another site. "
    "If it is your own, behind a proxy, give its URL as `origin` of ApprovalWeb."
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


class BadBody(Exception):
    """The body of a request cannot be taken; the status says why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Disconnected(Exception):
    """Whoever sent the request has gone, perhaps in the middle of it."""


class ApprovalWeb:
    """The ASGI app."""

    def __init__(
        self,
        desk: Desk,
        people: People,
        pages: Pages | None = None,
        slack: SlackSettings | None = None,
        authenticate: Authenticate | None = None,
        origin: str | None = None,
    ) -> None:
        """Take the parts; what is not given is not there.

        Args:
            desk: Where the approvals are.
            people: Who is who.
            pages: The pages of links.
            slack: Whom to believe in Slack.
            authenticate: Tells who has signed in.
            origin: Where browsers reach this app: `https://perdure.example.com`.
                If not given, it is what the server says of each request,
                which is wrong behind a proxy that does not pass scheme and host on.

        Raises:
            ValueError: `origin` is not a scheme, a host and perhaps a port.
        """
        self._origin = None if origin is None else own_origin(origin)
        self.body_timeout = BODY_TIMEOUT
        self._desk = desk
        self._people = people
        self._pages = pages
        self._slack = slack
        self._authenticate = authenticate
        self._replays = Replays()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        try:
            if path == "/slack/interactive" and self._slack is not None:
                await self._pressed(scope, receive, send, self._slack)
            else:
                await _send(send, await self._page(scope, path, receive))
        except BadBody as error:
            await _send(send, Answer(error.status))
        except Disconnected:
            pass  # nobody waits for an answer
        except StoreError as error:
            _log.warning("a request to %s could not be served: %s", path, error)
            await _send(send, Answer(503, "The store does not answer. Try again later."))

    async def _page(self, scope: Scope, path: str, receive: Receive) -> Answer:
        method = scope["method"]
        match path:
            case "/approvals/link" | "/approvals/link.js" | "/approvals/page.css" if self._pages:
                return _FILES[path] if method in ("GET", "HEAD") else Answer(405)
            case "/approvals/view" | "/approvals/decide" if self._pages is not None:
                body = await self._posted(scope, receive)
                if isinstance(body, Answer):
                    return body
                return await self._act(scope, path, _form(body), self._pages)
            case _:
                return Answer(404)

    async def _posted(self, scope: Scope, receive: Receive) -> bytes | Answer:
        """Read what is posted, before anything else is done with the request.

        Raises:
            BadBody: It is too long, in too many pieces, or too slow.
            Disconnected: It has no end.
        """
        if scope["method"] != "POST":
            return Answer(405)
        if not _is_same_site(scope, self._origin):
            return Answer(403, _FOREIGN)
        _check_length(scope)
        try:
            async with asyncio.timeout(self.body_timeout):
                return await _body(receive)
        except TimeoutError:
            raise BadBody(408) from None

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
        body = await self._posted(scope, receive)
        if isinstance(body, Answer):
            return await _send(send, body)
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
            why = f"unknown Slack account {press.team}/{press.member}"
            await self._desk.turned_away(press.approval_id, "slack", why)
            return "You are not known here, so your answer does not count."
        vote = Vote(
            person=person, verdict=press.verdict, action_hash=press.action_hash, channel="slack"
        )
        result = await self._desk.vote(press.approval_id, vote)
        if isinstance(result, Refusal):
            return f"Your answer does not count: {result.text}."
        return outcome_of(result) or "Your answer counts; others must answer, too."


def _check_length(scope: Scope) -> None:
    """Turn a body away that says of itself that it is too long."""
    for length in _values(scope, b"content-length"):
        if not length.isdigit():
            raise BadBody(400)
        # An endless row of digits is never read as a number: that takes time, too.
        if len(length) > len(str(LONGEST_BODY)) or int(length) > LONGEST_BODY:
            raise BadBody(413)


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    for _ in range(MOST_MESSAGES):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += message.get("body", b"")
        if len(body) > LONGEST_BODY:
            raise BadBody(413)
        if not message.get("more_body", False):
            return bytes(body)
    raise BadBody(413)


def _form(body: bytes) -> Form:
    try:
        fields = parse_qs(body.decode(), max_num_fields=10)
    except ValueError:
        return Form()
    known = {name: values[0] for name, values in fields.items() if name in Form.__struct_fields__}
    return Form(**known)


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for each, value in scope["headers"] if each == name]


# Where a form comes from


def own_origin(url: str) -> str:
    """Spell the origin of a URL as a browser does.

    Raises:
        ValueError: It is not a scheme, a host and perhaps a port.
    """
    parts = urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme)
    extra = parts.path.rstrip("/") or parts.query or parts.fragment or parts.username
    if port is None or not parts.hostname or extra:
        raise ValueError(f"an origin is like https://perdure.example.com, not {url!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port == _PORTS[parts.scheme] else f":{port}")


def _is_same_site(scope: Scope, own: str | None) -> bool:
    """Tell whether a form is our own, or of no browser, which needs the token anyway."""
    sites = _values(scope, b"sec-fetch-site")
    if any(site not in (b"same-origin", b"none") for site in sites):
        return False
    origins = _values(scope, b"origin")
    if not origins:
        return True
    own = own or _origin_of_request(scope)
    return own is not None and all(each == own.encode() for each in origins)


def _origin_of_request(scope: Scope) -> str | None:
    """Give the origin under which a request has come; None: it does not say."""
    hosts = _values(scope, b"host")
    try:
        return own_origin(f"{scope.get('scheme', 'http')}://{hosts[0].decode()}")
    except (ValueError, IndexError):
        return None


async def _send(send: Send, answer: Answer) -> None:
    body = answer.body.encode()
    kind = (b"content-type", answer.kind.encode())
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": answer.status}
    await send({**start, "headers": [kind, length, *_HEADERS]})
    await send({"type": "http.response.body", "body": body})
