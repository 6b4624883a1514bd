"""The policy of an app about risk, people and money; it applies to all of its jobs."""

from collections.abc import Mapping
from typing import Any

from perdure.base.checked import Checked
from perdure.jobs.approval import ApprovalTerms
from perdure.jobs.definition import Step
from perdure.jobs.gate import GateDecision, GatePasses, GatePolicy, gate_for, judge_call, use_pass
from perdure.jobs.redaction import Redaction
from perdure.jobs.risk import RULES, Classifier, Judgement, RiskLevel
from perdure.notify.people import ApprovalChannel, People

_LOW = RiskLevel.LOW  # looked up once: this is checked for every step


class Policy(Checked, frozen=True, kw_only=True):
    """The policy of an app.

    Attributes:
        risk: How dangerous a step is.
        gates: Which risk waits for a person.
        terms: Who must approve, and within which time, by risk; the defaults apply to a risk
            without terms.
        people: Who is who.
        channels: How people are asked and notified.
        alerts: Channels that only get alerts, and hear when those are acknowledged and resolved:
            PagerDuty, a webhook of your monitoring.
        redaction: What is removed from the details of effects.
    """

    risk: Classifier = Classifier()
    gates: GatePolicy = GatePolicy()
    terms: Mapping[RiskLevel, ApprovalTerms] = {}
    people: People = People()
    channels: tuple[ApprovalChannel, ...] = ()
    alerts: tuple[ApprovalChannel, ...] = ()
    redaction: Redaction = Redaction()

    @property
    def all_channels(self) -> tuple[ApprovalChannel, ...]:
        """The channels for people, and those for alerts."""
        return (*self.channels, *self.alerts)

    def terms_for(self, level: RiskLevel) -> ApprovalTerms:
        """Return the terms for a risk."""
        return self.terms.get(level, _DEFAULT_TERMS)


_DEFAULT_TERMS = ApprovalTerms()


class Gatekeeper:
    """Decides, by a policy, what happens before a step begins."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Custom rules see every step, and so does a gate policy other than the default.
        self._all = policy.risk.rules != RULES or policy.gates != GatePolicy()

    def watches(self, step: Step[..., Any]) -> bool:
        """Whether the calls of a step must be judged.

        Those of most steps need not be: the default rules can only judge them as LOW.
        """
        estimated = step.cost is not None or step.estimated_duration is not None
        asks = step.approval == "required"
        return self._all or bool(step.tags) or asks or estimated or step.risk is not _LOW

    def decide(
        self,
        step: Step[..., Any],
        name: str,
        packed: bytes,
        tenant: str,
        passes: GatePasses,
    ) -> tuple[GateDecision, GatePasses]:
        """Decide what happens before a call of a step.

        Returns:
            The decision, and the remaining passes.
        """
        judgement = self.judge(step, name, packed)
        decision = gate_for(step, name, tenant, judgement, self._policy.gates)
        return use_pass(decision, name, passes)

    def judge(self, step: Step[..., Any], name: str, packed: bytes) -> Judgement:
        """Judge how dangerous a call of a step is."""
        return judge_call(step, name, packed, self._policy.risk)
