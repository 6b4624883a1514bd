"""The benchmark of checkpointers, at a size at which it says nothing but that it runs."""

import pytest

pytestmark = pytest.mark.once

langgraph = pytest.importorskip("langgraph.checkpoint.conformance") and pytest.importorskip(
    "bench.langgraph"
)


def test_both_databases_get_their_figures() -> None:
    outcome = langgraph.measure(langgraph.Size(steps=3, messages=3, rounds=1))
    assert list(outcome.figures) == ["sqlite", "postgres"]
    for found in outcome.figures.values():
        assert (found["passed"], found["total"]) == (81, 81)
        names = [f"{name}{figure}" for name in langgraph.SAVERS for figure in langgraph.FIGURES]
        assert set(names) <= set(found)
        assert found["steps_per_second"] > 0
