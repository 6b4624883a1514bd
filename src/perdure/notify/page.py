"""The page behind a link: what is shown, and what a press of its buttons comes to.

    GET  /approvals/link     an empty page; its script takes the token out of the URL's fragment
    POST /approvals/view     shows the action to who has the token
    POST /approvals/decide   decides, if the token, the code and (for HIGH) the session are right

GET shows, and decides nothing. A program that follows the link, runs the script and presses
the button has no code to type, and changes nothing but the count of wrong codes.
"""

from html import escape
from typing import Final, Literal, TypeAlias, cast

from msgspec import Struct

from perdure.jobs.approval import Approval, ApprovalState, Person, Refusal, Verdict, Vote
from perdure.jobs.link import Link, dead, link_id, typed
from perdure.jobs.risk import RiskLevel
from perdure.notify.card import LONGEST_VALUE, Card, card_of, visible
from perdure.notify.desk import Desk
from perdure.notify.people import People
from perdure.notify.token import Tokens

SHELL: Final = """<!doctype html><html lang=en><meta charset=utf-8><title>Approval</title>
<h1>An approval</h1>
<form method=post action=view><label>The part of your link after #
<input name=token autocomplete=off required></label> <button>Show</button></form>
<script src=link.js></script></html>"""

# Shows what the link is about. It never decides: the page that it leads to needs a person.
SCRIPT: Final = """const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", location.pathname);
  document.forms[0].elements.token.value = token;
  document.forms[0].submit();
}
"""

Status: TypeAlias = Literal[200, 400, 401, 403, 404, 409, 410]

_STATUS: Final[dict[str, Status]] = {
    "not found": 404,
    "decided": 409,
    "repeated": 409,
    "expired": 410,
    "changed": 409,
    "not allowed": 403,
    "four eyes": 403,
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
        if form.verdict not in ("approve", "reject"):
            return Shown(400, _message("Press one of the two buttons."))
        judged = typed(link, form.token, form.code, await self._desk.now())
        if judged.refusal is not None:
            await self._desk.count_wrong_code(judged.link)
            return await self._turned_away(approval, judged.refusal)
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
        result = await self._desk.vote(approval.id, vote, link)
        if isinstance(result, Refusal):
            return Shown(_STATUS[result.code], _message(result.text))
        said = card_of(result).outcome or "Your answer counts; others must answer, too."
        return Shown(200, _message(said))

    async def _find(self, form: Form) -> tuple[Link, Approval] | Shown:
        now = await self._desk.now()
        if not self._tokens.is_ours(form.token, now):
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

    def _action_page(self, approval: Approval, link: Link, token: str) -> str:
        card = card_of(approval)
        changed = approval.action.hash != link.action_hash
        if approval.state is not ApprovalState.PENDING or changed:
            why = card.outcome or "The action has changed since you were asked about it."
            return _page(card, f"<p><b>{escape(why)}</b></p>")
        return _page(card, _form(token))


def _form(token: str) -> str:
    return (
        "<form method=post action=decide>"
        f'<input type=hidden name=token value="{escape(token)}">'
        "<p><label>The code of the mail <input name=code inputmode=numeric autocomplete=off "
        "required></label></p>"
        f"<p><label>Why <input name=reason maxlength={LONGEST_VALUE}></label></p>"
        "<p><button name=verdict value=approve>Approve</button> "
        "<button name=verdict value=reject>Reject</button></p></form>"
    )


def _page(card: Card, end: str) -> str:
    rows = "".join(
        f"<tr><th align=left>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in card.fields
    )
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in card.reasons)
    note = f"<p><b>{escape(card.note)}</b></p>" if card.note else ""
    body = (
        f"<h1>{escape(card.title)}</h1>{note}<table>{rows}</table><ul>{reasons}</ul>{end}"
        f"<p><small>{escape(card.footer)}</small></p>"
    )
    return _document(body)


def _message(text: str) -> str:
    return _document(f"<p>{escape(visible(text))}</p>")


def _document(body: str) -> str:
    head = "<meta charset=utf-8><title>Approval</title>"
    return f"<!doctype html><html lang=en>{head}{body}</html>"
