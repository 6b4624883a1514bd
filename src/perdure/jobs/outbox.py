"""What people must be told, kept until they have been; pure.

A notice is written together with what it tells of, so neither is lost without the other.
It is delivered at least once: whoever delivers it may die before that is written down.
"""

from enum import StrEnum
from random import Random
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.backoff import Retry
from perdure.base.scrub import without_secrets

RETRY: Final = Retry(attempts=12, first="5s", factor=3, most="1h", jitter=0.2)  # about 8 hours
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
    STUCK = "alert.stuck"
    EXPIRES_SOON = "alert.expires_soon"
    UNDELIVERED = "alert.undelivered"  # another channel has given up


class NoticeState(StrEnum):
    """Where a notice stands."""

    WAITING = "WAITING"
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
        data: What a channel needs beyond that, as JSON.
        receipt: What the channel gave for it, such as the place of a message that is changed later.
    """

    id: str
    tenant: str
    kind: NoticeKind
    job_id: str
    channel: str
    due_at: float
    approval_id: str | None = None
    data: bytes = b"{}"
    state: NoticeState = NoticeState.WAITING
    tries: int = 0
    error: str = ""
    receipt: str = ""

    def delivered(self, receipt: str = "") -> "Notice":
        """Give it as one that has arrived."""
        return replace(self, state=NoticeState.DELIVERED, receipt=receipt, error="")

    def failed(self, error: str, now: float, random: Random | None = None) -> "Notice":
        """Give it as one to be tried again later, or given up."""
        tries = self.tries + 1
        told = replace(self, tries=tries, error=without_secrets(error)[:LONGEST_ERROR])
        if tries >= RETRY.attempts:
            return replace(told, state=NoticeState.GIVEN_UP)
        return replace(told, due_at=now + RETRY.delay(tries, random))
