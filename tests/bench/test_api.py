"""The benchmark of the HTTP API, at a size at which it says nothing but that it runs."""

import pytest

from bench import api

pytestmark = pytest.mark.once


def test_both_databases_get_their_figures() -> None:
    outcome = api.measure(api.Size(jobs=60, reads=2, submits=8))
    assert list(outcome.figures) == ["sqlite", "postgres"]
    for found in outcome.figures.values():
        assert isinstance(found, dict)
        assert set(api.FIGURES) <= set(found)
        assert all(value > 0 for value in found.values())
    assert "Temporal" in outcome.text
