"""The benchmark of a fleet: a small one gives every figure."""

import pytest

from bench import fleet
from bench.__main__ import BENCHES
from bench.durable import postgres
from bench.fleet import Size

pytestmark = pytest.mark.once


@pytest.mark.skipif(not postgres.is_installed(), reason="there is no PostgreSQL to run")
def test_a_small_fleet_gives_every_figure() -> None:
    assert BENCHES["fleet"] is fleet.run

    outcome = fleet.measure(Size(idle_seconds=0.2, jobs=40, limit=60.0), processes=1, settle=0.0)

    assert list(outcome.figures) == [
        "idle_transactions_per_worker_s",
        "jobs_per_s",
        "wal_kb_job",
        "disk_kb_job",
        "growth",
    ]
    assert all(isinstance(figure, float) and figure >= 0 for figure in outcome.figures.values())
    assert "10 idle workers, 40 jobs" in outcome.text
