"""What channels ask of whoever keeps the approvals."""

from collections.abc import Sequence
from typing import Protocol

from perdure.jobs.approval import Approval, Refusal, Vote
from perdure.jobs.link import Link, LinkUse
from perdure.jobs.outbox import Notice


class Desk(Protocol):
    """Where questions lie and answers are handed in."""

    async def now(self) -> float:
        """Tell the time by which everything expires."""
        ...

    async def approval(self, approval_id: str) -> Approval | None: ...

    async def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Approval | Refusal:
        """Judge a vote, and write it if it counts; both are audited.

        The first decision wins: it is written only over the version that it was judged by.
        By a link, the code is judged first, and counted if it is wrong, under a lock;
        a link that has decided is used up in the same transaction.
        """
        ...

    async def keep_link(self, link: Link) -> None: ...

    async def link(self, link_id: str) -> Link | None: ...

    async def turned_away(self, approval_id: str | None, channel: str, why: str) -> None:
        """Audit an attempt that came to no vote: forged, replayed, by nobody we know."""
        ...


class Channel(Protocol):
    """A way to tell people something."""

    @property
    def name(self) -> str: ...

    async def recipients(self, notice: Notice, approval: Approval | None) -> Sequence[str]:
        """List whom to tell, in words of the channel's own.

        It is asked once for a notice. Each of them is then delivered to, one at a time,
        and tried again without regard to the others.

        Raises:
            Exception: Whatever happened; it is asked again later. None at all is an error, too.
        """
        ...

    async def deliver(self, notice: Notice, approval: Approval | None, recipient: str) -> str:
        """Deliver to one recipient, at least once.

        Returns:
            A receipt, such as the place of a message that is to be changed later:
            `notice.asked` is that of the question, when its decision is told.

        Raises:
            Exception: Whatever happened; it is tried again.
        """
        ...
