"""The benchmark of a long agent: a small run on both stores, killed and resumed."""

from pathlib import Path

import pytest

from bench import agent, agent_adapter
from bench.__main__ import BENCHES
from bench.contenders import Contender
from bench.durable.contenders import OURS
from bench.durable.contenders.agent import TURN, said

pytestmark = pytest.mark.once


def test_it_is_one_of_the_benchmarks_and_measures_the_peers_too() -> None:
    assert BENCHES["agent"] is agent.run
    assert [each.name for each in agent.KNOWN] == ["perdure", "dbos", "langgraph"]


def test_a_turn_adds_four_kilobytes_that_are_the_same_at_every_replay() -> None:
    assert len(said(7)) == TURN
    assert said(7) == said(7) != said(8)


@pytest.mark.timeout(300)
def test_a_small_agent_is_killed_and_resumed_on_both_stores() -> None:
    outcome = agent.measure(12, [OURS], ["dbos"])

    assert "Not installed: dbos" in outcome.text
    assert outcome.figures.keys() == {"sqlite", "postgres"}
    for figures in outcome.figures.values():
        assert isinstance(figures, dict)
        assert figures.keys() == {*agent.GOALS, "restart_s", "turns"}
        assert figures["turns"] == 12
        assert all(value > 0 for value in figures.values())


def test_a_contender_that_fails_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "STORES", ("sqlite",))
    outcome = agent.measure(1, [Contender("nobody")])

    assert outcome.figures == {"sqlite": {}}
    assert "nobody: ModuleNotFoundError" in outcome.text


def test_a_call_with_an_adapter_is_measured_inside_and_outside_of_a_job(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai")
    outcome = agent_adapter.measure(3, 1, [OURS, Contender("langgraph")], tmp_path)

    assert outcome.figures.keys() == {"call_ms", "budget_call_ms"}
    assert "call_ms" in outcome.text
