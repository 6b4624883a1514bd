"""What time does to an approval: people are reminded, others asked, all warned, then it expires.

Pure: whoever looks at the clock says what time it is.
"""

from typing import Final

from msgspec import Struct

from perdure.jobs.approval import Approval, ApprovalState
from perdure.jobs.outbox import NoticeKind

# People are warned so long before an approval expires, but not in the first part of its time.
_WARN_BEFORE: Final = 3600.0
_WARN_AFTER: Final = 0.75


class Tick(Struct, frozen=True):
    """An approval after a look at the clock, and what people must be told."""

    approval: Approval
    notices: tuple[NoticeKind, ...] = ()


def tick(approval: Approval, now: float) -> Tick:
    """Let time pass: remind, ask others, warn, expire."""
    if approval.state is not ApprovalState.PENDING:
        return Tick(approval)
    if _is_past(approval.expires_at, now):
        return Tick(approval.ended(ApprovalState.EXPIRED, now), (NoticeKind.EXPIRED,))
    notices: list[NoticeKind] = []
    if _is_past(_escalates_at(approval), now):
        approval = approval.changed(escalated=True, reminded_at=now)
        notices.append(NoticeKind.ESCALATED)
    if _is_past(_warns_at(approval), now):
        approval = approval.changed(warned=True, reminded_at=now)
        notices.append(NoticeKind.EXPIRES_SOON)
    if _is_past(_reminds_at(approval), now):
        approval = approval.changed(reminded_at=now)
        notices.append(NoticeKind.REMINDER)
    return Tick(approval, tuple(notices))


def _is_past(at: float | None, now: float) -> bool:
    return at is not None and now >= at


def next_tick(approval: Approval) -> float | None:
    """Tell when to look at the clock again; None: there is nothing to look for."""
    if approval.state is not ApprovalState.PENDING:
        return None
    times = (
        approval.expires_at,
        _escalates_at(approval),
        _warns_at(approval),
        _reminds_at(approval),
    )
    return min((each for each in times if each is not None), default=None)


def _escalates_at(approval: Approval) -> float | None:
    after = approval.terms.escalate
    return None if after is None or approval.escalated else approval.created_at + after


def _warns_at(approval: Approval) -> float | None:
    whole = approval.terms.expires
    if whole is None or approval.warned:
        return None
    return approval.created_at + max(whole - _WARN_BEFORE, whole * _WARN_AFTER)


def _reminds_at(approval: Approval) -> float | None:
    every = approval.terms.remind
    return None if every is None else (approval.reminded_at or approval.created_at) + every
