"""People and approvals: who may decide about what, and what needs a decision."""

from perdure.engine.people.ask import Approved
from perdure.engine.policy import Policy
from perdure.jobs.approval import Approval, ApprovalState, ApprovalTerms, Person
from perdure.jobs.gate import Gate, GatePolicy
from perdure.jobs.risk import Classifier, RiskFacts, RiskLevel
from perdure.notify.people import Contact, People

__all__ = [
    "Approval",
    "ApprovalState",
    "ApprovalTerms",
    "Approved",
    "Classifier",
    "Contact",
    "Gate",
    "GatePolicy",
    "People",
    "Person",
    "Policy",
    "RiskFacts",
    "RiskLevel",
]
