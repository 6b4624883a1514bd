from typing import Any

import pytest

from perdure.jobs.definition import Step, step_of
from perdure.jobs.gate import Gate, GateDecision, GatePass, GatePolicy, gate_for, use_pass
from perdure.jobs.risk import Judgement, RiskLevel


async def work(ctx: Any) -> None: ...


PLAIN = step_of(work)
IRREVERSIBLE = step_of(work, irreversible=True)
BY_RISK = step_of(work, irreversible=True, approval="by_risk")
NEVER = step_of(work, irreversible=True, approval="never")
REQUIRED = step_of(work, approval="required")
OPEN_TO_ALL = GatePolicy(gates=dict.fromkeys(RiskLevel, Gate.RUN))


def way(
    step: Step[..., Any], level: RiskLevel = RiskLevel.LOW, policy: GatePolicy | None = None
) -> GateDecision:
    return gate_for(step, "work", "acme", Judgement(level), policy or GatePolicy())


@pytest.mark.parametrize("level", RiskLevel)
def test_an_irreversible_step_waits_whatever_its_risk_and_the_policy(level: RiskLevel) -> None:
    found = way(IRREVERSIBLE, level, OPEN_TO_ALL)
    assert found.gate is Gate.WAIT
    assert "cannot be undone" in found.judgement.reasons[-1]


def test_an_irreversible_step_can_be_judged_by_its_risk_alone() -> None:
    assert way(BY_RISK).gate is Gate.RUN
    assert way(BY_RISK, RiskLevel.HIGH).gate is Gate.WAIT


@pytest.mark.parametrize("level", RiskLevel)
def test_a_step_that_requires_approval_waits_whatever_its_risk(level: RiskLevel) -> None:
    found = way(REQUIRED, level, OPEN_TO_ALL)
    assert found.gate is Gate.WAIT
    assert found.judgement.reasons[-1] == "work always needs an approval"


def test_a_step_that_never_asks_is_recorded_where_the_policy_would_wait() -> None:
    gates = [way(NEVER, each).gate for each in RiskLevel]
    assert gates == [Gate.RUN, Gate.RECORD, Gate.RECORD, Gate.RECORD]


def test_only_an_irreversible_step_requires_approval_by_default() -> None:
    assert (PLAIN.approval, IRREVERSIBLE.approval) == ("by_risk", "required")


def test_a_plain_step_follows_the_policy() -> None:
    assert [way(PLAIN, each).gate for each in RiskLevel] == [
        Gate.RUN,
        Gate.RECORD,
        Gate.WAIT,
        Gate.WAIT,
    ]


def test_an_approval_opens_the_next_step_once() -> None:
    openings = (GatePass("approve#1", b"null", RiskLevel.HIGH),)
    first, rest = use_pass(way(IRREVERSIBLE), "work", openings)
    assert (first.gate, first.opened_by, rest) == (Gate.RECORD, openings[0], ())
    second, _ = use_pass(way(IRREVERSIBLE), "work", rest)
    assert second.gate is Gate.WAIT


def test_a_step_that_needs_no_gate_uses_up_no_approval() -> None:
    openings = (GatePass("approve#1", b"null", RiskLevel.HIGH),)
    assert use_pass(way(PLAIN), "work", openings) == (way(PLAIN), openings)


def test_an_approval_that_names_steps_opens_all_their_calls_and_no_other() -> None:
    openings = (GatePass("approve#1", b"null", RiskLevel.HIGH, frozenset({"work"})),)
    for _ in range(3):
        found, openings = use_pass(way(IRREVERSIBLE), "work", openings)
        assert found.gate is Gate.RECORD
    assert use_pass(way(IRREVERSIBLE), "other", openings)[0].gate is Gate.WAIT


def test_an_approval_opens_nothing_that_is_more_dangerous_than_what_was_asked() -> None:
    openings = (GatePass("approve#1", b"null", RiskLevel.HIGH),)
    found, rest = use_pass(way(PLAIN, RiskLevel.CRITICAL), "work", openings)
    assert found.gate is Gate.WAIT
    assert rest == openings
