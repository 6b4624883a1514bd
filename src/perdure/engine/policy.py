"""What an app says about risk, people and money; all its jobs are run by it."""

from collections.abc import Mapping

from msgspec import Struct

from perdure.jobs.approval import ApprovalTerms
from perdure.jobs.gate import GatePolicy
from perdure.jobs.redaction import Redaction
from perdure.jobs.risk import Classifier, RiskLevel
from perdure.notify.people import ApprovalChannel, People


class Rules(Struct, frozen=True, kw_only=True):
    """The rules of an app.

    Attributes:
        risk: How dangerous a step is.
        gates: Which risk waits for a person.
        terms: Who must say yes, and in which time, by risk; without a risk, the usual ones apply.
        people: Who is who.
        channels: By which people are asked and told.
        redaction: What of the details of effects is kept.
    """

    risk: Classifier = Classifier()
    gates: GatePolicy = GatePolicy()
    terms: Mapping[RiskLevel, ApprovalTerms] = {}
    people: People = People()
    channels: tuple[ApprovalChannel, ...] = ()
    redaction: Redaction = Redaction()

    def terms_for(self, level: RiskLevel) -> ApprovalTerms:
        """Give the terms for a risk."""
        return self.terms.get(level, _USUAL)


_USUAL = ApprovalTerms()
