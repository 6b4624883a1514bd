"""Locks, events, queues and their like of asyncio, shared by processes."""

import asyncio
from typing import Any

import pytest

from perdure import process
from perdure.errors import Killed
from perdure.process import Pid, sleep
from perdure.testing import simulate, simulated
from tests.support.processes import exit_of, now


async def collect(count: int) -> list[Any]:
    return [(await process.inbox().receive()).payload for _ in range(count)]


@simulated
async def test_an_event_wakes_every_process_that_waits_for_it() -> None:
    event = asyncio.Event()

    async def child(parent: Pid, number: int) -> None:
        await event.wait()
        process.send(parent, "woken", number)

    for number in range(3):
        process.spawn_linked(child, process.self_pid(), number)
    await sleep(1)
    event.set()

    assert sorted(await collect(3)) == [0, 1, 2]
    assert now() == 1


async def three_share_a_lock() -> None:
    lock = asyncio.Lock()
    inside = 0

    async def child(parent: Pid) -> None:
        nonlocal inside
        for _ in range(3):
            async with lock:
                inside += 1
                assert inside == 1
                await sleep(1)
                inside -= 1
        process.send(parent, "done")

    for _ in range(3):
        process.spawn_linked(child, process.self_pid())
    await collect(3)

    assert now() == 9


@pytest.mark.parametrize("seed", [None, *range(5)])
def test_a_lock_is_held_by_one_process_at_a_time(seed: int | None) -> None:
    simulate(three_share_a_lock, seed=seed)


@simulated
async def test_a_killed_holder_frees_its_lock() -> None:
    lock = asyncio.Lock()

    async def hold() -> None:
        async with lock:
            await process.inbox().receive()

    holder = process.spawn_monitored(hold)
    await sleep(1)
    assert lock.locked()
    process.kill(holder)

    async with lock:
        assert isinstance((await exit_of(holder)).error, Killed)


async def kill_the_waiter_as_the_lock_is_freed() -> None:
    lock = asyncio.Lock()

    async def wait_and_tell(parent: Pid, name: str) -> None:
        async with lock:
            process.send(parent, "got it", name)

    await lock.acquire()
    first = process.spawn(wait_and_tell, process.self_pid(), "first")
    process.spawn(wait_and_tell, process.self_pid(), "second")
    await sleep(1)
    lock.release()
    process.kill(first)

    assert await collect(1) == ["second"]


@pytest.mark.parametrize("seed", [None, *range(5)])
def test_a_lock_is_not_lost_with_a_waiter_that_dies_as_it_gets_it(seed: int | None) -> None:
    simulate(kill_the_waiter_as_the_lock_is_freed, seed=seed)


@simulated
async def test_a_semaphore_lets_so_many_in() -> None:
    places = asyncio.Semaphore(2)

    async def child(parent: Pid) -> None:
        async with places:
            await sleep(1)
        process.send(parent, "done")

    for _ in range(6):
        process.spawn_linked(child, process.self_pid())
    await collect(6)

    assert now() == 3


@simulated
async def test_a_killed_process_gives_back_its_place_of_a_semaphore() -> None:
    places = asyncio.BoundedSemaphore(1)

    async def hold() -> None:
        async with places:
            await sleep("1h")

    holder = process.spawn(hold)
    await sleep(1)
    process.kill(holder)
    async with asyncio.timeout(1), places:
        pass


@simulated
async def test_a_queue_joins_producers_and_consumers() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)

    async def produce(start: int) -> None:
        for number in range(start, start + 5):
            await queue.put(number)

    async def consume(parent: Pid) -> None:
        while True:
            number = await queue.get()
            await sleep(1)
            process.send(parent, "number", number)
            queue.task_done()

    process.spawn_linked(produce, 0)
    process.spawn_linked(produce, 5)
    consumers = [process.spawn_monitored(consume, process.self_pid()) for _ in range(2)]
    numbers = await collect(10)
    await queue.join()
    for consumer in consumers:
        process.kill(consumer)

    assert sorted(numbers) == list(range(10))


@simulated
async def test_an_item_of_a_queue_is_not_lost_with_a_consumer_that_dies_as_it_comes() -> None:
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def consume() -> str:
        return await queue.get()

    doomed = process.spawn(consume)
    await sleep(1)
    queue.put_nowait("item")
    process.kill(doomed)
    await sleep(1)

    assert queue.get_nowait() == "item"


@simulated
async def test_a_condition_wakes_those_whose_time_has_come() -> None:
    condition, ready = asyncio.Condition(), False

    async def child(parent: Pid) -> None:
        async with condition:
            await condition.wait_for(lambda: ready)
        process.send(parent, "woken", now())

    for _ in range(2):
        process.spawn_linked(child, process.self_pid())
    await sleep(1)
    async with condition:
        condition.notify_all()  # too early: they look and wait on
    await sleep(1)
    async with condition:
        ready = True
        condition.notify_all()

    assert await collect(2) == [2, 2]


@simulated
async def test_a_killed_waiter_of_a_condition_leaves_its_lock_free() -> None:
    condition = asyncio.Condition()

    async def child() -> None:
        async with condition:
            await condition.wait()

    doomed = process.spawn_monitored(child)
    await sleep(1)
    process.kill(doomed)
    await exit_of(doomed)

    assert not condition.locked()


@simulated
async def test_a_barrier_lets_all_pass_together() -> None:
    barrier = asyncio.Barrier(3)

    async def child(parent: Pid, after: float) -> None:
        await sleep(after)
        await barrier.wait()
        process.send(parent, "passed", now())

    for after in (1, 2, 3):
        process.spawn_linked(child, process.self_pid(), after)

    assert await collect(3) == [3, 3, 3]


@simulated
async def test_a_plain_future_carries_a_value_from_one_process_to_another() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def child() -> None:
        await sleep(1)
        future.set_result(42)

    process.spawn_linked(child)

    assert await future == 42
