"""What the engine, the channels and people ask of a store about deeds and approvals."""

from collections.abc import Sequence
from typing import Protocol

from perdure.jobs.approval import Approval, ApprovalState, Handover, Refusal, Vote
from perdure.jobs.budget import Amount, Budget, Exceeded, Limits, SetAside
from perdure.jobs.effect import Effect
from perdure.jobs.link import Link, LinkUse
from perdure.jobs.outbox import Notice


class DeedStore(Protocol):
    """The part of a store that knows what jobs did to the world, and whom they ask first.

    It is the `Desk` of the channels.
    """

    async def effects(self, job_id: str) -> list[Effect]:
        """Read the ledger of a job, in order."""
        ...

    async def effect_by_key(self, tenant: str, key: str) -> Effect | None: ...

    async def effect_of_business(self, tenant: str, business: str) -> Effect | None:
        """Find the latest generation of what all jobs of a tenant do only once."""
        ...

    async def open_effects(self, tenant: str | None = None, limit: int = 100) -> list[Effect]:
        """List effects of which it is not known what became of them, the oldest first."""
        ...

    async def approval(self, approval_id: str) -> Approval | None: ...

    async def approval_of_step(
        self, job_id: str, step: str, state: ApprovalState | None = None
    ) -> Approval | None:
        """Read what was last asked for a step, of those in a state if one is named."""
        ...

    async def approvals(
        self,
        state: ApprovalState | None = None,
        tenant: str | None = None,
        job: str | None = None,
        limit: int = 100,
    ) -> list[Approval]:
        """Find approvals, the newest first."""
        ...

    async def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Approval | Refusal:
        """Judge a vote and write it if it counts, with its audit and its notices; wake the job."""
        ...

    async def pass_on(self, approval_id: str, handover: Handover) -> Approval | Refusal:
        """Let another person decide instead of one who may, who is told; audited."""
        ...

    async def turned_away(self, approval_id: str | None, channel: str, why: str) -> None:
        """Audit an attempt that came to no vote."""
        ...

    async def let_time_pass(self, limit: int = 100) -> int:
        """Remind, ask others and expire what is due; give how many were looked at."""
        ...

    async def keep_link(self, link: Link) -> None: ...

    async def link(self, link_id: str) -> Link | None: ...

    async def take_notices(
        self, channels: Sequence[str], limit: int = 20, lease: float = 120.0
    ) -> list[Notice]:
        """Take what is due for these channels; what is not given back is due again later."""
        ...

    async def give_back(self, notice: Notice, *more: Notice) -> None:
        """Write what became of a notice, and keep others that come of it."""
        ...

    async def notices(self, job_id: str) -> list[Notice]: ...

    async def budget(self, root_id: str) -> Budget | None: ...

    async def set_aside(self, asked: SetAside, new: Budget) -> Budget | Exceeded:
        """Reserve an amount, unless that would exceed a limit; fenced as a write is.

        When the job ends, what is still reserved is settled as spent.

        Raises:
            LeaseLost: The job has ended, or is another's.
        """
        ...

    async def settle_spending(self, root_id: str, id: str, actual: Amount | None) -> None: ...

    async def raise_limits(self, root_id: str, limits: Limits, new: Budget) -> None: ...
