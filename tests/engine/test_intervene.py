"""People and time intervene: a short version of the long programme."""

import asyncio

import pytest

from tests.programmes.intervene import Options, Tally, run, slow_store

# Real processes take their time to start, the more so where others run.
pytestmark = [pytest.mark.timeout(300), pytest.mark.once]

SHORT = Options(jobs=60, seconds=12.0, patience=30.0)  # seconds at most, and seldom so many


def test_whatever_people_and_time_do_to_jobs_the_ledger_tells_what_happened(url: str) -> None:
    async def campaign() -> Tally:
        async with slow_store(url, seed=5) as slow:
            return await run(url, slow, Tally(url.partition(":")[0], seed=5), SHORT)

    tally = asyncio.run(campaign())
    assert tally.wrong == [], str(tally)
    assert tally.jobs >= 10, f"too few jobs to show anything: {tally}"
