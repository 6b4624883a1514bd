"""A pool keeps its workers alive."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from perdure import process
from perdure.errors import NameTaken, NoProcess, ProcError, ProcessExit, Shutdown, SpawnError
from perdure.otp.pool import Pool
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process import Channel, sleep
from perdure.testing import simulate, simulated
from tests.support.processes import crash, exit_of, give, living, others_rest, wait_forever


async def stay(worker_id: int) -> None:
    await wait_forever()


async def obey(worker_id: int) -> str:
    """End when asked to, after a second."""
    async for event in process.events():
        if isinstance(event, process.Cancel):
            break
    await sleep(1)
    return "done"


def ids(pool: Pool) -> list[int]:
    return [worker.id for worker in pool.workers()]


def pid_of(pool: Pool, worker_id: int) -> process.Pid:
    return next(worker.pid for worker in pool.workers() if worker.id == worker_id)


@simulated
async def test_a_pool_starts_its_workers_with_ids_from_one() -> None:
    begun: list[int] = []

    async def worker(worker_id: int) -> None:
        begun.append(worker_id)
        await wait_forever()

    pool = await Pool.start_link(worker)
    await others_rest()
    assert begun == [1, 2, 3, 4]
    assert ids(pool) == [1, 2, 3, 4]
    assert {worker.started_at for worker in pool.workers()} == {0.0}
    assert all(process.alive(worker.pid) for worker in pool.workers())


@simulated
async def test_a_worker_that_crashes_comes_back_after_the_delay_as_another_process() -> None:
    pool = await Pool.start_link(stay, size=2)
    before = pid_of(pool, 2)
    await sleep(7)
    process.kill(before)
    await sleep("99ms")
    assert ids(pool) == [1]
    await sleep("2ms")
    assert ids(pool) == [1, 2]
    [first, second] = pool.workers()
    assert second.pid is not before
    assert (first.started_at, round(second.started_at, 3)) == (0.0, 7.1)


@simulated
async def test_the_delay_can_be_chosen() -> None:
    pool = await Pool.start_link(stay, size=1, restart_delay="1m")
    process.kill(pid_of(pool, 1))
    await sleep("59.9s")
    assert ids(pool) == []
    await sleep("0.2s")
    assert ids(pool) == [1]


@simulated
async def test_workers_that_die_together_are_back_together() -> None:
    pool = await Pool.start_link(stay, size=10)
    for worker in pool.workers():
        process.kill(worker.pid)
    await sleep("101ms")
    assert ids(pool) == list(range(1, 11))


@simulated
async def test_one_worker_more_dies_while_another_is_waited_for() -> None:
    pool = await Pool.start_link(stay, size=3)
    process.kill(pid_of(pool, 1))
    await sleep("50ms")
    process.kill(pid_of(pool, 2))
    await sleep("51ms")
    assert ids(pool) == [1, 3]
    await sleep("50ms")
    assert ids(pool) == [1, 2, 3]


@simulated
async def test_a_worker_that_ends_normally_is_not_replaced() -> None:
    async def worker(worker_id: int) -> None:
        if worker_id != 2:
            await wait_forever()

    pool = await Pool.start_link(worker, size=3)
    await sleep(10)
    assert ids(pool) == [1, 3]


@simulated
async def test_a_pool_without_workers_lives_on() -> None:
    pool = await Pool.start_link(give, size=2)
    await sleep(10)
    assert ids(pool) == []
    assert process.alive(pool.pid)


@pytest.mark.parametrize("reason", [Shutdown(), ValueError("boom")], ids=["shutdown", "error"])
def test_whatever_ends_a_worker_abnormally_it_comes_back(reason: BaseException) -> None:
    @simulated
    async def main() -> None:
        pool = await Pool.start_link(stay, size=1)
        process.exit(reason, pid_of(pool, 1))
        await sleep("101ms")
        assert ids(pool) == [1]

    main()


@simulated
async def test_without_a_limit_a_worker_that_always_crashes_is_restarted_for_ever() -> None:
    starts: list[int] = []

    async def worker(worker_id: int) -> None:
        starts.append(worker_id)
        await crash()

    pool = await Pool.start_link(worker, size=1)
    await sleep("10.05s")
    assert len(starts) == 101
    assert process.alive(pool.pid)


# Intensity


@simulated
async def test_one_crash_too_many_ends_the_pool_and_its_workers() -> None:
    process.set_options(trap_links=True)
    pool = await Pool.start_link(stay, size=2, max_restarts=3)
    process.monitor(pool.pid)
    for _ in range(3):
        process.kill(pid_of(pool, 1))
        await sleep("101ms")
    last = pid_of(pool, 2)
    assert process.alive(pool.pid)
    process.kill(pid_of(pool, 1))
    end = await exit_of(pool.pid)
    assert isinstance(end.error, Shutdown)
    assert end.error.detail == "more than 3 restarts within 5s"
    assert not process.alive(last)


@simulated
async def test_crashes_of_different_workers_count_together() -> None:
    process.set_options(trap_links=True)
    pool = await Pool.start_link(stay, size=4, max_restarts=3)
    process.monitor(pool.pid)
    for worker in pool.workers():
        process.kill(worker.pid)
    assert isinstance((await exit_of(pool.pid)).error, Shutdown)


@simulated
async def test_crashes_that_are_far_apart_are_never_too_many() -> None:
    pool = await Pool.start_link(stay, size=1, max_restarts=1, max_seconds=5)
    for _ in range(10):
        process.kill(pid_of(pool, 1))
        await sleep("5.1s")
    assert ids(pool) == [1]


@simulated
async def test_normal_ends_do_not_count() -> None:
    pool = await Pool.start_link(give, size=10, max_restarts=0)
    await sleep(1)
    assert process.alive(pool.pid)


# Ends


@simulated
async def test_a_cancel_ends_the_pool_normally_and_its_workers_first() -> None:
    pool = await Pool.start_link(obey)
    pids = [worker.pid for worker in pool.workers()]
    await others_rest()
    process.monitor(pool.pid)
    process.cancel(pool.pid)
    assert (await exit_of(pool.pid)).ok
    assert not any(map(process.alive, pids))
    assert living() == {process.self_pid()}


@simulated
async def test_stop_waits_until_all_are_gone_and_spares_the_caller() -> None:
    pool = await Pool.start_link(obey)
    await others_rest()
    await pool.stop()
    assert living() == {process.self_pid()}


@simulated
async def test_a_pool_ends_with_its_block() -> None:
    async with await Pool.start_link(stay) as pool:
        assert len(pool.workers()) == 4
    assert not process.alive(pool.pid)


@simulated
async def test_workers_that_read_no_events_do_not_hold_up_the_end() -> None:
    start = process.info(process.self_pid())
    pool = await Pool.start_link(stay)
    await others_rest()
    process.cancel(pool.pid, "100ms")  # far less than the five seconds that workers get
    process.monitor(pool.pid)
    assert (await exit_of(pool.pid)).ok
    assert start.pid in living()


async def disobey(worker_id: int) -> None:
    process.events()
    await wait_forever()


@pytest.mark.parametrize(
    ("timeout", "expected"), [(None, 5.0), ("1h", 5.0), ("2s", 1.8), ("0s", 0.0)]
)
def test_workers_that_do_not_obey_are_killed_in_time(timeout: Any, expected: float) -> None:
    @simulated
    async def main() -> None:
        loop = process.self_pid().target.loop
        process.set_options(trap_links=True)
        pool = await Pool.start_link(disobey, size=3)
        for worker in pool.workers():
            process.monitor(worker.pid)
        await others_rest()
        start = loop.time()
        process.cancel(pool.pid, timeout)
        ends = [event async for event in exits(3)]
        assert all(isinstance(end.result.error, ProcessExit) for end in ends)
        assert loop.time() - start == pytest.approx(expected)
        await others_rest()
        assert living() == {process.self_pid()}

    main()


async def exits(count: int) -> AsyncGenerator[process.Exit]:
    while count:
        event = await process.events().receive()
        if isinstance(event, process.Exit):
            count -= 1
            yield event


@simulated
async def test_a_pool_is_done_before_its_own_deadline() -> None:
    pool = await Pool.start_link(disobey)
    await others_rest()
    process.monitor(pool.pid)
    process.cancel(pool.pid, "2s")
    assert (await exit_of(pool.pid)).ok


@simulated
async def test_a_worker_that_dies_with_the_cancel_of_the_pool_spares_the_others_no_word() -> None:
    pool = await Pool.start_link(obey, size=3)
    await others_rest()
    process.monitor(pool.pid)
    process.kill(pid_of(pool, 1))
    process.cancel(pool.pid)
    assert (await exit_of(pool.pid)).ok
    assert living() == {process.self_pid()}


@simulated
async def test_no_worker_is_started_again_by_a_pool_that_ends() -> None:
    pool = await Pool.start_link(obey, size=2)
    process.kill(pid_of(pool, 1))
    await others_rest()
    process.cancel(pool.pid)
    process.monitor(pool.pid)
    await exit_of(pool.pid)
    assert living() == {process.self_pid()}


@simulated
async def test_a_pool_that_is_killed_takes_its_workers_along() -> None:
    process.set_options(trap_links=True)
    pool = await Pool.start_link(stay)
    process.kill(pool.pid)
    await others_rest()
    assert living() == {process.self_pid()}


@pytest.mark.parametrize("end", [give, crash])
def test_a_pool_ends_with_the_process_that_started_it(end: Any) -> None:
    @simulated
    async def main() -> None:
        async def starter() -> None:
            await Pool.start_link(stay)
            await end()

        await exit_of(process.spawn_monitored(starter))
        await others_rest()
        assert living() == {process.self_pid()}

    main()


@simulated
async def test_the_link_down_of_a_stranger_is_ignored() -> None:
    pool = await Pool.start_link(stay)

    async def stranger() -> None:
        process.link(pool.pid)
        await crash()

    await exit_of(process.spawn_monitored(stranger))
    process.spawn(process_exit, pool.pid)
    await sleep(1)
    assert ids(pool) == [1, 2, 3, 4]


async def process_exit(pid: process.Pid) -> None:
    process.exit(ValueError("not for you"), pid)


@simulated
async def test_a_pool_that_has_ended_has_no_workers_to_list() -> None:
    pool = await Pool.start_link(stay)
    await pool.stop()
    with pytest.raises(NoProcess):
        pool.workers()


# Names, supervision, mistakes


@simulated
async def test_a_pool_can_be_named_and_used_by_its_name() -> None:
    pool = await Pool.start_link(stay, size=2, name="pool")
    assert process.whereis("pool") is pool.pid
    assert [worker.id for worker in Pool.workers("pool")] == [1, 2]
    with pytest.raises(NameTaken):
        await Pool.start_link(stay, name="pool")
    await Pool.stop("pool")
    with pytest.raises(ProcError):
        Pool.workers("pool")


@simulated
async def test_what_is_no_pool_is_refused() -> None:
    with pytest.raises(TypeError, match="not a pool"):
        Pool.workers(process.self_pid())


@simulated
async def test_a_supervisor_restarts_a_pool_that_gave_up_and_stops_it_in_order() -> None:
    async with Supervisor([Pool.child(stay, size=1, max_restarts=0, name="pool")]):
        first = process.pid_of("pool")
        process.kill(Pool.workers("pool")[0].pid)
        await others_rest()
        assert process.pid_of("pool") is not first
        assert len(Pool.workers("pool")) == 1
    assert living() == {process.self_pid()}


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"size": -1},
        {"size": 1.5},
        {"size": True},
        {"restart_delay": "soon"},
        {"restart_delay": None},
        {"health_check": 0},
        {"health_check": -1},
        {"max_restarts": -1},
        {"max_restarts": 1, "max_seconds": 0},
        {"shutdown": "later"},
        {"report": "print"},
        {"colour": "red"},
    ],
)
def test_bad_options_start_nothing(options: dict[str, Any]) -> None:
    @simulated
    async def main() -> None:
        with pytest.raises((ValueError, TypeError)):
            await Pool.start_link(stay, **options)
        with pytest.raises((ValueError, TypeError)):
            Pool.child(stay, **options)
        assert len(living()) == 1

    main()


@simulated
async def test_a_worker_that_is_no_async_function_is_refused() -> None:
    with pytest.raises(SpawnError, match="async def"):
        await Pool.start_link(print)  # pyright: ignore[reportArgumentType]
    assert len(living()) == 1


@pytest.mark.parametrize("seed", range(5))
def test_in_any_order_of_deaths_every_worker_comes_back(seed: int) -> None:
    async def main() -> None:
        gate = Channel[None](100)

        async def worker(worker_id: int) -> None:
            await gate.receive()
            await crash()

        pool = await Pool.start_link(worker, size=5)
        for _ in range(20):
            await gate.send(None)
            await sleep("30ms")
        await sleep("1s")
        assert ids(pool) == [1, 2, 3, 4, 5]

    simulate(main, seed=seed)
