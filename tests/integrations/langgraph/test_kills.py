"""An agent and a graph are killed at every durable point: only calls in flight are repeated."""

from pathlib import Path

import pytest

pytest.importorskip("langchain.agents")

from tests.support.agent_kills import check, everywhere

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]


def test_only_calls_in_flight_are_repeated_and_effects_never(url: str, tmp_path: Path) -> None:
    plain, killed = everywhere("tests.integrations.langgraph.killed_agent", url, tmp_path)
    said, found = plain.result
    assert said[-2:] == ["tool: paid 5", "ai: all is done "]
    assert found == ["first", "second", "first", "second", "inner"]
    check(plain, killed, at_once=2, once=("mail",))
