"""What a pool tells: its texts, its health check, its telemetry."""

from typing import Any

import pytest

from perdure import process, telemetry
from perdure.errors import Shutdown, SpawnError
from perdure.otp.pool import Pool
from perdure.process import sleep
from perdure.process.process import SpawnTarget
from perdure.testing import simulated
from tests.support.processes import crash, exit_of, give, others_rest, wait_forever


async def stay(worker_id: int) -> None:
    await wait_forever()


def kill(pool: Pool, worker_id: int) -> None:
    process.kill(next(worker.pid for worker in pool.workers() if worker.id == worker_id))


class Told(list[str]):
    """The lines that a pool reported; each with the time, if asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def __call__(self, text: str) -> None:
        self.append(text)
        self.times.append(round(process.self_pid().target.loop.time(), 3))


@simulated
async def test_the_start_is_told_after_all_workers_were_started() -> None:
    told = Told()
    await Pool.start_link(stay, report=told)
    assert told == ["Supervisor started with 4 workers"]


@simulated
async def test_a_death_is_told_with_the_age_in_whole_seconds() -> None:
    told = Told()
    pool = await Pool.start_link(stay, report=told)
    kill(pool, 2)
    await sleep("12.9s")
    kill(pool, 3)
    await others_rest()
    assert told[1:] == [
        "Worker 2 died after 0s, restarting",
        "Worker 3 died after 12s, restarting",
    ]


@simulated
async def test_a_quiet_minute_is_told() -> None:
    told = Told()
    await Pool.start_link(stay, report=told)
    await sleep("2m30s")
    assert told[1:] == ["Health check: 4 active workers"] * 2
    assert told.times == [0, 60, 120]


@simulated
async def test_every_event_starts_the_health_clock_anew() -> None:
    told = Told()
    pool = await Pool.start_link(stay, report=told)
    await sleep("30s")
    kill(pool, 1)
    await sleep("61s")
    assert told[1:] == ["Worker 1 died after 30s, restarting", "Health check: 4 active workers"]
    assert told.times[2] == 90.1  # a minute after the new worker was started


@simulated
async def test_an_event_that_means_nothing_starts_the_health_clock_anew_too() -> None:
    told = Told()
    pool = await Pool.start_link(stay, report=told)

    async def stranger() -> None:
        process.link(pool.pid)
        await crash()

    await sleep("30s")
    process.spawn(stranger)
    await sleep("100s")
    assert told.times == [0, 90]


@simulated
async def test_workers_that_ended_normally_are_not_counted() -> None:
    told = Told()

    async def worker(worker_id: int) -> None:
        if worker_id < 4:
            await wait_forever()

    await Pool.start_link(worker, report=told)
    await sleep("61s")
    assert told[1:] == ["Health check: 3 active workers"]


@simulated
async def test_workers_that_wait_for_their_restart_are_not_counted() -> None:
    told = Told()
    pool = await Pool.start_link(stay, report=told, restart_delay="90s")
    kill(pool, 1)
    await sleep("61s")
    assert told[2:] == ["Health check: 3 active workers"]


@simulated
async def test_the_time_of_the_check_can_be_chosen() -> None:
    told = Told()
    await Pool.start_link(stay, size=1, report=told, health_check="1s")
    await sleep("3.5s")
    assert told.times == [0, 1, 2, 3]


@simulated
async def test_without_a_health_check_nothing_is_told() -> None:
    told = Told()
    await Pool.start_link(stay, report=told, health_check=None)
    await sleep("24h")
    assert len(told) == 1


@simulated
async def test_a_worker_that_cannot_be_started_is_told_and_tried_again() -> None:
    told = Told()
    pool = await Pool.start_link("no:such:entry", size=2, report=told)
    assert [line.split(":")[0] for line in told] == [
        "Failed to start worker 1",
        "Failed to start worker 2",
        "Supervisor started with 2 workers",
    ]
    assert "no:such:entry" in told[0]
    assert pool.workers() == []

    process.self_pid().target.runtime.spawn_ids["no:such:entry"] = SpawnTarget(stay)
    await sleep("101ms")
    assert [worker.id for worker in pool.workers()] == [1, 2]


@simulated
async def test_starts_that_fail_again_and_again_count_as_restarts() -> None:
    process.set_options(trap_links=True)
    told = Told()
    pool = await Pool.start_link(stay, size=1, host="nowhere", max_restarts=3, report=told)
    process.monitor(pool.pid)
    assert isinstance((await exit_of(pool.pid)).error, Shutdown)
    assert len([line for line in told if line.startswith("Failed to start worker 1")]) == 5


@simulated
async def test_a_pool_that_gives_up_says_so() -> None:
    process.set_options(trap_links=True)
    told = Told()
    pool = await Pool.start_link(stay, size=1, max_restarts=0, report=told)
    process.monitor(pool.pid)
    kill(pool, 1)
    await exit_of(pool.pid)
    assert told[-1] == "Worker 1 died after 0s, giving up: more than 0 restarts within 5s"


@simulated
async def test_a_normal_end_of_a_worker_and_of_the_pool_is_not_worth_a_word() -> None:
    told = Told()
    pool = await Pool.start_link(give, report=told)
    await others_rest()
    await pool.stop()
    assert len(told) == 1


@simulated
async def test_the_same_is_told_by_telemetry() -> None:
    events: list[tuple[str, Any, Any]] = []

    def note(event: tuple[str, ...], measurements: Any, metadata: Any, config: object) -> None:
        events.append((".".join(event[2:]), dict(measurements), dict(metadata)))

    names = [("started",), ("health",), ("worker", "died"), ("worker", "failed")]
    telemetry.attach_many("pool", [("perdure", "pool", *name) for name in names], note)
    try:
        pool = await Pool.start_link(stay, size=1)
        kill(pool, 1)
        await sleep("61s")
        await Pool.start_link(stay, size=1, host="nowhere")
    finally:
        telemetry.detach("pool")

    told = " ".join(name for name, *_ in events)
    assert told == "started worker.died health worker.failed started"
    assert events[0][1:] == ({"size": 1}, {"pool": pool.pid})
    assert events[1][1] == {"age": 0.0}
    assert events[1][2]["worker"] == 1
    assert events[2][1] == {"active": 1}
    assert isinstance(events[3][2]["reason"], SpawnError)


@pytest.mark.parametrize("report", [print, None])
def test_any_function_of_a_text_will_do(report: Any, capsys: pytest.CaptureFixture[str]) -> None:
    @simulated
    async def main() -> None:
        await Pool.start_link(stay, report=report)

    main()
    assert capsys.readouterr().out == ("Supervisor started with 4 workers\n" if report else "")
