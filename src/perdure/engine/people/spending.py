"""What a step spends: reserved before the call, settled after it, asked about at the limit.

A budget belongs to the first job of a tree, and all jobs of that tree spend from it, on any worker:
so the store decides whether an amount is left. At a limit, a person is asked to raise it; the step
exits meanwhile, and begins again with the answer.

A model call should cost as few commits as possible, so only a reservation under a limit is awaited.
Without a limit, it is recorded like the start of a step: with the next write, or soon on its own.
A settlement is written with the result of the step, if that follows at once. If a crash loses it,
the whole reservation counts as spent.
"""

from collections.abc import Callable
from functools import partial

from perdure.base.codec import decode, encode
from perdure.base.errors import BudgetExceeded
from perdure.engine.journal.run import Run
from perdure.engine.journal.verdict import Unwound
from perdure.engine.people.ask import RETRY, Question, answer_to, is_continued, last_asked
from perdure.jobs.approval import Approval, ApprovalState
from perdure.jobs.budget import Amount, Budget, BudgetLimits, BudgetRef, Exceeded, Reservation
from perdure.jobs.effect import Place
from perdure.jobs.gate import judge_raise
from perdure.jobs.model import JobEvent, SpendingChange
from perdure.jobs.risk import Judgement


async def budget_of(run: Run) -> BudgetRef:
    """Return the budget of the tree that a job belongs to, or was forked from."""
    if run.budget is None:
        root_id = run.job.budget_of or run.job.id
        found = await run.ask(lambda store: store.job(root_id)) if run.job.budget_of else None
        job = found or run.job
        definition = run.node.registry.jobs.get(job.name)
        limits = None if definition is None else definition.budget
        began = job.started_at or run.now()
        new = Budget(root=root_id, limits=limits or BudgetLimits(), began_at=began)
        stored = await run.ask(lambda store: store.budget(root_id))
        run.budget = BudgetRef(root_id, new, (stored or new).limits)
    return run.budget


async def reserve(
    run: Run, reservation: Reservation, place: Place, reserved: Callable[[], Amount]
) -> None:
    """Reserve an amount, asking a person to raise the limit if it is too low.

    Without a limit it is only noted: nobody needs to be asked.

    Args:
        run: The run of the job that spends.
        reservation: What to reserve.
        place: Where the code asks for it.
        reserved: Returns what this run of the step's code has reserved so far.

    Raises:
        StepExit: A person must answer first.
        BudgetExceeded: They refused.
    """
    budget = await budget_of(run)
    if not budget.is_limited:
        id, amount = reservation.id, reservation.amount
        run.buffer_spending(SpendingChange(budget=budget, id=id, reserved=amount))
        return
    while True:
        run.write_ledger()  # before the reservation: what is settled makes room for it
        found = await run.ask(lambda store: store.reserve(reservation, budget.new))
        if isinstance(found, Budget):
            return
        await _ask_to_raise(run, budget, await _question(run, place, found, reserved()), found)


async def settle(run: Run, reservation: str, actual: Amount, note: JobEvent | None = None) -> None:
    """Replace a reservation by what was actually spent, with a line in the log of the job.

    It is written in this turn of the loop; nobody waits for it.

    Raises:
        Unwound: The run has ended: the whole reservation counts as spent.
    """
    budget = await budget_of(run)
    if run.sealed:
        raise Unwound
    run.buffer_spending(
        SpendingChange(budget=budget, id=reservation, settled=actual, note=note), at_once=True
    )


async def _ask_to_raise(run: Run, budget: BudgetRef, question: Question, found: Exceeded) -> None:
    """Ask a person to raise the limit; they decide how far."""
    answer = await answer_to(run, question)
    if answer.state is ApprovalState.REJECTED:
        said = answer.decisions[-1]
        raise BudgetExceeded(f"{found}; {said.person} said no: {said.reason or 'no reason'}")
    limits = decode(answer.action.input, BudgetLimits)
    await run.ask(lambda store: store.raise_limits(budget.root, limits, budget.new))


async def _question(run: Run, place: Place, found: Exceeded, reserved: Amount) -> Question:
    """Return a question for the amount needed; the earlier one at this place, if still open.

    When the step begins again with the answer, it needs more than when it asked: what it spent
    before it reached this place, it spends once more.
    """
    step = place.spell("$")
    earlier = await last_asked(run, step)
    if earlier is not None and await _stands(run, earlier, found):
        title, wanted, granted = earlier.title, earlier.asked.input, earlier.asked.budget
    else:
        found = found.once_more(reserved)
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


async def _stands(run: Run, earlier: Approval, found: Exceeded) -> bool:
    if earlier.state is ApprovalState.PENDING:
        return True
    if earlier.state is ApprovalState.APPROVED:  # otherwise it is used up
        granted = getattr(decode(earlier.action.input, BudgetLimits), found.kind)
        return granted is not None and granted > found.limit
    if earlier.state is ApprovalState.REJECTED:
        return not await is_continued(run, earlier, RETRY)
    return not await is_continued(run, earlier)
