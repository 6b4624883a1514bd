"""The pages of mail links and the endpoint for Slack: `app.asgi(links=…, slack=…)` serves them.

    GET  /approvals/link      an empty page; its script takes the token out of the URL's fragment
    GET  /approvals/page.css  how the pages look
    POST /approvals/view      shows the action to anybody who has the token
    POST /approvals/decide    decides, if the token, the code and (for HIGH) the session are right
    POST /slack/interactive   a press of a button in Slack

Opening a link only shows the action, and GET never decides anything: mail scanners and chat
previews follow links. Even a program that runs the script and presses the button changes nothing,
since it has no code to type; if it types one, that counts as a wrong one.

Anybody may send requests here, so each one is checked in this order: its size and its time (an
endless body must not hold memory), its origin (a form on another site must not use the session of
its visitor), the signature of its token (a guess must not cost a query), and only then its content.
Refusals do not depend on whether the code was right, up to the vote itself, where a wrong code is
counted under a lock.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from html import escape
from importlib.resources import files
from typing import Any, Final, TypeAlias
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
    as_html,
    as_tables,
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

SLACK_PATH: Final = "/slack/interactive"
LONGEST_BODY: Final = 64 * 1024
MOST_MESSAGES: Final = 1024  # of the server, for one body: an empty piece costs time, too
BODY_TIMEOUT: Final = 15.0  # seconds until the whole body must be there

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
# Returns who has signed in, as known to the proxy or framework in front; None if nobody has.
Authenticate: TypeAlias = Callable[[Scope], Awaitable[Person | None]]

_log = logging.getLogger("perdure.notify")

_COUNTED: Final = "Your answer counts; others must answer, too."
_FOREIGN: Final = (
    "This form comes from another site. "
    "If it is your own, behind a proxy, give its URL as `origin` of `app.asgi`."
)


class Response(Struct, frozen=True):
    """A response to a request."""

    status: int
    body: str = ""
    kind: str = "text/html; charset=utf-8"


class ApprovalWeb:
    """The ASGI app."""

    def __init__(
        self,
        store: ApprovalStore,
        people: People,
        pages: "LinkPages | None" = None,
        slack: SlackSettings | None = None,
        authenticate: Authenticate | None = None,
        origin: str | None = None,
    ) -> None:
        """Take the parts; the endpoints of a part that is not given do not exist.

        Args:
            store: Where the approvals are: `app.approval_store`.
            people: Who is who.
            pages: The pages of mail links.
            slack: Which Slack apps and workspaces to trust.
            authenticate: Returns who has signed in.
            origin: The URL of this app as browsers see it: `https://perdure.example.com`. Without
                it, the server's view of each request is used, which is wrong behind a proxy that
                does not pass scheme and host on.

        Raises:
            ValueError: `origin` is not a scheme, a host and perhaps a port.
        """
        self._origin = None if origin is None else _origin(origin)
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
            if path == SLACK_PATH and self._slack is not None:
                await self._press(scope, receive, send, self._slack)
            else:
                await _send(send, await self._page(scope, path, receive))
        except _BadRequest as error:
            await _send(send, error.response)
        except _Disconnected:
            pass  # nobody waits for a response
        except StoreError as error:
            _log.warning("a request to %s could not be served: %s", path, error)
            await _send(send, Response(503, "The store does not answer. Try again later."))

    async def _page(self, scope: Scope, path: str, receive: Receive) -> Response:
        pages = self._pages
        if pages is None:
            return Response(404)
        if path in _FILES:
            return _FILES[path] if scope["method"] in ("GET", "HEAD") else Response(405)
        if path not in ("/approvals/view", "/approvals/decide"):
            return Response(404)
        form = _form_in(await self._posted(scope, receive))
        if path == "/approvals/view":
            return await pages.view(form)
        session = None if self._authenticate is None else await self._authenticate(scope)
        return await pages.decide(form, session)

    async def _posted(self, scope: Scope, receive: Receive) -> bytes:
        """Return what is posted, read before anything else is done with the request.

        Raises:
            _BadRequest: It is not a POST, from another site, too long, too slow, or in too many
                pieces.
            _Disconnected: The client disconnected before the end.
        """
        if scope["method"] != "POST":
            raise _BadRequest(405)
        if not _is_same_site(scope, self._origin):
            raise _BadRequest(403, _FOREIGN)
        for length in _values(scope, b"content-length"):
            if not length.isdigit():
                raise _BadRequest(400)
            # Long rows of digits are never converted to a number: that takes time, too.
            if len(length) > len(str(LONGEST_BODY)) or int(length) > LONGEST_BODY:
                raise _BadRequest(413)
        try:
            async with asyncio.timeout(self.body_timeout):
                return await _body(receive)
        except TimeoutError:
            raise _BadRequest(408) from None

    async def _press(
        self, scope: Scope, receive: Receive, send: Send, settings: SlackSettings
    ) -> None:
        body = await self._posted(scope, receive)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        press = read_press(settings, headers, body, await self._store.now(), self._replays)
        if isinstance(press, BadPress):
            await self._store.audit_attempt(None, "slack", press.why)
            raise _BadRequest(press.status, press.why)
        # Slack wants a response within three seconds, whatever becomes of the press.
        await _send(send, Response(200))
        try:
            await reply_to_press(press, await self._vote(press))
        except Exception as error:  # noqa: BLE001  the person can press again
            # The error's text may hold the URL of the reply, which is a secret.
            _log.warning("a press in Slack could not be answered: %s", type(error).__name__)

    async def _vote(self, press: ButtonPress) -> str:
        """Cast the vote of a press; return what to tell the person."""
        person = self._people.by_slack(press.team, press.member)
        if person is None:
            why = f"unknown Slack account {press.team}/{press.member}"
            await self._store.audit_attempt(press.approval_id, "slack", why)
            return "You are not known here, so your answer does not count."
        vote = Vote(
            person=person, verdict=press.verdict, action_hash=press.action_hash, channel="slack"
        )
        result = await self._store.vote(press.approval_id, vote)
        if isinstance(result, Refusal):
            return f"Your answer does not count: {result.text}."
        return outcome_of(result) or _COUNTED


# The pages of links

_STATUS: Final[dict[str, int]] = {
    "not found": 404,
    "decided": 409,
    "repeated": 409,
    "expired": 410,
    "changed": 409,
    "not allowed": 403,
    "four eyes": 403,
    "wrong code": 403,
}
_INCOMPLETE: Final = "Type the code from the mail, then press one of the two buttons."
_WRONG: Final = "This is not the code from the mail."


class LinkForm(Struct, frozen=True, kw_only=True):
    """What a person has filled in."""

    token: str = ""
    code: str = ""
    verdict: str = ""
    reason: str = ""


class LinkPages:
    """The pages of mail links."""

    def __init__(
        self,
        store: ApprovalStore,
        people: People,
        tokens: LinkTokens,
        code_suffices: RiskLevel = RiskLevel.MEDIUM,
    ) -> None:
        """Take what the pages need.

        Args:
            store: Where the approvals are: `app.approval_store`.
            people: Who is who.
            tokens: Checks the tokens of links.
            code_suffices: Up to this risk, link and code are enough; above it, the person must also
                have signed in.
        """
        self._store = store
        self._people = people
        self._tokens = tokens
        self._code_suffices = code_suffices

    async def view(self, form: LinkForm) -> Response:
        """Show the action; nothing changes."""
        found = await self._find(form)
        if isinstance(found, Response):
            return found
        link, approval = found
        return Response(200, _action_page(approval, link, form.token))

    async def decide(self, form: LinkForm, session: Person | None) -> Response:
        """Decide, if everything is in order."""
        found = await self._find(form)
        if isinstance(found, Response):
            return found
        link, approval = found
        if form.verdict not in ("approve", "reject") or not form.code.strip():
            return Response(400, _action_page(approval, link, form.token, _INCOMPLETE))
        # What does not depend on the code is checked before it, so no response betrays a right one.
        voter = self._voter(approval, link, session)
        if isinstance(voter, Refusal):
            return await self._turn_away(approval, voter)
        vote = Vote(
            person=voter,
            verdict=form.verdict,
            action_hash=link.action_hash,
            channel="mail",
            reason=form.reason,
        )
        result = await self._store.vote(approval.id, vote, use_of(form.token, form.code))
        if not isinstance(result, Refusal):
            return Response(200, _text_page(outcome_of(result) or _COUNTED))
        if result.code == "wrong code":
            return Response(403, _action_page(approval, link, form.token, _WRONG))
        return Response(_STATUS[result.code], _text_page(result.text))

    async def _find(self, form: LinkForm) -> tuple[ApprovalLink, Approval] | Response:
        """Return the link of a token, and its approval; or the page that says why there is none."""
        # The signature is checked first: a request without a token of ours costs no query.
        made_at = self._tokens.made_at(form.token)
        now = 0.0 if made_at is None else await self._store.now()
        if made_at is None or not self._tokens.is_current(made_at, now):
            await self._store.audit_attempt(None, "mail", "the token is forged or too old")
            return Response(403, _text_page("This link is not valid, or it has expired."))
        found = await self._store.link(link_id(form.token))
        if found is None:
            return Response(404, _text_page("This approval no longer exists."))
        link, approval = found
        if (refusal := dead_link(link, now)) is not None:
            return await self._turn_away(approval, refusal)
        return link, approval

    def _voter(
        self, approval: Approval, link: ApprovalLink, session: Person | None
    ) -> Person | Refusal:
        person = self._people.by_id(link.tenant, link.person)
        if person is None:
            return Refusal("not allowed", "you are not among those who may decide any more")
        if approval.risk <= self._code_suffices:
            return person
        if session is None:
            text = (
                f"sign in first: the risk of this action is {approval.risk}. Sign in to the "
                "dashboard in this browser, and open the link of the mail again"
            )
            return Refusal("not allowed", text)
        if (session.tenant, session.id) != (person.tenant, person.id):
            return Refusal("not allowed", "this link is for somebody else")
        return person

    async def _turn_away(self, approval: Approval, refusal: Refusal) -> Response:
        await self._store.audit_attempt(approval.id, "mail", refusal.text)
        return Response(_STATUS[refusal.code], _text_page(refusal.text))


# HTML. Every word of others is escaped, and set apart from ours.

_HEAD: Final = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>Approval</title>"
    '<meta name=viewport content="width=device-width, initial-scale=1">'
    "<link rel=stylesheet href=page.css>"
)
_EMPTY: Final = f"""{_HEAD}<main><h1>An approval</h1>
<form method=post action=view><label>The part of your link after #
<input name=token autocomplete=off required></label> <button>Show</button></form>
</main><script src=link.js></script></html>"""

# Shows what the link is about. It never decides: the page that it leads to needs a person.
_SCRIPT: Final = """const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", location.pathname);
  document.forms[0].elements.token.value = token;
  document.forms[0].submit();
}
"""
_STYLE: Final = files("perdure.notify").joinpath("page.css").read_text("utf-8")
_FILES: Final = {
    "/approvals/link": Response(200, _EMPTY),
    "/approvals/link.js": Response(200, _SCRIPT, "text/javascript; charset=utf-8"),
    "/approvals/page.css": Response(200, _STYLE, "text/css; charset=utf-8"),
}


PATHS: Final = (*_FILES, "/approvals/view", "/approvals/decide")


def _action_page(approval: Approval, link: ApprovalLink, token: str, error: str = "") -> str:
    message = approval_message(approval, full=True)
    changed = approval.action.hash != link.action_hash
    if approval.state is not ApprovalState.PENDING or changed:
        why = message.outcome or "The action has changed since you were asked about it."
        return _message_page(message, f"<p><b>{escape(why)}</b></p>")
    return _message_page(message, _form_html(token, error))


def _message_page(message: ApprovalMessage, end: str) -> str:
    reasons = "".join(f"<li>{as_html(reason)}</li>" for reason in message.reasons)
    note = f"<p class=note>{escape(message.note)}</p>" if message.note else ""
    return _document(
        f"<h1>{as_html(message.title)}</h1>{note}{as_tables(message)}<ul>{reasons}</ul>{end}"
        f"<footer><small>{escape(message.footer)}</small></footer>"
    )


def _form_html(token: str, error: str) -> str:
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


def _text_page(text: str) -> str:
    return _document(f"<h1>{escape(visible(text))}</h1>")


def _document(body: str) -> str:
    return f"{_HEAD}<main>{body}</main></html>"


# Requests and responses

_PORTS: Final = {"http": 80, "https": 443}
_CSP: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; form-action 'self'; "
    b"frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", _CSP),
    # Not `no-referrer`: with that, a browser sends the origin of our own forms as `null`.
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
)


class _BadRequest(Exception):
    """A request that is refused before anything is done with it."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(status)
        self.response = Response(status, text)


