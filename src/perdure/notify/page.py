"""The page behind a link: what is shown, and what a press of its buttons comes to.

    GET  /approvals/link     an empty page; its script takes the token out of the URL's fragment
    GET  /approvals/page.css how the pages look
    POST /approvals/view     shows the action to who has the token
    POST /approvals/decide   decides, if the token, the code and (for HIGH) the session are right

GET shows, and decides nothing. A program that follows the link, runs the script and presses
the button has no code to type, and changes nothing; if it types one, that is counted as wrong.
"""

from html import escape
from importlib.resources import files
from typing import Final, Literal, TypeAlias, cast

from msgspec import Struct

from perdure.base.visible import visible
from perdure.jobs.approval import Approval, ApprovalState, Person, Refusal, Verdict, Vote
from perdure.jobs.link import Link, dead, link_id, use_of
from perdure.jobs.risk import RiskLevel
from perdure.notify.card import LONGEST_VALUE, Card, card_of
from perdure.notify.desk import Desk
from perdure.notify.markup import in_html, in_tables
from perdure.notify.people import People
from perdure.notify.token import Tokens

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


class Pages:
    """The pages of links."""

    def __init__(
        self,
        desk: Desk,
        people: People,
        tokens: Tokens,
        code_suffices: RiskLevel = RiskLevel.MEDIUM,
    ) -> None:
        """Take what the pages need.

        Args:
            desk: Where the approvals are.
            people: Who is who.
            tokens: By which links are read.
            code_suffices: Up to this risk, link and code are enough;
                above it, the person must have signed in, too.
        """
        self._desk = desk
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

    async def _vote(self, approval: Approval, link: Link, person: Person, form: Form) -> Shown:
        vote = Vote(
            person=person,
            verdict=cast("Verdict", form.verdict),
            action_hash=link.action_hash,
            channel="mail",
            reason=form.reason,
        )
        result = await self._desk.vote(approval.id, vote, use_of(form.token, form.code))
        if isinstance(result, Refusal) and result.code == "wrong code":
            return Shown(403, self._action_page(approval, link, form.token, _WRONG))
        if isinstance(result, Refusal):
            return Shown(_STATUS[result.code], _message(result.text))
        said = card_of(result).outcome or "Your answer counts; others must answer, too."
        return Shown(200, _message(said))

    async def _find(self, form: Form) -> tuple[Link, Approval] | Shown:
        # The store is asked for the time only by those who have a token.
        now = await self._desk.now() if self._tokens.is_signed(form.token) else None
        if now is None or not self._tokens.is_ours(form.token, now):
            await self._desk.turned_away(None, "mail", "a token that is not ours, or too old")
            return Shown(403, _message("This link is not valid, or its time is over."))
        link = await self._desk.link(link_id(form.token))
        approval = None if link is None else await self._desk.approval(link.approval_id)
        if link is None or approval is None:
            return Shown(404, _message("There is no such approval any more."))
        if (refusal := dead(link, now)) is not None:
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
        await self._desk.turned_away(approval.id, "mail", refusal.text)
        return Shown(_STATUS[refusal.code], _message(refusal.text))

    def _action_page(self, approval: Approval, link: Link, token: str, error: str = "") -> str:
        card = card_of(approval, full=True)
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


def _page(card: Card, end: str) -> str:
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
