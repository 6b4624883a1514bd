from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base.errors import DefinitionError
from perdure.jobs.gate import Gate, GatePolicy
from perdure.jobs.risk import (
    TAGS,
    Classifier,
    RiskFacts,
    RiskLevel,
    recipients_in,
)

LOW, MEDIUM, HIGH, CRITICAL = RiskLevel


def level(**facts: Any) -> RiskLevel:
    tags = frozenset(facts.pop("tags", ()))
    return Classifier().judge(RiskFacts(step="s", tags=tags, **facts)).level


def test_a_step_of_which_nothing_is_said_is_low() -> None:
    assert level() is LOW


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"tags": ["financial"]}, HIGH),
        ({"tags": ["data_destructive"]}, CRITICAL),
        ({"tags": ["external_email"], "recipients": 100}, LOW),
        ({"tags": ["external_email"], "recipients": 101}, HIGH),
        ({"recipients": 1000}, LOW),  # nobody outside gets it
        ({"cost": 50}, LOW),
        ({"cost": 50.01}, HIGH),
        ({"estimated_duration": 120 * 60}, LOW),
        ({"estimated_duration": 120 * 60 + 1}, MEDIUM),
        ({"floor": MEDIUM}, MEDIUM),
    ],
)
def test_each_rule_has_its_threshold(facts: dict[str, Any], expected: RiskLevel) -> None:
    assert level(**facts) is expected


def test_a_floor_is_given_as_a_reason() -> None:
    judged = Classifier().judge(RiskFacts(step="s", floor=HIGH))
    assert judged.reasons == ("the code marks it as HIGH risk",)
    assert Classifier().judge(RiskFacts(step="s")).reasons == ()


def test_the_highest_judgement_counts_not_the_first() -> None:
    assert level(tags=["financial", "data_destructive"]) is CRITICAL
    assert level(tags=["data_destructive"], estimated_duration=9000.0, cost=60.0) is CRITICAL


def test_what_cannot_be_judged_is_high() -> None:
    assert level(tags=["external_email"], recipients=None) is HIGH
    assert level(tags=["never heard of"]) is HIGH


def test_a_rule_that_fails_or_answers_nonsense_makes_it_high() -> None:
    def broken(facts: RiskFacts) -> tuple[RiskLevel, str]:
        raise KeyError(facts.step)

    def silly(facts: RiskFacts) -> Any:
        return "very"

    for rule in (broken, silly):
        judged = Classifier().extended(rule).judge(RiskFacts(step="s"))
        assert judged.level is HIGH
        assert rule.__name__ in judged.reasons[0]


def test_a_rule_of_the_user_can_raise_and_never_lower() -> None:
    def mild(facts: RiskFacts) -> tuple[RiskLevel, str]:
        return LOW, "harmless"

    assert Classifier().extended(mild).judge(RiskFacts(step="s", cost=60.0)).level is HIGH
    strict = Classifier().extended(lambda _: (CRITICAL, "today nothing"))
    assert strict.judge(RiskFacts(step="s")).level is CRITICAL


def test_a_tag_of_the_user_has_the_level_they_say_and_known_tags_cannot_be_lowered() -> None:
    mine = Classifier().extended(reports="low", payroll="critical")
    assert mine.judge(RiskFacts(step="s", tags=frozenset({"reports"}))).level is LOW
    assert mine.judge(RiskFacts(step="s", tags=frozenset({"payroll"}))).level is CRITICAL
    with pytest.raises(DefinitionError, match="'financial' is HIGH"):
        Classifier().extended(financial="low")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, -0.5, True, "7"])
@pytest.mark.parametrize("name", ["cost", "estimated_duration", "recipients"])
def test_an_estimate_that_is_no_amount_is_refused(name: str, bad: Any) -> None:
    with pytest.raises(DefinitionError, match=name):
        RiskFacts(step="s", **{name: bad})


levels = st.sampled_from(RiskLevel)
tags = st.frozensets(st.sampled_from([*TAGS, "unheard of"]))
amounts = st.none() | st.floats(0, 1e6)


@given(floor=levels, tags=tags, cost=amounts, estimated_duration=amounts)
def test_nothing_lowers_the_floor_that_the_code_sets(
    floor: RiskLevel, tags: frozenset[str], cost: float | None, estimated_duration: float | None
) -> None:
    code = RiskFacts(
        step="s",
        tags=tags,
        cost=cost,
        estimated_duration=estimated_duration,
        floor=floor,
        recipients=1,
    )
    assert Classifier().judge(code).level >= floor


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"mail": {"to": "a@x.org", "cc": ["b@x.org", "c@x.org"]}}, 3),
        ({"to": "a@x.org; b@x.org, c@x.org"}, 3),
        ({"recipients": [{"email": "a@x.org"}, {"email": "b@x.org"}]}, 2),
        ({"mails": [{"to": "a@x.org"}, {"to": ["b@x.org"]}]}, 2),
        ({"to": []}, 0),
        ({"file": "a.txt"}, None),
        ([], None),
    ],
)
def test_recipients_are_counted_wherever_they_stand(arguments: Any, expected: int | None) -> None:
    assert recipients_in(arguments) == expected


def test_high_and_critical_wait_medium_is_recorded_and_low_runs() -> None:
    policy = GatePolicy()
    gates = [policy.gate(each, "acme") for each in RiskLevel]
    assert gates == [Gate.RUN, Gate.RECORD, Gate.WAIT, Gate.WAIT]


def test_a_tenant_has_gates_of_its_own_and_what_nobody_names_waits() -> None:
    policy = GatePolicy(gates={LOW: Gate.RUN}, tenants={"acme": {LOW: Gate.WAIT, HIGH: Gate.RUN}})
    assert policy.gate(LOW, "acme") is Gate.WAIT
    assert policy.gate(HIGH, "acme") is Gate.RUN
    assert policy.gate(LOW, "other") is Gate.RUN
    assert policy.gate(MEDIUM, "other") is Gate.WAIT


def test_a_level_is_read_as_people_write_it() -> None:
    assert RiskLevel.of("high") is RiskLevel.of("HIGH") is RiskLevel.of(HIGH) is HIGH
    with pytest.raises(DefinitionError, match="low, medium, high, critical"):
        RiskLevel.of("huge")
