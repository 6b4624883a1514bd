"""Gates before steps: by risk, and before what cannot be undone."""

from typing import TYPE_CHECKING, Any

import msgspec

from perdure.base.errors import ApprovalRejected
from perdure.engine.asking import (
    Question,
    is_about,
    is_looked_at,
    last_asked,
    new_approval,
    park_expired,
    wait_for,
)
from perdure.engine.rules import Rules
from perdure.jobs.approval import Approval, ApprovalState, unusable
from perdure.jobs.definition import Step
from perdure.jobs.gate import Way, through, way_for
from perdure.jobs.model import Event
from perdure.jobs.risk import RULES, Facts, Gate, GatePolicy, RiskLevel, recipients_in

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
        arguments = msgspec.json.decode(packed)
        facts = Facts(
            step=name,
            tags=step.tags,
            cost=step.cost,
            takes=step.takes,
            recipients=recipients_in(arguments),
            floor=step.risk,
            arguments=arguments,
        )
        judgement = self._rules.risk.judge(facts)
        way = way_for(step, name, run.job.tenant, judgement, self._rules.gates)
        way, run.openings = through(way, name, run.openings)
        return way


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
    data = {"step": operation.entry.id, "risk": str(way.judgement.level)}
    told = {"reasons": list(way.judgement.reasons), "opened_by": way.opened_by}
    event = Event(type="step.gated", data={**data, **told}, actor=operation.run.node.owner)
    await operation.run.write(operation.entry, events=(event,))
    _open(operation)


def _open(operation: "StepOperation[Any]") -> None:
    operation.cleared = operation.again = True


async def _ask(operation: "StepOperation[Any]", way: Way) -> None:
    """Look for the answer about exactly this call; ask if there is none that can be used."""
    run, entry = operation.run, operation.entry
    question = Question(
        step=entry.id,
        title=f"{entry.name} of job {run.job.name}",
        input=entry.input or b"null",
        judgement=way.judgement,
        version=operation.step.version,
    )
    found = await last_asked(run, entry.id)
    if found is not None and is_about(found, question, run):
        if found.state is ApprovalState.PENDING:
            await wait_for(operation, found, entry, is_new=False)
            return
        if await _is_settled(operation, found):
            return
    await wait_for(operation, new_approval(run, question), entry, is_new=True)


async def _is_settled(operation: "StepOperation[Any]", found: Approval) -> bool:
    run = operation.run
    if found.state is ApprovalState.REJECTED:
        said = found.decisions[-1]
        await operation.refuse(ApprovalRejected(found.title, said.person, said.reason))
        return True
    if found.state is ApprovalState.EXPIRED:
        if await is_looked_at(run, found.decided_at or 0.0):
            return False
        park_expired(run, found)
        return True
    if unusable(found, found.action, run.now(), _revoked(run, found)) is not None:
        return False
    if found.action.input != operation.entry.input:
        operation.take_arguments(found.action.input)
    _open(operation)
    return True


def _revoked(run: "Run", found: Approval) -> list[str]:
    """List those who have decided, and may not any more."""
    people = run.node.rules.people
    if not people.contacts:
        return []  # nobody is listed here: who decided was known elsewhere
    said = [decision.person for decision in found.decisions]
    return [person for person in said if people.by_id(found.tenant, person) is None]
