"""What people must be told, kept until they have been; pure.

A notice is written together with what it tells of, so neither is lost without the other.
It begins as one row for a channel. The channel says whom to tell, and each recipient gets a row:
so each is delivered to, tried again and given up without regard to the others.

    for a channel      WAITING → ADDRESSED
    for a recipient    WAITING → DELIVERED or GIVEN_UP, with another try, later, after each failure

While a worker is at it, a row is SENDING. If that worker dies, it is due again after a while:
it is delivered at least once, since whoever delivers it may die before that is written down.
"""

from enum import StrEnum
from random import Random
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import digest
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
    DELEGATED = "approval.delegated"  # to one person, who is told
    EDITED = "approval.edited"  # what was said before does not count: all are asked again
    EXPIRED = "approval.expired"
    DECIDED = "approval.decided"  # those who were asked need not decide any more
    IN_DOUBT = "alert.in_doubt"
    UNDO_FAILED = "alert.undo_failed"
    NOT_UNDONE = "alert.not_undone"  # a job has ended, and nothing undoes what it did
    STUCK = "alert.stuck"
    EXPIRES_SOON = "alert.expires_soon"
    UNDELIVERED = "alert.undelivered"  # another channel has given up


class NoticeState(StrEnum):
    """Where a notice stands."""

    WAITING = "WAITING"
    SENDING = "SENDING"  # by a worker, until `due_at`
    ADDRESSED = "ADDRESSED"  # there is a notice for each recipient now
    DELIVERED = "DELIVERED"
    GIVEN_UP = "GIVEN_UP"


class Notice(Struct, frozen=True, kw_only=True):
    """Something to tell, by one channel.

    Attributes:
        id: The same at every try, so that a receiver can tell a repetition.
        tenant: Whose matter it is.
        kind: What it is about.
        job_id: The job.
        approval_id: The approval, if it is about one.
        channel: The name of the channel.
        recipient: Whom to tell, as the channel calls them; empty: it has not been asked yet.
        data: What a channel needs beyond that, as JSON.
        receipt: What the channel gave for it, such as the place of a message that is changed later.
        asked: The receipt of the question to the same recipient, if there was one.
    """

    id: str
    tenant: str
    kind: NoticeKind
    job_id: str
    channel: str
    due_at: float
    recipient: str = ""
    approval_id: str | None = None
    data: bytes = b"{}"
    state: NoticeState = NoticeState.WAITING
    tries: int = 0
    error: str = ""
    receipt: str = ""
    asked: str = ""

    def addressed(self) -> "Notice":
        """Give it as one whose recipients have notices of their own."""
        return replace(self, state=NoticeState.ADDRESSED, error="")

    def to(self, recipient: str, now: float) -> "Notice":
        """Give the notice for one recipient; the same one whoever makes it."""
        id = digest("recipient", self.id, recipient)[:32]
        return replace(
            self,
            id=id,
            recipient=recipient,
            state=NoticeState.WAITING,
            due_at=now,
            tries=0,
            error="",
        )

    def delivered(self, receipt: str = "") -> "Notice":
        """Give it as one that has arrived."""
        return replace(self, state=NoticeState.DELIVERED, receipt=receipt, error="")

    def failed(self, error: str, now: float, random: Random | None = None) -> "Notice":
        """Give it as one to be tried again later, or given up."""
        tries = self.tries + 1
        text = without_secrets(error)[:LONGEST_ERROR]
        told = replace(self, state=NoticeState.WAITING, tries=tries, error=text)
        if tries >= RETRY.attempts:
            return replace(told, state=NoticeState.GIVEN_UP)
        return replace(told, due_at=now + RETRY.delay(tries, random))
