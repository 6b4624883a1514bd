"""A small ASGI app with the pages of links and the door for Slack; mount it where you like."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from html import escape
from importlib.resources import files
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from perdure.base.errors import StoreError
from perdure.base.visible import visible
from perdure.jobs.approval import (
    Approval,
    ApprovalLink,
    ApprovalState,
    Person,
    Refusal,
    Vote,
    VoteVerdict,
    dead_link,
    link_id,
    use_of,
)
from perdure.jobs.risk import RiskLevel
from perdure.notify.links import LinkTokens
from perdure.notify.message import (
    LONGEST_VALUE,
    ApprovalMessage,
    approval_message,
    in_html,
    in_tables,
    outcome_of,
)
from perdure.notify.people import ApprovalStore, People
from perdure.notify.slack import (
    BadPress,
    ButtonPress,
    Replays,
    SlackSettings,
    read_press,
    reply_to_press,
)

# The page behind a link: what is shown, and what a press of its buttons comes to.
#
#     GET  /approvals/link     an empty page; its script takes the token out of the URL's fragment
#     GET  /approvals/page.css how the pages look
#     POST /approvals/view     shows the action to who has the token
#     POST /approvals/decide   decides, if the token, the code and (for HIGH) the session are right
#
# GET shows, and decides nothing. A program that follows the link, runs the script and presses
# the button has no code to type, and changes nothing; if it types one, that is counted as wrong.

_HEAD: Final = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>Approval</title>"
    '<meta name=viewport content="width=device-width, initial-scale=1">'
    "<link rel=stylesheet href=page.css>"
)
SHELL: Final = f"""{_HEAD}<main><h1>An approval</h1>
<form method=post action=view><label>The part of your link after #
<input name=token autocomplete=off required></label> <button>Show</button></form>
</main><script src=link.js></script></html>"""
STYLE: Final = files("perdure.notify").joinpath("page.css").read_text("utf-8")

# Shows what the link is about. It never decides: the page that it leads to needs a person.
SCRIPT: Final = """const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", location.pathname);
  document.forms[0].elements.token.value = token;
  document.forms[0].submit();
}
"""

_INCOMPLETE: Final = "Type the code of the mail, then press one of the two buttons."
_WRONG: Final = "This is not the code of the mail."

Status: TypeAlias = Literal[200, 400, 401, 403, 404, 409, 410]

_STATUS: Final[dict[str, Status]] = {
    "not found": 404,
    "decided": 409,
    "repeated": 409,
    "expired": 410,
    "changed": 409,
    "not allowed": 403,
    "four eyes": 403,
    "wrong code": 403,
}


class Shown(Struct, frozen=True):
    """A page, and the status it comes with."""

    status: Status
    html: str


class Form(Struct, frozen=True, kw_only=True):
    """What a person has filled in."""

    token: str = ""
    code: str = ""
    verdict: str = ""
    reason: str = ""


class LinkPages:
    """The pages of links."""

    def __init__(
        self,
        store: ApprovalStore,
        people: People,
        tokens: LinkTokens,
        code_suffices: RiskLevel = RiskLevel.MEDIUM,
    ) -> None:
        """Take what the pages need.

        Args:
            store: Where the approvals are.
            people: Who is who.
            tokens: By which links are read.
            code_suffices: Up to this risk, link and code are enough;
                above it, the person must have signed in, too.
        """
        self._store = store
        self._people = people
        self._tokens = tokens
        self._code_suffices = code_suffices

    async def view(self, form: Form) -> Shown:
        """Show the action; nothing changes."""
        found = await self._find(form)
        if isinstance(found, Shown):
            return found
        link, approval = found
        return Shown(200, self._action_page(approval, link, form.token))

    async def decide(self, form: Form, session: Person | None) -> Shown:
        """Decide, if everything is as it must be."""
        found = await self._find(form)
        if isinstance(found, Shown):
            return found
        link, approval = found
        if form.verdict not in ("approve", "reject") or not form.code.strip():
            return Shown(400, self._action_page(approval, link, form.token, _INCOMPLETE))
        # All that does not depend on the code comes before it: so no answer betrays a right one.
        person = self._people.by_id(link.tenant, link.person)
        if person is None:
            unknown = Refusal("not allowed", "you are not among those who may decide any more")
            return await self._turned_away(approval, unknown)
        if refusal := self._session_refusal(approval, person, session):
            return await self._turned_away(approval, refusal)
        return await self._vote(approval, link, person, form)

    async def _vote(
        self, approval: Approval, link: ApprovalLink, person: Person, form: Form
    ) -> Shown:
        vote = Vote(
            person=person,
            verdict=cast("VoteVerdict", form.verdict),
            action_hash=link.action_hash,
            channel="mail",
            reason=form.reason,
        )
        result = await self._store.vote(approval.id, vote, use_of(form.token, form.code))
        if isinstance(result, Refusal) and result.code == "wrong code":
            return Shown(403, self._action_page(approval, link, form.token, _WRONG))
        if isinstance(result, Refusal):
            return Shown(_STATUS[result.code], _message(result.text))
        said = approval_message(result).outcome or "Your answer counts; others must answer, too."
        return Shown(200, _message(said))

    async def _find(self, form: Form) -> tuple[ApprovalLink, Approval] | Shown:
        # The store is asked for the time only by those who have a token.
        now = await self._store.now() if self._tokens.is_signed(form.token) else None
        if now is None or not self._tokens.is_ours(form.token, now):
            await self._store.turned_away(None, "mail", "a token that is not ours, or too old")
            return Shown(403, _message("This link is not valid, or its time is over."))
        link = await self._store.link(link_id(form.token))
        approval = None if link is None else await self._store.approval(link.approval_id)
        if link is None or approval is None:
            return Shown(404, _message("There is no such approval any more."))
        if (refusal := dead_link(link, now)) is not None:
            return await self._turned_away(approval, refusal)
        return link, approval

    def _session_refusal(
        self, approval: Approval, person: Person, session: Person | None
    ) -> Refusal | None:
        if approval.risk <= self._code_suffices:
            return None
        if session is None:
            return Refusal("not allowed", f"sign in first: this is of {approval.risk} risk")
        if (session.tenant, session.id) != (person.tenant, person.id):
            return Refusal("not allowed", "this link is for somebody else")
        return None

    async def _turned_away(self, approval: Approval, refusal: Refusal) -> Shown:
        await self._store.turned_away(approval.id, "mail", refusal.text)
        return Shown(_STATUS[refusal.code], _message(refusal.text))

    def _action_page(
        self, approval: Approval, link: ApprovalLink, token: str, error: str = ""
    ) -> str:
        card = approval_message(approval, full=True)
        changed = approval.action.hash != link.action_hash
        if approval.state is not ApprovalState.PENDING or changed:
            why = card.outcome or "The action has changed since you were asked about it."
            return _page(card, f"<p><b>{escape(why)}</b></p>")
        return _page(card, _form(token, error))


def _form(token: str, error: str) -> str:
    return (
        "<form method=post action=decide>"
        + (f"<p class=error role=alert>{escape(error)}</p>" if error else "")
        + f'<input type=hidden name=token value="{escape(token)}">'
        "<label>The code of the mail <input name=code inputmode=numeric autocomplete=off "
        "required></label>"
        f"<label>Why, for the log <input name=reason maxlength={LONGEST_VALUE}></label>"
        "<button name=verdict value=approve>Approve</button> "
        "<button name=verdict value=reject class=no>Reject</button></form>"
    )


def _page(card: ApprovalMessage, end: str) -> str:
    reasons = "".join(f"<li>{in_html(reason)}</li>" for reason in card.reasons)
    note = f"<p class=note>{escape(card.note)}</p>" if card.note else ""
    return _document(
        f"<h1>{in_html(card.title)}</h1>{note}{in_tables(card)}<ul>{reasons}</ul>{end}"
        f"<footer><small>{escape(card.footer)}</small></footer>"
    )


def _message(text: str) -> str:
    return _document(f"<h1>{escape(visible(text))}</h1>")


def _document(body: str) -> str:
    return f"{_HEAD}<main>{body}</main></html>"


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


class Response(Struct, frozen=True):
    """What is sent back."""

    status: int
    body: str = ""
    kind: str = "text/html; charset=utf-8"


_FILES: Final = {
    "/approvals/link": Response(200, SHELL),
    "/approvals/link.js": Response(200, SCRIPT, "text/javascript; charset=utf-8"),
    "/approvals/page.css": Response(200, STYLE, "text/css; charset=utf-8"),
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
        store: ApprovalStore,
        people: People,
        pages: LinkPages | None = None,
        slack: SlackSettings | None = None,
        authenticate: Authenticate | None = None,
        origin: str | None = None,
    ) -> None:
        """Take the parts; what is not given is not there.

        Args:
            store: Where the approvals are.
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
        self._store = store
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
            await _send(send, Response(error.status))
        except Disconnected:
            pass  # nobody waits for an answer
        except StoreError as error:
            _log.warning("a request to %s could not be served: %s", path, error)
            await _send(send, Response(503, "The store does not answer. Try again later."))

    async def _page(self, scope: Scope, path: str, receive: Receive) -> Response:
        method = scope["method"]
        match path:
            case "/approvals/link" | "/approvals/link.js" | "/approvals/page.css" if self._pages:
                return _FILES[path] if method in ("GET", "HEAD") else Response(405)
            case "/approvals/view" | "/approvals/decide" if self._pages is not None:
                body = await self._posted(scope, receive)
                if isinstance(body, Response):
                    return body
                return await self._act(scope, path, _form_of(body), self._pages)
            case _:
                return Response(404)

    async def _posted(self, scope: Scope, receive: Receive) -> bytes | Response:
        """Read what is posted, before anything else is done with the request.

        Raises:
            BadBody: It is too long, in too many pieces, or too slow.
            Disconnected: It has no end.
        """
        if scope["method"] != "POST":
            return Response(405)
        if not _is_same_site(scope, self._origin):
            return Response(403, _FOREIGN)
        _check_length(scope)
        try:
            async with asyncio.timeout(self.body_timeout):
                return await _body(receive)
        except TimeoutError:
            raise BadBody(408) from None

    async def _act(self, scope: Scope, path: str, form: Form, pages: LinkPages) -> Response:
        if path == "/approvals/view":
            shown = await pages.view(form)
        else:
            session = None if self._authenticate is None else await self._authenticate(scope)
            shown = await pages.decide(form, session)
        return Response(shown.status, shown.html)

    async def _pressed(
        self, scope: Scope, receive: Receive, send: Send, settings: SlackSettings
    ) -> None:
        body = await self._posted(scope, receive)
        if isinstance(body, Response):
            return await _send(send, body)
        now = await self._store.now()
        press = read_press(settings, _headers(scope), body, now, self._replays)
        if isinstance(press, BadPress):
            await self._store.turned_away(None, "slack", press.why)
            return await _send(send, Response(press.status, press.why))
        # Slack wants an answer within three seconds, whatever becomes of it.
        await _send(send, Response(200))
        try:
            await reply_to_press(press, await self._voted(press))
        except Exception as error:  # noqa: BLE001  who pressed can press again
            # Its text may hold the URL of the answer, which is a secret.
            _log.warning("a press in Slack could not be answered: %s", type(error).__name__)
        return None

    async def _voted(self, press: ButtonPress) -> str:
        """Cast the vote of a press; give what to tell who pressed."""
        person = self._people.by_slack(press.team, press.member)
        if person is None:
            why = f"unknown Slack account {press.team}/{press.member}"
            await self._store.turned_away(press.approval_id, "slack", why)
            return "You are not known here, so your answer does not count."
        vote = Vote(
            person=person, verdict=press.verdict, action_hash=press.action_hash, channel="slack"
        )
        result = await self._store.vote(press.approval_id, vote)
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


def _form_of(body: bytes) -> Form:
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


async def _send(send: Send, response: Response) -> None:
    body = response.body.encode()
    kind = (b"content-type", response.kind.encode())
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": response.status}
    await send({**start, "headers": [kind, length, *_HEADERS]})
    await send({"type": "http.response.body", "body": body})
