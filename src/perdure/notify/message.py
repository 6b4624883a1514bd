"""What people are shown of an approval, the same in every channel; pure.

The text may come from a program that wants an approval, so nothing in it may look like our own
labels. Each piece has its own place: arguments are set apart from our labels, with their names in
quotes; invisible and direction-changing characters are spelled out; and what is too long is cut,
which the message says. `approval_message(approval, full=True)` cuts nothing.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from perdure.base.codec import read_plain
from perdure.base.visible import LONGEST_SHOWN, visible
from perdure.jobs.approval import Approval, ApprovalState, Edit
from perdure.jobs.on_failure import UNDO_QUESTION
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.redaction import for_people

LONGEST_TITLE: Final = 140
LONGEST_VALUE: Final = LONGEST_SHOWN
LONGEST_ARGUMENT_NAME: Final = 100
MOST_FIELDS: Final = 20
MOST_ITEMS: Final = 10
SHORT_HASH: Final = 16

_MORE: Final = " … ("  # the end of everything that is cut


class ApprovalMessage(Struct, frozen=True, kw_only=True):
    """What people are shown of an approval."""

    title: str
    note: str  # whether a program wrote the text
    fields: tuple[tuple[str, str], ...]  # our own labels
    arguments: tuple[tuple[str, str], ...]  # of the action; the names are in quotes
    reasons: tuple[str, ...]
    footer: str
    outcome: str  # empty while it is pending
    in_full: str = ""  # how to see all of it, if something is cut


def approval_message(approval: Approval, *, full: bool = False) -> ApprovalMessage:
    """Return what is shown of an approval: all of it, or as much as fits into a message."""
    described = visible(approval.description, None if full else LONGEST_VALUE)
    fields = [
        *([("What it does", described)] if described else []),
        ("Job", visible(approval.job_id)),
        *([] if approval.step == UNDO_QUESTION else [("Step", visible(approval.step))]),
        ("Risk", str(approval.risk)),
        ("Requested by", visible(approval.requester) or "nobody"),
        *[("Delegated", f"{visible(whose)} → {visible(to)}") for whose, to in approval.delegates],
        *[("Edited by", visible(each.person)) for each in approval.edits],
    ]
    arguments = _arguments(approval, full=full)
    title = visible(approval.title, None if full else LONGEST_TITLE)
    cut = _MORE in title + described or any(_MORE in text for pair in arguments for text in pair)
    note = "Title and text were written by a program." if approval.written_by_program else ""
    return ApprovalMessage(
        title=title,
        note=note,
        fields=tuple(fields),
        arguments=arguments,
        reasons=tuple(visible(reason) for reason in approval.reasons),
        footer=f"action {approval.action.hash[:SHORT_HASH]} · {_until(approval)}",
        outcome=outcome_of(approval),
        in_full=f"perdure approvals show {approval.id} --full" if cut and not full else "",
    )


def outcome_of(approval: Approval) -> str:
    """Return what became of an approval; empty while it is pending."""
    if approval.state is ApprovalState.PENDING:
        return ""
    who = ", ".join(f"{visible(each.person)} ({each.verdict})" for each in approval.decisions)
    reasons = "; ".join(visible(each.reason) for each in approval.decisions if each.reason)
    return " · ".join(part for part in (approval.state.capitalize(), who, reasons) if part)


def alert_text(notice: Notice, approval: Approval | None = None) -> str:
    """Return an alert in one line."""
    data = msgspec.json.decode(notice.data, type=dict[str, Any])
    told = visible(str(data.get("text", "")), LONGEST_VALUE)
    if approval is not None:
        told = f"{visible(approval.title, LONGEST_TITLE)}: {_until(approval)}"
    return f"{_ALERTS.get(notice.kind, notice.kind)}: job {visible(notice.job_id)}. {told}".strip()


def edited_text(approval: Approval) -> str:
    """Return one line which says that the action was edited after people were asked."""
    title = visible(approval.title, LONGEST_TITLE)
    if not approval.edits:
        return title
    by, risk = visible(approval.edits[-1].person), approval.risk
    return f"{by} has edited “{title}” ({risk}): earlier answers do not count; review it again"


_ALERTS: Final[Mapping[str, str]] = {
    NoticeKind.IN_DOUBT: "Nobody knows whether an effect happened",
    NoticeKind.UNDO_FAILED: "Something could not be undone",
    NoticeKind.NOT_UNDONE: "A job has failed, and what it did is not undone",
    NoticeKind.STUCK: "A job is stuck",
    NoticeKind.NEEDS_ATTENTION: "A job needs attention",
    NoticeKind.WORKER_DEAD: "A worker is gone",
    NoticeKind.ACKNOWLEDGED: "Somebody takes care of it",
    NoticeKind.RESOLVED: "No longer needs attention",
    NoticeKind.EXPIRES_SOON: "An approval expires soon",
    NoticeKind.UNDELIVERED: "A message could not be delivered",
}


def before_edits(approval: Approval) -> Any:
    """Return the arguments that the job asked about, if somebody has edited them since."""
    return shown_before(approval.edits[0]) if approval.edits else None


def shown_before(edit: Edit) -> Any:
    """Return what people saw of the arguments before an edit."""
    return for_people(edit.shown or edit.before)


def _arguments(approval: Approval, *, full: bool) -> tuple[tuple[str, str], ...]:
    fields = _fields(for_people(approval.shown))
    old = _fields(before_edits(approval)) if approval.edits else fields
    edited = _edited_names(approval)
    # Edited arguments come first, so that they are not the ones that are cut.
    names = sorted({**fields, **old}, key=lambda name: name not in edited)
    shorter = names[: None if full else MOST_FIELDS]
    longest = None if full else LONGEST_ARGUMENT_NAME
    lines = [
        (
            _quoted(name, longest),
            _argument(name, fields, full=full)
            + (f" (was: {_argument(name, old, full=full)})" if name in edited else ""),
        )
        for name in shorter
    ]
    if left := len(names) - len(shorter):
        lines.append(("…", f"and{_MORE}{left} arguments more)"))
    return tuple(lines)


def _fields(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"value": value}


def _edited_names(approval: Approval) -> set[str]:
    """Return which arguments were edited, also if people see the same of both."""
    if not approval.edits:
        return set()
    new = _fields(read_plain(approval.action.input))
    old = _fields(read_plain(approval.edits[0].before))
    return {
        name
        for name in {**new, **old}
        if not (name in new and name in old and new[name] == old[name])
    }


def _argument(name: str, fields: dict[str, Any], *, full: bool) -> str:
    if name not in fields:
        return "nothing"
    return _value(fields[name], full=full)


def _value(value: Any, *, full: bool) -> str:
    longest = None if full else LONGEST_VALUE
    if isinstance(value, str):
        return _quoted(value, longest)
    if isinstance(value, list):
        items = cast("list[Any]", value)
        shorter = items[: None if full else MOST_ITEMS]
        text = ", ".join(_value(each, full=full) for each in shorter)
        left = len(items) - len(shorter)
        return f"[{text}]" + (f"{_MORE}{left} more, {len(items)} in all)" if left else "")
    return visible(msgspec.json.encode(value).decode(), longest)


def _quoted(text: str, longest: int | None) -> str:
    """Return a text in quotes, so that nothing in it looks like ours."""
    quoted = visible(json.dumps(text[:longest], ensure_ascii=False), None)
    left = len(text) - len(text[:longest])
    return f"{quoted}{_MORE}{left} characters more)" if left else quoted


def _until(approval: Approval) -> str:
    at = approval.expires_at
    return "does not expire" if at is None else f"expires {spell_time(at)}"


def spell_time(at: float) -> str:
    """Return a time in a form that people in any country understand."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


# As HTML, for mails and pages. Invisible characters have been spelled out before.


def as_html(text: str) -> str:
    """Return a text escaped, and isolated: letters read from the right must not move others."""
    return f"<bdi>{escape(text)}</bdi>"


def as_tables(message: ApprovalMessage) -> str:
    """Return a table of our own fields, and apart from it one of the arguments."""
    return (
        f"<table cellpadding=4>{_rows(message.fields)}</table>"
        f"<h3>Arguments</h3><table cellpadding=4 class=arguments>{_rows(message.arguments)}</table>"
    )


def _rows(pairs: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f"<tr><th align=left valign=top>{as_html(name)}</th><td>{as_html(value)}</td></tr>"
        for name, value in pairs
    )
