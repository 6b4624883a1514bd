"""A store that can be read but not written: workers ask ever more seldom, and say so once."""

import logging
from collections import Counter
from pathlib import Path

import pytest

import perdure
from perdure.app import App
from perdure.base.errors import StoreError, StoreReadOnly
from perdure.engine.run.context import JobContext
from perdure.engine.worker.periodic import Outage
from tests.store.test_sqlite_moved import delete
from tests.support.engine import durable
from tests.support.unwritable import WritableAgain

FAILURES = 20


@pytest.mark.timeout(180)
def test_a_store_that_cannot_be_written_is_told_of_once_and_used_again_when_it_can(
    store: WritableAgain, failures: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    @durable
    async def case(app: App) -> None:
        @app.job
        async def job(ctx: JobContext) -> int:
            return 1

        async with app.running():
            assert await (await app.submit(job())).result() == 1
            handle = await app.submit(job(), delay="300ms")  # falls due while nobody can claim it
            with store.unwritable():
                while len(failures) < FAILURES:
                    await perdure.process.sleep("10ms")
            assert await handle.result("60s") == 1

    with caplog.at_level(logging.WARNING, "perdure.worker"):
        case(store.url)

    told = Counter(
        line.getMessage().partition(":")[0]
        for line in caplog.records
        if line.name == "perdure.worker"
    )
    assert told["looking for work"] >= 1
    assert max(told.values()) <= 2, f"that it begins, and that it is over: {told}"


def test_a_worker_whose_file_went_away_says_so_and_ends_when_it_is_told_to(
    tmp_path: Path, failures: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.db"

    @durable
    async def case(app: App) -> None:
        @app.job
        async def job(ctx: JobContext) -> int:
            return 1

        async with app.running():
            assert await (await app.submit(job())).result() == 1
            delete(path)
            with pytest.raises(StoreError, match="was deleted or moved while it was open"):
                await app.submit(job())
            while len(failures) < FAILURES:
                await perdure.process.sleep("10ms")

    with caplog.at_level(logging.WARNING, "perdure.worker"):
        case(f"sqlite:///{path}")
    assert "looking for work" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_part_asks_ever_more_seldom_and_says_so_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, delays = 0.0, list[float]()
    outage = Outage("looking for work", lambda: now)
    assert outage.delay == 0
    with caplog.at_level(logging.WARNING, "perdure.worker"):
        while now < 600:
            outage.failed(StoreReadOnly("no"))
            delays.append(outage.delay)
            now += outage.delay
            if len(delays) > 100:  # a store that comes and goes makes no more noise
                outage.over()
    assert delays[0] < 0.5
    assert max(delays) > 2
    assert 0 < len(caplog.records) <= 2 * (600 / 60 + 1)
    outage.over()
    assert outage.delay == 0


def test_the_end_of_a_failure_that_nobody_was_told_of_is_not_told_either(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = Outage("looking for work", lambda: 0.0)
    outage.over()
    outage.failed(StoreError("no"))
    outage.over()
    outage.failed(StoreError("no"))
    outage.over()
    assert [line.getMessage().partition(": ")[2] for line in caplog.records] == [
        "no; retrying with growing pauses",
        "the store works again",
    ]
