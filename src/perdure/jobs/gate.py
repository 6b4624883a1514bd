"""Decide whether a step may begin, is recorded first, or waits for a person; pure.

Two rules ask for a gate, and the stricter one wins: the risk of this call under the policy, and the
step's own option `approval`:

* "by_risk", the default, leaves it to the policy;
* "required", the default of an irreversible step, waits whatever the policy says;
* "never" does not wait: where the policy would ask a person, the call is recorded instead.

The code of a job cannot be read ahead, so nothing is refused at submission. Instead, no step that
needs an approval begins without one:

* `await ctx.approve(…)` lets the next such step begin, once;
* `await ctx.approve(…, opens=[send_mail])` lets every later call of the named steps begin;
* for every other such step the engine itself asks, about exactly that call.

An approval never lets a step begin whose risk is higher than the one people were asked about.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from msgspec import Struct

from perdure.base.checked import Checked
from perdure.base.codec import read_plain
from perdure.jobs.definition import Step, spoken_name
from perdure.jobs.risk import Classifier, Judgement, RiskFacts, RiskLevel, recipients_in

IRREVERSIBLE: Final = "cannot be undone"


def is_final(reasons: Sequence[str]) -> bool:
    """Whether people are asked because what is done cannot be undone."""
    return any(each.endswith(IRREVERSIBLE) for each in reasons)


class Gate(StrEnum):
    """What happens before an action."""

    RUN = "run"  # nothing
    RECORD = "record"  # it is written to the log of the job
    WAIT = "wait"  # a person is asked


GATES: Final[Mapping[RiskLevel, Gate]] = MappingProxyType(
    {
        RiskLevel.LOW: Gate.RUN,
        RiskLevel.MEDIUM: Gate.RECORD,
        RiskLevel.HIGH: Gate.WAIT,
        RiskLevel.CRITICAL: Gate.WAIT,
    }
)


class GatePolicy(Checked, frozen=True, kw_only=True):
    """Which risk waits for a person, for the app and for single tenants."""

    gates: Mapping[RiskLevel, Gate] = GATES
    tenants: Mapping[str, Mapping[RiskLevel, Gate]] = {}

    def gate(self, level: RiskLevel, tenant: str) -> Gate:
        """Return the gate of a risk level; a level that the policy does not name waits."""
        own = self.tenants.get(tenant, {})
        return own.get(level) or self.gates.get(level, Gate.WAIT)


class GatePass(Struct, frozen=True):
    """An approval that the code of the job obtained, and which steps it lets begin."""

    approval: str  # its identity in the journal: "approve#1"
    packed: bytes  # what was asked
    level: RiskLevel
    steps: frozenset[str] | None = None  # full names; None: whichever comes next, once


GatePasses: TypeAlias = tuple[GatePass, ...]


class GateDecision(Struct, frozen=True):
    """What happens before a step, why, and which approval let it begin, if one did."""

    gate: Gate
    judgement: Judgement
    opened_by: GatePass | None = None


def judge_call(step: Step[..., Any], name: str, packed: bytes, rules: Classifier) -> Judgement:
    """Judge the risk of calling a step with these arguments."""
    arguments = read_plain(packed)
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
    """Judge the risk of raising a budget to these limits; at least HIGH."""
    limits = cast("dict[str, Any]", read_plain(packed))
    judged = rules.judge(RiskFacts(step="budget", cost=limits.get("usd"), arguments=limits))
    return Judgement(max(judged.level, RiskLevel.HIGH), judged.reasons)


def gate_for(
    step: Step[..., Any], name: str, tenant: str, judgement: Judgement, policy: GatePolicy
) -> GateDecision:
    """Decide what happens before a call of a step, if no approval lets it begin."""
    gate = policy.gate(judgement.level, tenant)
    match step.approval:
        case "required":
            why = IRREVERSIBLE if step.irreversible else "always needs an approval"
            called = spoken_name(name)
            subject = f"what {called} does" if step.irreversible else called
            reasons = (*judgement.reasons, f"{subject} {why}")
            return GateDecision(Gate.WAIT, Judgement(judgement.level, reasons))
        case "never" if gate is Gate.WAIT:
            return GateDecision(Gate.RECORD, judgement)
        case _:
            return GateDecision(gate, judgement)


def use_pass(
    decision: GateDecision, name: str, passes: GatePasses
) -> tuple[GateDecision, GatePasses]:
    """Use a pass for a step that would have to wait; return what is left of the passes."""
    if decision.gate is not Gate.WAIT:
        return decision, passes
    for each in passes:
        if each.level < decision.judgement.level:
            continue
        if each.steps is None:
            rest = tuple(other for other in passes if other is not each)
            return GateDecision(Gate.RECORD, decision.judgement, each), rest
        if name in each.steps:
            return GateDecision(Gate.RECORD, decision.judgement, each), passes
    return decision, passes
