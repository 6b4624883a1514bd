"""The outbox: notices to people, leased to the sender that delivers them, kept until delivery."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.jobs.outbox import (
    CLOSING,
    OF_JOB,
    Notice,
    NoticeKind,
    NoticeState,
    closing,
    closing_id,
)
from perdure.store.statements import Row, Session

_KEEP_WORKER_NOTICES = 30 * 86400.0

_UNDO_FAILED = NoticeKind.UNDO_FAILED

_read = msgspec.json.Decoder(Notice).decode


def put_notices(session: Session, notices: Iterable[Notice]) -> None:
    """Insert notices; one that exists already stays as it is, and one without a time is due now."""
    session.many("put_notice", [_row(_dated(session, each)) for each in notices])


def _dated(session: Session, notice: Notice) -> Notice:
    return replace(notice, due_at=session.now()) if notice.due_at is None else notice


def take_notices(
    session: Session, channels: Sequence[str], limit: int = 20, lease: float = 120.0
) -> list[Notice]:
    """Take the due notices of these channels; unsettled ones are due again after the lease."""
    now = session.now()
    names = session.array(channels)
    rows = session.all("take_notices", channels=names, now=now, until=now + lease, limit=limit)
    return [_with_question(session, _notice(each)) for each in rows]


def _with_question(session: Session, notice: Notice) -> Notice:
    """Add the receipt of the message that asked the question."""
    if notice.approval_id is None or not notice.recipient:
        return notice
    whose = {"channel": notice.channel, "recipient": notice.recipient}
    found = session.one("notice_that_asked", id=notice.approval_id, **whose)
    return notice if found is None else replace(notice, asked=_notice(found).receipt)


def settle_notice(session: Session, notice: Notice, *more: Notice) -> None:
    """Record what happened to a notice, and insert others that follow from it."""
    given = _row(notice)
    changed = {name: given[name] for name in ("id", "state", "due_at", "data")}
    session.run("change_notice", **changed)
    if more:
        put_notices(session, more)


def close_alerts(
    session: Session, job_id: str, how: NoticeKind, text: str, only: str | None = None
) -> None:
    """Tell the channels for alerts that those about a job are acknowledged or resolved.

    Args:
        session: The transaction.
        job_id: The job.
        how: ACKNOWLEDGED or RESOLVED; each is told once for an alert.
        text: Why.
        only: The one alert that it is about, by `alert_key`; otherwise all that end with the job,
            without those about undos that failed, as long as there is one that did.
    """
    told = [_notice(each) for each in session.all("alerts_of", id=job_id)]
    kinds = OF_JOB
    if how is NoticeKind.RESOLVED and any(each.kind is _UNDO_FAILED for each in told):
        # What could not be undone stands, also after the end of the job.
        kinds = OF_JOB if session.one("failed_undo", id=job_id) is None else OF_JOB - {_UNDO_FAILED}
    unclosed = [
        each
        for each in told
        if each.alert
        and each.kind not in CLOSING
        and (each.alert == only if only is not None else each.kind in kinds)
    ]
    if unclosed:
        put_notices(session, [closing(each, how, text) for each in unclosed])


def is_closed(session: Session, notice: Notice) -> bool:
    """Whether the reason of an alert is gone, so that it need not be sent any more."""
    id = closing_id(notice.alert, notice.channel, NoticeKind.RESOLVED)
    return session.one("has_notice", id=id) is not None


def alert_workers(session: Session, notices: Sequence[Notice]) -> None:
    """Store alerts about workers, and forget those of a month ago."""
    session.run("forget_worker_notices", before=session.now() - _KEEP_WORKER_NOTICES)
    put_notices(session, notices)


def channels_asked(session: Session, approval_id: str) -> list[str]:
    """Return the channels by which an approval was asked for."""
    return [each[0] for each in session.all("channels_asked", id=approval_id)]


def _notice(row: Row) -> Notice:
    data, state, due_at, _ = row
    return replace(_read(data), state=NoticeState(state), due_at=due_at)


def _row(notice: Notice) -> dict[str, Any]:
    return {
        "id": notice.id,
        "job_id": notice.job_id,
        "approval_id": notice.approval_id,
        "channel": notice.channel,
        "recipient": notice.recipient,
        "kind": notice.kind.value,
        "state": notice.state.value,
        "due_at": notice.due_at,
        "data": msgspec.json.encode(notice).decode(),
    }
