"""anyio inside a process: cancel scopes, task groups, streams, threads."""
# ruff: noqa: PT012 - the body of a group or of a time-out is more than one statement

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc
import anyio.from_thread
import anyio.to_thread
import pytest

import perdure
from perdure import process
from perdure.errors import Killed, Shutdown
from perdure.process import Pid, select, sleep
from perdure.testing import simulated
from tests.support.processes import end_of, exit_of, forever, me, now

Wait = Callable[[], Awaitable[Any]]


async def wait_in_the_kernel() -> None:
    await process.inbox().receive()


async def wait_in_select() -> None:
    await select(process.inbox(), process.events())


WAITS: list[Wait] = [wait_in_the_kernel, wait_in_select, forever, anyio.sleep_forever]
each_wait = pytest.mark.parametrize("wait", WAITS)


async def fail() -> None:
    await sleep(1)
    raise ValueError("no")


# Cancel scopes


@each_wait
@simulated
async def test_move_on_after_moves_on(wait: Wait) -> None:
    with anyio.move_on_after(5) as scope:
        await wait()

    assert scope.cancelled_caught
    assert now() == 5
    assert me().cancelling() == 0
    await sleep(1)  # the cancellation is used up


@each_wait
@simulated
async def test_fail_after_fails(wait: Wait) -> None:
    with pytest.raises(TimeoutError), anyio.fail_after(5):
        await wait()

    assert now() == 5
    assert me().cancelling() == 0
    await sleep(1)


@simulated
async def test_what_comes_in_time_comes_through() -> None:
    with anyio.move_on_after(5) as scope:
        await sleep(1)

    assert not scope.cancelled_caught
    await sleep(10)


@each_wait
@simulated
async def test_only_the_inner_scope_expires(wait: Wait) -> None:
    inner = anyio.move_on_after(1)
    with anyio.move_on_after(10) as outer:
        with inner:
            await wait()
        await sleep(1)

    assert inner.cancelled_caught
    assert not outer.cancelled_caught
    assert now() == 2


@each_wait
@simulated
async def test_the_outer_scope_passes_through_the_inner_one(wait: Wait) -> None:
    reached, inner = False, anyio.move_on_after(10)
    with anyio.move_on_after(1) as outer:
        with inner:
            await wait()
        reached = True

    assert outer.cancelled_caught
    assert not inner.cancelled_caught
    assert not reached
    assert me().cancelling() == 0


@each_wait
@simulated
async def test_a_scope_can_be_cancelled_by_hand(wait: Wait) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await wait()

    assert scope.cancelled_caught
    assert now() == 0
    await sleep(1)


@simulated
async def test_a_cancelled_scope_strikes_at_every_wait_inside_it() -> None:
    strikes = 0
    with anyio.CancelScope() as scope:
        scope.cancel()
        for _ in range(3):
            try:
                await process.inbox().receive()
            except BaseException:  # noqa: BLE001 - anyio's own class depends on the backend
                strikes += 1
        await anyio.lowlevel.checkpoint()

    assert strikes == 3
    assert scope.cancelled_caught
    assert me().cancelling() == 0


@simulated
async def test_a_shielded_scope_finishes_inside_a_cancelled_one() -> None:
    finished = False
    with anyio.move_on_after(1) as outer:
        with anyio.CancelScope(shield=True):
            await sleep(5)
            finished = True
        await anyio.lowlevel.checkpoint()

    assert finished
    assert outer.cancelled_caught
    assert now() == 5


@each_wait
@simulated
async def test_a_shield_ends_with_its_own_timeout(wait: Wait) -> None:
    with anyio.move_on_after(1), anyio.move_on_after(3, shield=True) as shielded:
        await wait()

    assert shielded.cancelled_caught
    assert now() == 3


@each_wait
@simulated
async def test_a_signal_ends_a_process_inside_a_scope(wait: Wait) -> None:
    async def child() -> str:
        with anyio.move_on_after(3600):
            await wait()
        return "went on"

    pid = process.spawn_monitored(child)
    await sleep(1)
    process.exit(Shutdown(), pid)

    assert isinstance((await exit_of(pid)).error, Shutdown)
    assert now() == 1


def shut_down(pid: Pid) -> None:
    process.exit(Shutdown(), pid)


@each_wait
@pytest.mark.parametrize(("signal", "reason"), [(shut_down, Shutdown), (process.kill, Killed)])
@simulated
async def test_a_signal_at_the_moment_of_the_deadline_is_not_swallowed(
    wait: Wait, signal: Callable[[Pid], None], reason: type[BaseException]
) -> None:
    async def child() -> None:
        with anyio.move_on_after(1):
            await wait()
        await sleep("1h")

    pid = process.spawn_monitored(child)
    await sleep(1)
    signal(pid)

    assert isinstance((await exit_of(pid)).error, reason)
    assert now() < 60


@simulated
async def test_a_kill_goes_through_a_shield() -> None:
    async def child() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()

    pid = process.spawn_monitored(child)
    await sleep(1)
    process.kill(pid)

    assert isinstance((await exit_of(pid)).error, Killed)
    assert now() < 2


