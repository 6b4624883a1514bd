"""E-mail: each approver gets a link of their own, and a code to type on its page.

The token is in the fragment of the link, which no browser sends and no server logs. The code is in
the text: a program that follows all links of a mail does not type what it read.
"""

from email.message import EmailMessage
from email.utils import formataddr, make_msgid
from html import escape
from typing import Any, Final

import msgspec

from perdure.base.checked import Checked
from perdure.base.extra import extra
from perdure.base.secret import Secret
from perdure.base.visible import visible
from perdure.jobs.approval import Approval, ApprovalState, new_link
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.notify.message import (
    ApprovalMessage,
    alert_text,
    approval_message,
    as_html,
    as_tables,
    spell_time,
)
from perdure.notify.people import ApprovalStore, Contact, People

with extra("mail", "e-mail"):
    import aiosmtplib

    from perdure.notify.links import LinkTokens, new_code

TIMEOUT: Final = 30.0
_ASKS: Final = {
    NoticeKind.ASKED: "Approval needed",
    NoticeKind.REMINDER: "Approval needed",
    NoticeKind.ESCALATED: "Approval needed",
    NoticeKind.DELEGATED: "Approval needed",
    NoticeKind.EDITED: "Edited, approval needed again",
    NoticeKind.EXPIRES_SOON: "Expires soon",
}


class MailSettings(Checked, frozen=True, kw_only=True):
    """How to send mail.

    Attributes:
        host: The mail server.
        port: Its port.
        sender: The address of the sender.
        base_url: Where `app.asgi` is served, as people reach it: `https://perdure.example.com`.
        alerts_to: The addresses that get alerts.
        username: The user name for the mail server, if it needs one …
        password: … and the password.
        tls: Use TLS from the first byte; otherwise STARTTLS is used, unless `insecure`.
        insecure: Use no TLS at all: for a server on this machine.
    """

    host: str
    sender: str
    base_url: str
    port: int = 587
    alerts_to: tuple[str, ...] = ()
    username: str | None = None
    password: Secret[str] | None = None
    tls: bool = False
    insecure: bool = False


class MailChannel:
    """Asks by mail."""

    def __init__(
        self,
        settings: MailSettings,
        store: ApprovalStore,
        people: People,
        tokens: LinkTokens,
        name: str = "mail",
    ) -> None:
        self.name = name
        self._settings = settings
        self._store = store
        self._people = people
        self._tokens = tokens

    async def recipients(self, notice: Notice, approval: Approval | None) -> list[str]:
        """Return the approvers, as `person:…`, and the addresses for alerts, as `mailto:…`."""
        alerts = [f"mailto:{each}" for each in self._settings.alerts_to]
        if approval is None:
            return alerts
        asked = [f"person:{each.person.id}" for each in self._asked(notice, approval)]
        return [*asked, *alerts] if notice.kind is NoticeKind.EXPIRES_SOON else asked

    async def deliver(self, notice: Notice, approval: Approval | None, recipient: str) -> str:
        """Send a mail.

        Raises:
            OSError, aiosmtplib.SMTPException: The server did not accept it.
        """
        mail = await self._mail_to(recipient, notice, approval)
        if mail is None:
            return "not sent: it is no longer about them"
        await self._send(mail, notice.id)
        return str(mail["Message-ID"])

    def _asked(self, notice: Notice, approval: Approval) -> list[Contact]:
        asked = [each for each in self._people.asked(approval) if each.email]
        if notice.kind is NoticeKind.DELEGATED:
            to = msgspec.json.decode(notice.data, type=dict[str, Any]).get("to")
            return [each for each in asked if each.person.id == to]
        return asked

    async def _mail_to(
        self, recipient: str, notice: Notice, approval: Approval | None
    ) -> EmailMessage | None:
        kind, _, who = recipient.partition(":")
        if approval is None or kind == "mailto":
            text = alert_text(notice, approval)
            return self._mail(who, text, text)
        asked = self._asked(notice, approval)
        contact = next((each for each in asked if each.person.id == who), None)
        if contact is None:
            return None  # they may no longer decide
        if notice.kind in _ASKS:
            if approval.state is not ApprovalState.PENDING:
                return None  # the decision is a notice of its own
            return await self._question(approval, contact, _ASKS[notice.kind])
        message = approval_message(approval)
        subject = f"{message.outcome or 'Update'}: {message.title}"
        return self._mail(str(contact.email), subject, _text_of(message, []))

    async def _question(self, approval: Approval, contact: Contact, what: str) -> EmailMessage:
        now = await self._store.now()
        token, code = self._tokens.make(now), new_code()
        link = new_link(approval, contact.person.id, token, code, now + self._tokens.ttl)
        await self._store.keep_link(link)
        message = approval_message(approval)
        url = f"{self._settings.base_url.rstrip('/')}/approvals/link#{token}"
        spaced = f"{code[:4]} {code[4:]}"
        after = [
            f"Review and decide: {url}",
            f"Type this code there: {spaced}",
            f"The link is only for you and works once, until {spell_time(link.expires_at)}.",
            "Opening the link only shows the action. Replies to this mail are not read.",
        ]
        mail = self._mail(str(contact.email), f"{what}: {message.title}", _text_of(message, after))
        mail.add_alternative(_html_of(message, url, spaced, link.expires_at), subtype="html")
        return mail

    def _mail(self, to: str, subject: str, text: str) -> EmailMessage:
        mail = EmailMessage()
        mail["From"] = formataddr(("Perdure", self._settings.sender))
        mail["To"] = to
        mail["Subject"] = visible(subject, 200)
        mail["Message-ID"] = make_msgid("perdure", self._settings.sender.rpartition("@")[2])
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(text)
        return mail

    async def _send(self, mail: EmailMessage, notice_id: str) -> None:
        settings = self._settings
        mail["X-Perdure-Notice"] = notice_id
        security: dict[str, Any] = {"use_tls": settings.tls, "start_tls": None}
        if not settings.tls:
            security["start_tls"] = not settings.insecure
        password = settings.password
        await aiosmtplib.send(
            mail,
            hostname=settings.host,
            port=settings.port,
            username=settings.username,
            password=None if password is None else password.reveal(),
            timeout=TIMEOUT,
            **security,
        )


def _text_of(message: ApprovalMessage, after: list[str]) -> str:
    parts = [
        [message.title],
        [message.note] if message.note else [],
        [f"{name}: {value}" for name, value in message.fields],
        ["Arguments:", *(f"  {name}: {value}" for name, value in message.arguments)],
        [f"All of it: {message.in_full}"] if message.in_full else [],
        [f"- {reason}" for reason in message.reasons],
        [message.outcome] if message.outcome else [],
        after,
        [message.footer],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _html_of(message: ApprovalMessage, url: str, code: str, expires_at: float) -> str:
    reasons = "".join(f"<li>{as_html(reason)}</li>" for reason in message.reasons)
    note = f"<p><b>{escape(message.note)}</b></p>" if message.note else ""
    return (
        f"<h2>{as_html(message.title)}</h2>{note}{as_tables(message)}<ul>{reasons}</ul>"
        f'<p><a href="{escape(url)}">Review and decide</a></p>'
        f"<p>Type this code there: <b>{escape(code)}</b></p>"
        f"<p>The link is only for you and works once, until {spell_time(expires_at)}. "
        "Opening the link only shows the action. Replies to this mail are not read.</p>"
        f"<p><small>{escape(message.footer)}</small></p>"
    )
