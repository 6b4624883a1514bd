"""What a step spends: set aside before the call, settled after it, asked about at the limit."""

from collections.abc import Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from perdure.base.codec import decode, encode
from perdure.base.errors import BudgetExceeded
from perdure.engine.asking import Question, answer_to
from perdure.jobs.approval import ApprovalState
from perdure.jobs.budget import Amount, Budget, Exceeded, Limits
from perdure.jobs.gate import judge_raise
from perdure.jobs.risk import Judgement

if TYPE_CHECKING:
    from perdure.engine.run import Run
    from perdure.engine.step import StepOperation

# The identity of a question about the budget ends so, behind the step that asks.
RAISE: Final = "$"


class Purse(Struct, frozen=True):
    """Whose budget it is: that of the first job of the tree."""

    root: str
    new: Budget  # as it is before anything was spent


class Spending:
    """An amount that was set aside; what is not settled counts as spent."""

    def __init__(self, operation: "StepOperation[Any]", number: int, amount: Amount) -> None:
        self._operation = operation
        # The same at every attempt: what is set aside again takes the place of what was.
        self._id = f"{operation.run.job.id}/{operation.entry.id}/{number}"
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
        while True:
            found = await run.ask(
                lambda store: store.set_aside(purse.root, self._id, self._amount, purse.new)
            )
            if isinstance(found, Budget):
                return self
            await self._raised(purse, found)

    async def _raised(self, purse: Purse, found: Exceeded) -> None:
        """Have the limit raised by a person, as far as they want.

        Raises:
            BudgetExceeded: They said no.
        """
        run, wanted = self._operation.run, round(found.wanted, 6)
        packed, judge = (
            encode({found.kind: wanted}),
            partial(judge_raise, rules=run.node.rules.risk),
        )
        judged = judge(packed)
        question = Question(
            step=f"{self._operation.entry.id}{RAISE}",
            title=f"Raise the budget of job {run.job.name}: {found}",
            input=packed,
            budget=encode({found.kind: found.limit}),
            judgement=Judgement(judged.level, (str(found), *judged.reasons)),
            judge=judge,
        )
        answer = await answer_to(self._operation, question)
        if answer.state is ApprovalState.REJECTED:
            said = answer.decisions[-1]
            raise BudgetExceeded(f"{found}; {said.person} said no: {said.reason or 'no reason'}")
        limits = decode(answer.action.input, Limits)
        await run.ask(lambda store: store.raise_limits(purse.root, limits, purse.new))


async def purse_of(run: "Run") -> Purse:
    """Find the budget of the tree that a job belongs to."""
    if run.purse is None:
        job = run.job
        while job.parent is not None:
            parent_id = job.parent
            parent = await run.ask(lambda store: store.job(parent_id))  # noqa: B023 - awaited at once
            if parent is None:
                break
            job = parent
        definition = run.node.registry.jobs.get(job.name)
        limits = Limits() if definition is None or definition.budget is None else definition.budget
        began = job.started_at or run.now()
        run.purse = Purse(job.id, Budget(limits=limits, began_at=began))
    return run.purse
