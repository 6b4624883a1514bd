"""The verbs about deeds, approvals, notices and budgets, over lanes; see `deed_port`."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from perdure.jobs.approval import Approval, ApprovalState, Handover, Refusal, Vote
from perdure.jobs.budget import Amount, Budget, Exceeded, Limits, SetAside
from perdure.jobs.effect import Effect
from perdure.jobs.link import Link, LinkUse
from perdure.jobs.outbox import Notice
from perdure.store.request import Call
from perdure.store.session import Session
from perdure.store.verb import approval as approvals
from perdure.store.verb import budget as budgets
from perdure.store.verb import effect as ledger
from perdure.store.verb import outbox

_log = logging.getLogger("perdure.store")


class DeedVerbs:
    """Mixed into a store, which sends each verb to the lane that does it."""

    async def _change(self, call: Call) -> Any:
        raise NotImplementedError

    async def _make_due(self, call: Call) -> Any:
        raise NotImplementedError

    async def _ask(self, call: Call) -> Any:
        raise NotImplementedError

    async def effects(self, job_id: str) -> list[Effect]:
        return await self._ask(partial(ledger.effects, job_id=job_id))

    async def effect_by_key(self, tenant: str, key: str) -> Effect | None:
        return await self._ask(partial(ledger.effect_by_key, tenant=tenant, key=key))

    async def effect_of_business(self, tenant: str, business: str) -> Effect | None:
        verb = partial(ledger.effect_of_business, tenant=tenant, business=business)
        return await self._ask(verb)

    async def open_effects(self, tenant: str | None = None, limit: int = 100) -> list[Effect]:
        return await self._ask(partial(ledger.open_effects, tenant=tenant, limit=limit))

    async def approval(self, approval_id: str) -> Approval | None:
        return await self._ask(partial(approvals.approval, approval_id=approval_id))

    async def approval_of_step(
        self, job_id: str, step: str, state: ApprovalState | None = None
    ) -> Approval | None:
        call = partial(approvals.approval_of_step, job_id=job_id, step=step, state=state)
        return await self._ask(call)

    async def approvals(
        self,
        state: ApprovalState | None = None,
        tenant: str | None = None,
        job: str | None = None,
        limit: int = 100,
    ) -> list[Approval]:
        wanted = {"state": None if state is None else state.value, "tenant": tenant, "job": job}
        return await self._ask(partial(approvals.approvals, limit=limit, **wanted))

    async def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Approval | Refusal:
        call = partial(approvals.vote, approval_id=approval_id, vote=vote, use=use)
        return await self._make_due(call)

    async def pass_on(self, approval_id: str, handover: Handover) -> Approval | Refusal:
        call = partial(approvals.pass_on, approval_id=approval_id, handover=handover)
        return await self._change(call)

    async def turned_away(self, approval_id: str | None, channel: str, why: str) -> None:
        if approval_id is None:  # nobody's matter: it must not fill the store
            _log.warning("%s: turned away: %s", channel, why)
            return
        call = partial(approvals.turned_away, approval_id=approval_id, channel=channel, why=why)
        await self._change(call)

    async def let_time_pass(self, limit: int = 100) -> int:
        due = await self._ask(partial(approvals.due_approvals, limit=limit))
        for approval_id in due:
            await self._make_due(partial(approvals.look_at_clock, approval_id=approval_id))
        return len(due)

    async def keep_link(self, link: Link) -> None:
        await self._change(partial(approvals.put_link, link=link))

    async def link(self, link_id: str) -> Link | None:
        return await self._ask(partial(approvals.link, link_id=link_id))

    async def take_notices(
        self, channels: Sequence[str], limit: int = 20, lease: float = 120.0
    ) -> list[Notice]:
        call = partial(outbox.take_notices, channels=channels, limit=limit, lease=lease)
        return await self._change(call)

    async def give_back(self, notice: Notice, *more: Notice) -> None:
        def call(session: Session) -> None:
            outbox.give_back(session, notice)
            if more:
                outbox.put_notices(session, more)

        await self._change(call)

    async def notices(self, job_id: str) -> list[Notice]:
        return await self._ask(partial(outbox.notices, job_id=job_id))

    async def budget(self, root_id: str) -> Budget | None:
        return await self._ask(partial(budgets.budget, root_id=root_id))

    async def set_aside(self, asked: SetAside, new: Budget) -> Budget | Exceeded:
        return await self._change(partial(budgets.set_aside, asked=asked, new=new))

    async def settle_spending(self, root_id: str, id: str, actual: Amount | None) -> None:
        call = partial(budgets.settle_spending, root_id=root_id, id=id, actual=actual)
        await self._change(call)

    async def raise_limits(self, root_id: str, limits: Limits, new: Budget) -> None:
        call = partial(budgets.raise_limits, root_id=root_id, limits=limits, new=new)
        await self._change(call)
