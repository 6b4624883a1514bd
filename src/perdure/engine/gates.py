"""Gates before steps: by risk, and before what cannot be undone."""

from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.base.errors import ApprovalRejected
from perdure.engine.asking import (
    Question,
    is_about,
    is_looked_at,
    last_asked,
    new_approval,
    park_expired,
    usable_now,
    wait_for,
)
from perdure.engine.rules import Rules
from perdure.jobs.approval import Approval, ApprovalState
from perdure.jobs.definition import Step
from perdure.jobs.gate import Opening, Way, judge_call, through, way_for
from perdure.jobs.model import Event
from perdure.jobs.risk import RULES, Gate, GatePolicy, Judgement, RiskLevel

if TYPE_CHECKING:
    from perdure.engine.run import Run
    from perdure.engine.step import StepOperation


_LOW = RiskLevel.LOW  # looked up once: every step is asked


class Gatekeeper:
    """Knows which steps must be looked at before they begin; most need not be."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        # Rules of the user look at every step, and so does a policy that is not the usual one.
        self._all = rules.risk.rules != RULES or rules.gates != GatePolicy()

    def watches(self, step: Step[..., Any]) -> bool:
        """Tell whether a step must be looked at."""
        return self._all or _says_something(step)

    def way(self, run: "Run", step: Step[..., Any], name: str, packed: bytes) -> Way:
        """Decide what happens before a call of a step; uses up what has opened it."""
        judgement = self.judge(step, name, packed)
        way = way_for(step, name, run.job.tenant, judgement, self._rules.gates)
        way, run.openings = through(way, name, run.openings)
        return way

    def judge(self, step: Step[..., Any], name: str, packed: bytes) -> Judgement:
        """Judge a call of a step."""
        return judge_call(step, name, packed, self._rules.risk)


def _says_something(step: Step[..., Any]) -> bool:
    """Tell whether the usual rules could find anything about a step but LOW."""
    estimated = step.cost is not None or step.takes is not None
    return bool(step.tags) or step.irreversible or estimated or step.risk is not _LOW


def hold(operation: "StepOperation[Any]", way: Way) -> bool:
    """Keep a step from beginning before its gate is open; False: it may begin."""
    if way.gate is Gate.RUN:
        return False
    work = _record if way.gate is Gate.RECORD else _ask
    operation.run.work(operation, lambda: work(operation, way))
    return True


async def _record(operation: "StepOperation[Any]", way: Way) -> None:
    opening = way.opened_by
    if opening is not None and not await _still_opens(operation.run, opening):
        await _ask(operation, way)
        return
    data = {"step": operation.entry.id, "risk": str(way.judgement.level)}
    opened_by = None if opening is None else opening.approval
    told = {"reasons": list(way.judgement.reasons), "opened_by": opened_by}
    event = Event(type="step.gated", data={**data, **told}, actor=operation.run.node.owner)
    await operation.run.write(operation.entry, events=(event,))
    _open(operation)


async def _still_opens(run: "Run", opening: Opening) -> bool:
    """Tell whether the yes that the code has obtained can be used as of now."""
    found = await last_asked(run, opening.approval)
    asked = Question(step=opening.approval, title="", input=opening.packed).action(run)
    return found is not None and usable_now(run, found, asked)


def _open(operation: "StepOperation[Any]") -> None:
    operation.cleared = operation.again = True


async def _ask(operation: "StepOperation[Any]", way: Way) -> None:
    """Look for the answer about exactly this call; ask if there is none that can be used."""
    run, entry, step = operation.run, operation.entry, operation.step
    question = Question(
        step=entry.id,
        title=f"{entry.name} of job {run.job.name}",
        input=entry.input or b"null",
        judgement=way.judgement,
        version=step.version,
        judge=partial(run.node.gatekeeper.judge, step, entry.name),
    )
    found = await last_asked(run, entry.id)
    if found is not None and is_about(found, question, run):
        if found.state is ApprovalState.PENDING:
            await wait_for(operation, found, entry, is_new=False)
            return
        if await _is_settled(operation, found, question):
            return
        if found.state is ApprovalState.APPROVED:
            question = question.edited_as(found)
    await wait_for(operation, new_approval(run, question, found), entry, is_new=True)


async def _is_settled(operation: "StepOperation[Any]", found: Approval, question: Question) -> bool:
    run = operation.run
    if found.state is not ApprovalState.APPROVED and await is_looked_at(run, found):
        return False  # others are to be asked again after all
    if found.state is ApprovalState.REJECTED:
        said = found.decisions[-1]
        await operation.refuse(ApprovalRejected(found.title, said.person, said.reason))
        return True
    if found.state is ApprovalState.EXPIRED:
        park_expired(run, found)
        return True
    if not usable_now(run, found, question.action(run), question):
        return False
    if found.action.input != operation.entry.input:
        operation.take_arguments(found.action.input)
    _open(operation)
    return True
