"""Results that nobody asked for: counted while the owner lives, reported when it ends."""

import pytest

from perdure import process, telemetry
from perdure.errors import Shutdown, TaskTimeout
from perdure.otp.task import Task
from perdure.process import sleep
from perdure.testing import simulated
from tests.support.processes import forever, others_rest
from tests.support.tasks import end_of, give, slowly


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "perdure.task"]


@simulated
async def test_ended_tasks_that_nobody_asked_for_are_counted() -> None:
    tasks = [Task.create(give, n) for n in range(3)]
    tasks.append(Task.create(slowly, 9, 5.0))
    await others_rest()
    assert process.info(process.self_pid()).pending_tasks == 3
    for task in tasks:
        await task
    assert process.info(process.self_pid()).pending_tasks == 0


async def forgets(count: int) -> None:
    for n in range(count):
        Task.create(give, n)
    await others_rest()


@simulated
async def test_an_owner_that_ends_is_told_which_tasks_it_forgot_and_where_it_made_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await end_of(forgets, 2)
    (text,) = reports(caplog)
    assert "2 of its tasks" in text
    assert "forgets" in text
    assert "give" in text
    assert "test_unawaited_tasks.py:" in text


@simulated
async def test_a_long_list_of_forgotten_tasks_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    await end_of(forgets, 500)
    (text,) = reports(caplog)
    assert "500 of its tasks" in text
    assert "and 490 more" in text
    assert len(text.splitlines()) < 20


@simulated
async def test_forgotten_tasks_are_an_event_too() -> None:
    seen: list[int] = []
    telemetry.attach(
        "test-forgotten",
        ("perdure", "task", "uncollected"),
        lambda event, measurements, metadata, config: seen.append(measurements["count"]),
    )
    try:
        await end_of(forgets, 3)
    finally:
        telemetry.detach("test-forgotten")
    assert seen == [3]


@simulated
async def test_collected_tasks_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def careful() -> None:
        await Task.create(give, 1)
        await Task.create(give, 2).poll()
        await Task.create(forever).shutdown()
        Task.create(give, 3).ignore()
        Task.start(give, 4)
        with pytest.raises(TaskTimeout):
            await Task.create(slowly, 5, 1.0).join(0.5)
        Task.completed(6)

    assert (await end_of(careful)).ok
    assert reports(caplog) == []


@simulated
async def test_an_owner_that_crashes_is_not_blamed_for_what_it_could_not_collect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def crashes() -> None:
        Task.create(give, 1)
        await others_rest()
        raise ValueError("the story")

    await end_of(crashes)
    assert reports(caplog) == []


@simulated
async def test_a_stopped_owner_is_told_only_of_results_that_were_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def stopped() -> None:
        Task.create(give, 1)
        Task.create(slowly, 2, 100.0)
        await others_rest()
        process.exit(Shutdown())

    await end_of(stopped)
    (text,) = reports(caplog)
    assert "1 of its tasks" in text


@simulated
async def test_the_results_of_a_dead_owner_are_dropped() -> None:
    async def forgets_a_slow_one() -> None:
        Task.create(slowly, 1, 2.0)

    await end_of(forgets_a_slow_one)
    await sleep(5)
    assert len(process.processes()) == 1
