"""What a step spends: set aside before the call, settled after it, asked about at the limit."""

import secrets
from collections.abc import Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from perdure.base.codec import decode, encode
from perdure.base.errors import BudgetExceeded
from perdure.engine.people.ask import RETRIED, Question, answer_to, is_looked_at, last_asked
from perdure.jobs.approval import Approval, ApprovalState
from perdure.jobs.budget import Amount, Budget, BudgetLimits, Exceeded, Reservation, spending_id
from perdure.jobs.effect import Place
from perdure.jobs.gate import judge_raise
from perdure.jobs.risk import Judgement

if TYPE_CHECKING:
    from perdure.engine.journal.run import Run
    from perdure.engine.steps.step import StepOperation


SPENDING: Final = "$"  # what is asked for at the place of a spending


class BudgetRef(Struct, frozen=True):
    """Whose budget it is: that of the first job of the tree."""

    root: str
    new: Budget  # as it is before anything was spent


class Spending:
    """An amount that was set aside; what is not settled counts as spent."""

    def __init__(self, operation: "StepOperation[Any]", place: Place, amount: Amount) -> None:
        self._operation = operation
        self._place = place
        # Whenever the code comes by again, it spends again: so each time has an identity.
        once = f"{operation.attempt}.{secrets.token_hex(8)}"
        self._id = spending_id(operation.run.job.id, place, once)
        self._amount = amount
        self._settled = False

    def __await__(self) -> Generator[Any, None, Self]:
        return self._reserved().__await__()

    async def __aenter__(self) -> Self:
        return await self._reserved()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._settled and error is None:
            await self.settle()

    async def settle(
        self, *, usd: float | None = None, tokens: int | None = None, calls: int | None = None
    ) -> None:
        """Say what was really spent; what is not named, as much as was set aside."""
        reserved = self._amount
        actual = Amount.of(
            usd=reserved.usd if usd is None else usd,
            tokens=reserved.tokens if tokens is None else tokens,
            calls=reserved.calls if calls is None else calls,
        )
        run, self._settled = self._operation.run, True
        purse = await purse_of(run)
        await run.ask(lambda store: store.settle_spending(purse.root, self._id, actual))

    async def _reserved(self) -> Self:
        run = self._operation.run
        purse = await purse_of(run)
        wanted = Reservation(
            job_id=run.job.id,
            owner=run.node.owner,
            epoch=run.epoch,
            root_id=purse.root,
            id=self._id,
            amount=self._amount,
        )
        while True:
            found = await run.ask(lambda store: store.set_aside(wanted, purse.new))
            if isinstance(found, Budget):
                break
            await self._raised(purse, found)
        if self._operation.context is not None:
            self._operation.context.reserved += self._amount
        return self

    async def _raised(self, purse: BudgetRef, found: Exceeded) -> None:
        """Have the limit raised by a person, as far as they want.

        Raises:
            BudgetExceeded: They said no.
        """
        run = self._operation.run
        answer = await answer_to(self._operation, await self._question(found))
        if answer.state is ApprovalState.REJECTED:
            said = answer.decisions[-1]
            raise BudgetExceeded(f"{found}; {said.person} said no: {said.reason or 'no reason'}")
        limits = decode(answer.action.input, BudgetLimits)
        await run.ask(lambda store: store.raise_limits(purse.root, limits, purse.new))

    async def _question(self, found: Exceeded) -> Question:
        """Ask for what is needed, unless a question at this place still stands.

        When the step is begun again with the answer, it needs more than when it asked: what it
        spends on its way here it spends once more.
        """
        run, context, step = self._operation.run, self._operation.context, self._place.spell("$")
        earlier = await last_asked(run, step)
        if earlier is not None and await self._stands(earlier, found):
            title, wanted, granted = earlier.title, earlier.asked.input, earlier.asked.budget
        else:
            found = found if context is None else found.once_more(context.reserved)
            title = f"Raise the budget of job {run.job.name}: {found}"
            wanted = encode({found.kind: round(found.wanted, 6)})
            granted = encode({found.kind: found.limit})
        judge = partial(judge_raise, rules=run.node.policy.risk)
        judged = judge(wanted)
        return Question(
            step=step,
            title=title,
            input=wanted,
            budget=granted,
            judgement=Judgement(judged.level, (str(found), *judged.reasons)),
            judge=judge,
        )

    async def _stands(self, earlier: Approval, found: Exceeded) -> bool:
        if earlier.state is ApprovalState.PENDING:
            return True
        if earlier.state is ApprovalState.APPROVED:  # else it is used up
            granted = getattr(decode(earlier.action.input, BudgetLimits), found.kind)
            return granted is not None and granted > found.limit
        if earlier.state is ApprovalState.REJECTED:
            return not await is_looked_at(self._operation.run, earlier, RETRIED)
        return not await is_looked_at(self._operation.run, earlier)


async def purse_of(run: "Run") -> BudgetRef:
    """Find the budget of the tree that a job belongs to, or was forked from."""
    if run.purse is None:
        root_id = run.job.budget_of or run.job.id
        found = await run.ask(lambda store: store.job(root_id)) if run.job.budget_of else None
        job = found or run.job
        definition = run.node.registry.jobs.get(job.name)
        limits = (
            BudgetLimits() if definition is None or definition.budget is None else definition.budget
        )
        began = job.started_at or run.now()
        run.purse = BudgetRef(root_id, Budget(limits=limits, began_at=began))
    return run.purse
