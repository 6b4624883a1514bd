"""Real processes, real kills: short versions of the long programmes."""

import asyncio
from pathlib import Path

import pytest

from tests.programmes.fleet import share
from tests.programmes.kill import campaign

# Real processes take their time to start, the more so where others run.
pytestmark = [pytest.mark.timeout(300), pytest.mark.once]


def test_a_worker_killed_at_any_moment_loses_nothing_and_repeats_no_finished_step(
    url: str, tmp_path: Path
) -> None:
    tally = asyncio.run(campaign(url, kills=20, seed=7, folder=tmp_path))
    assert tally.kills >= 20
    assert tally.wrong == []
    assert tally.finished_again == []
    # Only what was in flight when the worker died may have run twice.
    assert tally.repeated_steps <= 3 * tally.kills


def test_three_workers_share_jobs_and_a_zombie_changes_nothing(url: str, tmp_path: Path) -> None:
    if url.startswith("sqlite"):
        url += "?kill_stopped_writer=1"  # the stopped worker may hold the lock, and never continues
    tally = asyncio.run(share(url, 100, tmp_path, freeze=True))
    assert tally.wrong == []
    assert tally.frozen_with > 0, "the worker held nothing when it was stopped: nothing was shown"
    assert len(tally.lines_by_worker) == 3
