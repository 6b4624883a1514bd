"""What a write of a job says besides its journal: deeds, questions to people, news for them."""

from msgspec import Struct

from perdure.jobs.approval import Approval
from perdure.jobs.effect import Effect
from perdure.jobs.outbox import Notice


class Deeds(Struct, frozen=True, kw_only=True):
    """Written together with the rest of a write, or not at all.

    Attributes:
        effects: Lines of the ledger, new or changed; known by their keys.
        approvals: New questions.
        notices: What people must be told.
        withdraws: The job asks nothing any more: its open questions are taken back.
    """

    effects: tuple[Effect, ...] = ()
    approvals: tuple[Approval, ...] = ()
    notices: tuple[Notice, ...] = ()
    withdraws: bool = False