@simulated
async def test_cleanup_may_be_shielded() -> None:
    cleaned: list[float] = []

    async def child() -> None:
        try:
            with anyio.move_on_after(1):
                await anyio.sleep_forever()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await sleep(2)
                cleaned.append(now())

    pid = process.spawn_monitored(child)
    await sleep(5)
    process.exit(Shutdown(), pid)
    await exit_of(pid)

    assert cleaned == [7]


# Task groups


@simulated
async def test_a_task_group_waits_for_its_tasks() -> None:
    pids: list[Pid] = []

    async def task() -> None:
        await sleep(1)
        pids.append(process.self_pid())

    async with anyio.create_task_group() as group:
        group.start_soon(task)
        group.start_soon(task)

    assert pids == [process.self_pid()] * 2
    assert now() == 1


@simulated
async def test_the_failure_of_a_task_ends_the_group() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            group.start_soon(fail)
            await process.inbox().receive()

    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert now() == 1
    assert me().cancelling() == 0
    await sleep(1)


@simulated
async def test_the_failure_of_the_body_ends_the_tasks() -> None:
    with pytest.raises(ExceptionGroup):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            await fail()

    assert now() == 1


@simulated
async def test_a_group_can_be_cancelled_from_a_task() -> None:
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await sleep(1)
            group.cancel_scope.cancel()

        group.start_soon(stop)
        group.start_soon(anyio.sleep_forever)
        await process.inbox().receive()

    assert now() == 1
    await sleep(1)


@simulated
async def test_groups_can_be_nested() -> None:
    async with anyio.create_task_group() as outer:
        outer.start_soon(sleep, 5)
        with pytest.raises(ExceptionGroup):
            async with anyio.create_task_group() as inner:
                inner.start_soon(fail)
                inner.start_soon(anyio.sleep_forever)

    assert now() == 5


@simulated
async def test_a_task_tells_when_it_has_started() -> None:
    async def task(*, task_status: anyio.abc.TaskStatus[Pid]) -> None:
        await sleep(1)
        task_status.started(process.self_pid())
        await sleep(1)

    async with anyio.create_task_group() as group:
        assert await group.start(task) is process.self_pid()
        assert now() == 1

    assert now() == 2


@simulated
async def test_a_signal_ends_a_group_and_the_process() -> None:
    ended: list[str] = []

    async def task() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("task")

    async def child() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(task)
            group.start_soon(task)

    pid = process.spawn_monitored(child)
    await sleep(1)
    process.exit(Shutdown(), pid)

    assert isinstance((await exit_of(pid)).error, Shutdown)
    assert ended == ["task", "task"]
    assert now() == 1


# Streams, locks, threads


@simulated
async def test_a_memory_stream_joins_two_processes() -> None:
    send, receive = anyio.create_memory_object_stream[int](1)

    async def produce() -> None:
        async with send:
            for number in range(5):
                await send.send(number)

    process.spawn_linked(produce)
    async with receive:
        assert [number async for number in receive] == [0, 1, 2, 3, 4]


@simulated
async def test_a_killed_receiver_of_a_memory_stream_is_noticed() -> None:
    send, receive = anyio.create_memory_object_stream[int](0)

    async def consume() -> None:
        async with receive:
            await receive.receive()
            await anyio.sleep_forever()

    pid = process.spawn_monitored(consume)
    async with send:
        await send.send(1)
        process.kill(pid)
        with pytest.raises(anyio.BrokenResourceError):
            await send.send(2)
    assert isinstance((await exit_of(pid)).error, Killed)


@simulated
async def test_events_locks_and_limiters_are_shared_by_processes() -> None:
    event, lock, limiter = anyio.Event(), anyio.Lock(), anyio.CapacityLimiter(1)

    async def child(parent: Pid) -> None:
        await event.wait()
        async with lock, limiter:
            await sleep(1)
        process.send(parent, "done")

    for _ in range(3):
        process.spawn_linked(child, process.self_pid())
    await sleep(1)
    event.set()
    for _ in range(3):
        await process.inbox().receive()

    assert now() == 4


@simulated
async def test_a_killed_holder_frees_its_lock() -> None:
    lock = anyio.Lock()

    async def hold() -> None:
        async with lock:
            await anyio.sleep_forever()

    pid = process.spawn(hold)
    await sleep(1)
    process.kill(pid)
    with anyio.fail_after(1):
        async with lock:
            pass


def test_a_thread_works_for_a_process_and_calls_back() -> None:
    async def child() -> list[Any]:
        def work() -> Any:
            return anyio.from_thread.run_sync(process.self_pid)

        return [await anyio.to_thread.run_sync(max, 1, 2), await anyio.to_thread.run_sync(work)]

    async def main() -> None:
        pid = process.spawn_monitored(child)
        assert (await exit_of(pid)).value == [2, pid]

    perdure.run(main)


def test_the_threads_of_anyio_outlive_the_process_that_asked_first() -> None:
    async def child() -> int:
        return await anyio.to_thread.run_sync(max, 1, 2)

    async def main() -> None:
        for _ in range(3):
            assert (await end_of(child)).value == 2

    perdure.run(main)


@simulated
async def test_anyio_knows_the_task_by_the_name_of_the_process() -> None:
    assert anyio.get_current_task().name == str(process.self_pid())