class _Disconnected(Exception):
    """The client disconnected, perhaps in the middle of its request."""


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    for _ in range(MOST_MESSAGES):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        body += message.get("body", b"")
        if len(body) > LONGEST_BODY:
            raise _BadRequest(413)
        if not message.get("more_body", False):
            return bytes(body)
    raise _BadRequest(413)


def _form_in(body: bytes) -> LinkForm:
    try:
        fields = parse_qs(body.decode(), max_num_fields=10)
    except ValueError:
        return LinkForm()
    known = {name: fields[name][0] for name in LinkForm.__struct_fields__ if name in fields}
    return LinkForm(**known)


def _is_same_site(scope: Scope, own: str | None) -> bool:
    """Whether a form is our own, or comes from no browser: such a client needs the token anyway."""
    sites = _values(scope, b"sec-fetch-site")
    if any(site not in (b"same-origin", b"none") for site in sites):
        return False
    origins = _values(scope, b"origin")
    if not origins:
        return True
    own = own or _origin_of_request(scope)
    return own is not None and all(each == own.encode() for each in origins)


def _origin_of_request(scope: Scope) -> str | None:
    """Return the origin that a request was sent to; None if it does not say."""
    hosts = _values(scope, b"host")
    try:
        return _origin(f"{scope.get('scheme', 'http')}://{hosts[0].decode()}")
    except (ValueError, IndexError):
        return None


def _origin(url: str) -> str:
    """Return the origin of a URL, spelled as a browser does.

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


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for each, value in scope["headers"] if each == name]


async def _send(send: Send, response: Response) -> None:
    body = response.body.encode()
    kind = (b"content-type", response.kind.encode())
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": response.status}
    await send({**start, "headers": [kind, length, *_HEADERS]})
    await send({"type": "http.response.body", "body": body})
