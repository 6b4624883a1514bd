"""Notices to people, kept until they are delivered; pure.

A notice is written in the same transaction as the event that it reports, so neither exists without
the other (a transactional outbox). It starts as one row for a channel. The channel says whom to
notify, and each recipient gets a row, so that each is delivered, retried and given up on its own.

    for a channel      WAITING → ADDRESSED
    for a recipient    WAITING → DELIVERED or GIVEN_UP, with a later retry after each failure

While a worker delivers a row, it is SENDING. If that worker dies, the row becomes due again after a
while. So delivery is at least once: a worker may die between delivering and recording it.
"""

from enum import StrEnum
from random import Random
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import digest, encode
from perdure.base.retry import Retry
from perdure.base.secret import without_secrets

RETRY: Final = Retry(
    attempts=12, initial_delay="5s", factor=3, max_delay="1h", jitter=0.2
)  # about 8 hours
LONGEST_ERROR: Final = 500


class NoticeKind(StrEnum):
    """What a notice is about."""

    ASKED = "approval.asked"
    REMINDER = "approval.reminder"
    ESCALATED = "approval.escalated"
    DELEGATED = "approval.delegated"  # to one person, who is notified
    EDITED = "approval.edited"  # earlier votes do not count: everybody is asked again
    EXPIRED = "approval.expired"
    DECIDED = "approval.decided"  # those who were asked need not decide
    IN_DOUBT = "alert.in_doubt"
    UNDO_FAILED = "alert.undo_failed"
    NOT_UNDONE = "alert.not_undone"  # a job ended, and nothing undoes what it did
    STUCK = "alert.stuck"
    NEEDS_ATTENTION = "alert.needs_attention"
    WORKER_DEAD = "alert.worker_dead"
    ACKNOWLEDGED = "alert.acknowledged"  # somebody takes care of an earlier alert …
    RESOLVED = "alert.resolved"  # … or its reason is gone: only to channels for alerts
    EXPIRES_SOON = "alert.expires_soon"
    UNDELIVERED = "alert.undelivered"  # another channel gave up


# Alerts whose reason is gone when the job continues or ends.
OF_JOB: Final = frozenset({NoticeKind.STUCK, NoticeKind.NEEDS_ATTENTION, NoticeKind.UNDO_FAILED})
CLOSING: Final = frozenset({NoticeKind.ACKNOWLEDGED, NoticeKind.RESOLVED})


class NoticeState(StrEnum):
    """The state of a notice."""

    WAITING = "WAITING"
    SENDING = "SENDING"  # by a worker, until `due_at`
    ADDRESSED = "ADDRESSED"  # each recipient has a notice of its own
    DELIVERED = "DELIVERED"
    GIVEN_UP = "GIVEN_UP"


class Notice(Struct, frozen=True, kw_only=True):
    """One notice, through one channel.

    Attributes:
        id: The same at every attempt, so that a receiver can recognise a repetition.
        tenant: The tenant of the job.
        kind: What it is about.
        job_id: The job.
        approval_id: The approval, if it is about one.
        channel: The name of the channel.
        due_at: When to send it, by the store's clock; None: at once, and the store writes when.
        recipient: Whom to notify, by the channel's own name for them; empty: not yet known.
        data: What the channel needs beyond that, as JSON.
        receipt: What the channel returned, such as the id of a message to update later.
        asked: The receipt of the question to the same recipient, if there was one.
        alert: What an alert is about, by which its acknowledgement and resolution find it; empty
            for a channel that does not get those.
    """

    id: str
    tenant: str
    kind: NoticeKind
    job_id: str
    channel: str
    due_at: float | None = None
    recipient: str = ""
    approval_id: str | None = None
    data: bytes = b"{}"
    state: NoticeState = NoticeState.WAITING
    tries: int = 0
    error: str = ""
    receipt: str = ""
    asked: str = ""
    alert: str = ""

    def addressed(self) -> "Notice":
        """Return the notice as ADDRESSED: its recipients have notices of their own."""
        return replace(self, state=NoticeState.ADDRESSED, error="")

    def to(self, recipient: str) -> "Notice":
        """Return the notice for one recipient; its id is the same whichever worker creates it."""
        id = digest("recipient", self.id, recipient)[:32]
        return replace(
            self,
            id=id,
            recipient=recipient,
            state=NoticeState.WAITING,
            due_at=None,
            tries=0,
            error="",
        )

    def delivered(self, receipt: str = "") -> "Notice":
        """Return the notice as DELIVERED."""
        return replace(self, state=NoticeState.DELIVERED, receipt=receipt, error="")

    def failed(self, error: str, now: float, random: Random | None = None) -> "Notice":
        """Return the notice after a failed attempt: to be retried later, or given up."""
        tries = self.tries + 1
        text = without_secrets(error)[:LONGEST_ERROR]
        retried = replace(self, state=NoticeState.WAITING, tries=tries, error=text)
        if tries >= RETRY.attempts:
            return replace(retried, state=NoticeState.GIVEN_UP)
        return replace(retried, due_at=now + RETRY.delay(tries, random))


def alert_key(job_id: str, kind: NoticeKind, about: str) -> str:
    """Return what identifies an alert, the same whichever worker writes it."""
    return digest("alert", job_id, kind.value, about)[:32]


def closing_id(alert: str, channel: str, how: NoticeKind) -> str:
    """Return the id of the notice that an alert is acknowledged or resolved."""
    return digest(how.value, alert, channel)[:32]


def closing(notice: Notice, how: NoticeKind, text: str) -> Notice:
    """Return the notice that an alert is acknowledged or resolved, through the same channel."""
    return Notice(
        id=closing_id(notice.alert, notice.channel, how),
        tenant=notice.tenant,
        kind=how,
        job_id=notice.job_id,
        channel=notice.channel,
        data=encode({"text": text}),
        alert=notice.alert,
    )
