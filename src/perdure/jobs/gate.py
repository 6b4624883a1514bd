"""Whether a step may begin, must be recorded, or waits for a person; pure.

Two rules ask for a gate, and the stricter one counts: the risk of the action, and that a step is
irreversible. The code of a job cannot be read ahead, so nothing is refused when it is
submitted; instead no irreversible step ever begins without a yes:

* `await ctx.approve(…)` opens the next step that needs a gate, once;
* `await ctx.approve(…, opens=[send_mail])` opens every later call of the steps that it names;
* for every other such step the engine itself asks, about exactly that call.

An approval opens no step of a higher risk than it was asked for.
"""

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from perdure.jobs.definition import Step
from perdure.jobs.risk import (
    Classifier,
    Gate,
    GatePolicy,
    Judgement,
    RiskFacts,
    RiskLevel,
    recipients_in,
)


class GatePass(Struct, frozen=True):
    """An approval that the code of the job has obtained, and what it lets begin."""

    approval: str  # its identity in the journal: "approve#1"
    packed: bytes  # what was asked
    level: RiskLevel
    steps: frozenset[str] | None = None  # full names; None: whichever comes next, once


Openings: TypeAlias = tuple[GatePass, ...]


class GateDecision(Struct, frozen=True):
    """What happens before a step: its gate, why, and by what it is open."""

    gate: Gate
    judgement: Judgement
    opened_by: GatePass | None = None


def judge_call(step: Step[..., Any], name: str, packed: bytes, rules: Classifier) -> Judgement:
    """Judge how dangerous a call of a step is, with these arguments."""
    arguments = msgspec.json.decode(packed)
    facts = RiskFacts(
        step=name,
        tags=step.tags,
        cost=step.cost,
        estimated_duration=step.estimated_duration,
        recipients=recipients_in(arguments),
        floor=step.risk,
        arguments=arguments,
    )
    return rules.judge(facts)


def judge_raise(packed: bytes, rules: Classifier) -> Judgement:
    """Judge how dangerous it is to raise a budget to these limits; at least HIGH."""
    limits = msgspec.json.decode(packed, type=dict[str, Any])
    judged = rules.judge(RiskFacts(step="budget", cost=limits.get("usd"), arguments=limits))
    return Judgement(max(judged.level, RiskLevel.HIGH), judged.reasons)


def way_for(
    step: Step[..., Any], name: str, tenant: str, judgement: Judgement, policy: GatePolicy
) -> GateDecision:
    """Decide what happens before a call of a step, if nothing has opened it."""
    gate = policy.gate(judgement.level, tenant)
    if step.irreversible and not step.ungated:
        reasons = (*judgement.reasons, f"what {name} does cannot be undone")
        return GateDecision(Gate.WAIT, Judgement(judgement.level, reasons))
    return GateDecision(gate, judgement)


def through(way: GateDecision, name: str, openings: Openings) -> tuple[GateDecision, Openings]:
    """Use an opening for a step that would have to wait; give what is left of the openings."""
    if way.gate is not Gate.WAIT:
        return way, openings
    for opening in openings:
        if opening.level < way.judgement.level:
            continue
        if opening.steps is None:
            rest = tuple(each for each in openings if each is not opening)
            return GateDecision(Gate.RECORD, way.judgement, opening), rest
        if name in opening.steps:
            return GateDecision(Gate.RECORD, way.judgement, opening), openings
    return way, openings
