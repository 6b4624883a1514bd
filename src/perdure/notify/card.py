"""What people are shown of an approval, the same in every channel; pure.

The words may be those of a program that wants a yes. So each piece stands in a place of its own,
invisible and direction-changing characters are spelled out, and long things are cut and said to be.
"""

import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from perdure.jobs.approval import Approval, ApprovalState
from perdure.jobs.outbox import Notice, NoticeKind

LONGEST_TITLE: Final = 140
LONGEST_VALUE: Final = 500
MOST_FIELDS: Final = 20
MOST_ITEMS: Final = 10
SHORT_HASH: Final = 16

# Cc: control, Cf: format (also what turns the direction of text), Co, Cn, Cs; Zl, Zp: line breaks.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


class Card(Struct, frozen=True, kw_only=True):
    """The content of a message about an approval."""

    title: str
    note: str  # whose words these are
    fields: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    footer: str
    outcome: str  # empty while it waits


def card_of(approval: Approval) -> Card:
    """Make what is shown of an approval."""
    fields = [
        ("Job", visible(approval.job_id)),
        ("Step", visible(approval.step)),
        ("Risk", str(approval.risk)),
        ("Asked by", visible(approval.requester) or "nobody"),
        *[("Passed on", f"{visible(whose)} → {visible(to)}") for whose, to in approval.delegates],
        *_arguments(approval.shown),
    ]
    note = "Title and text were written by a program." if approval.written_by_program else ""
    return Card(
        title=visible(approval.title, LONGEST_TITLE),
        note=note,
        fields=tuple(fields),
        reasons=tuple(visible(reason) for reason in approval.reasons),
        footer=f"action {approval.action.hash[:SHORT_HASH]} · {_until(approval)}",
        outcome=outcome_of(approval),
    )


def outcome_of(approval: Approval) -> str:
    """Say what became of an approval; empty while it waits."""
    if approval.state is ApprovalState.PENDING:
        return ""
    who = ", ".join(f"{visible(each.person)} ({each.verdict})" for each in approval.decisions)
    reasons = "; ".join(visible(each.reason) for each in approval.decisions if each.reason)
    return " · ".join(part for part in (approval.state.capitalize(), who, reasons) if part)


def alert_text(notice: Notice, approval: Approval | None = None) -> str:
    """Say an alert in one line."""
    data = msgspec.json.decode(notice.data, type=dict[str, Any])
    told = visible(str(data.get("text", "")), LONGEST_VALUE)
    if approval is not None:
        told = f"{visible(approval.title, LONGEST_TITLE)}: {_until(approval)}"
    return f"{_ALERTS.get(notice.kind, notice.kind)}: job {visible(notice.job_id)}. {told}".strip()


_ALERTS: Final[Mapping[str, str]] = {
    NoticeKind.IN_DOUBT: "Nobody knows whether an effect happened",
    NoticeKind.UNDO_FAILED: "Something could not be undone",
    NoticeKind.STUCK: "A job is stuck",
    NoticeKind.EXPIRES_SOON: "An approval expires soon",
    NoticeKind.UNDELIVERED: "A message could not be delivered",
}


def visible(text: str, most: int = LONGEST_VALUE) -> str:
    """Give a text in one line in which nothing hides."""
    shown = "".join(
        f"⟨U+{ord(letter):04X}⟩" if unicodedata.category(letter) in _HIDDEN else letter
        for letter in text[:most]
    )
    return shown if len(text) <= most else f"{shown} … ({len(text) - most} characters more)"


def _arguments(shown: bytes) -> list[tuple[str, str]]:
    value = msgspec.json.decode(shown)
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {"value": value}
    lines = [(visible(name, 100), _value(each)) for name, each in fields.items()]
    if len(lines) > MOST_FIELDS:
        lines = [*lines[:MOST_FIELDS], ("…", f"{len(lines) - MOST_FIELDS} arguments more")]
    return lines


def _value(value: Any) -> str:
    if isinstance(value, list):
        items = cast("list[Any]", value)
        text = ", ".join(_value(each) for each in items[:MOST_ITEMS])
        left = len(items) - MOST_ITEMS
        return f"{text}, and {left} more ({len(items)} in all)" if left > 0 else text
    return visible(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _until(approval: Approval) -> str:
    at = approval.expires_at
    return "waits until it is answered" if at is None else f"expires {spell_time(at)}"


def spell_time(at: float) -> str:
    """Spell a moment for people anywhere."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
