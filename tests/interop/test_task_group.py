"""`asyncio.TaskGroup`, `gather`, `shield`, `wait` and plain tasks inside a process."""
# ruff: noqa: PT012 - the body of a group or of a time-out is more than one statement

import asyncio
import contextlib
import sys
from typing import Any

import pytest

import perdure
from perdure import process
from perdure.errors import Shutdown
from perdure.process import Pid, select, sleep
from perdure.testing import simulate, simulated
from tests.support.processes import end_of, exit_of, forever, me, now


async def answer(value: int, after: float = 1) -> int:
    await sleep(after)
    return value


async def fail(after: float = 1) -> None:
    await sleep(after)
    raise ValueError("no")


# Task groups


@simulated
async def test_a_group_gives_the_results_of_its_tasks() -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(answer(n)) for n in range(3)]

    assert [task.result() for task in tasks] == [0, 1, 2]
    assert now() == 1


@simulated
async def test_the_failure_of_one_task_ends_the_group() -> None:
    ended: list[str] = []

    async def sibling() -> None:
        try:
            await process.inbox().receive()
        finally:
            ended.append("sibling")

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(sibling())
            await forever()

    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert ended == ["sibling"]
    assert now() == 1
    assert me().cancelling() == 0
    await sleep(1)  # the cancellation is used up


@simulated
async def test_the_failure_of_the_body_ends_the_tasks() -> None:
    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            tasks.append(group.create_task(forever()))
            await fail()

    assert tasks[0].cancelled()


@simulated
async def test_a_failure_while_the_body_waits_in_the_kernel_interrupts_it() -> None:
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await select(process.inbox(), process.events())

    assert now() == 1


@simulated
async def test_an_inner_group_can_fail_inside_an_outer_one() -> None:
    lost: list[asyncio.Task[None]] = []
    async with asyncio.TaskGroup() as outer:
        survivor = outer.create_task(answer(1, after=5))
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as inner:
                inner.create_task(fail())
                lost.append(inner.create_task(forever()))

    assert survivor.result() == 1
    assert lost[0].cancelled()
    assert now() == 5


@simulated
async def test_an_outer_failure_ends_the_inner_group() -> None:
    lost: list[asyncio.Task[None]] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(fail())
            async with asyncio.TaskGroup() as inner:
                lost.append(inner.create_task(forever()))

    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert lost[0].cancelled()
    assert me().cancelling() == 0


@simulated
async def test_a_timeout_ends_a_group() -> None:
    lost: list[asyncio.Task[None]] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1), asyncio.TaskGroup() as group:
            lost.append(group.create_task(forever()))

    assert lost[0].cancelled()
    assert me().cancelling() == 0


@simulated
async def test_a_signal_ends_a_group_and_the_process() -> None:
    ended: list[str] = []

    async def inner() -> None:
        try:
            await forever()
        finally:
            ended.append("task")

    async def child() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner())
            group.create_task(inner())

    pid = process.spawn_monitored(child)
    await sleep(1)
    process.exit(Shutdown(), pid)

    result = await exit_of(pid)

    assert isinstance(result.error, Shutdown)
    assert ended == ["task", "task"]


async def a_task_fails_as_the_signal_comes() -> None:
    async def child() -> None:
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail(after=1))
        await sleep("1h")

    pid = process.spawn_monitored(child)
    await sleep(1)
    process.exit(Shutdown(), pid)

    result = await exit_of(pid)

    assert isinstance(result.error, Shutdown)
    if sys.version_info >= (3, 13):  # before, a group whose task failed forgets a cancellation
        assert now() < 60


@pytest.mark.parametrize("seed", [None, *range(10)])
def test_a_signal_wins_over_a_task_that_fails_at_the_same_moment(seed: int | None) -> None:
    simulate(a_task_fails_as_the_signal_comes, seed=seed)


# Tasks belong to their process


@simulated
async def test_a_task_is_part_of_the_process_that_made_it() -> None:
    async def who() -> Pid:
        await asyncio.sleep(0)
        return process.self_pid()

    async def child() -> list[Pid]:
        return [
            await asyncio.create_task(who()),
            *await asyncio.gather(who(), who()),
            await asyncio.wait_for(who(), 1),
        ]

    pid = process.spawn_monitored(child)

    result = await exit_of(pid)

    assert result.value == [pid] * 4


@simulated
async def test_a_task_that_is_left_is_stopped_before_the_exit_is_told() -> None:
    ended: list[str] = []

    async def left_behind() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async def child() -> str:
        child.task = asyncio.create_task(left_behind())  # pyright: ignore[reportFunctionMemberAccess]
        await asyncio.sleep(0)
        return "done"

    result = await end_of(child)

    assert result.value == "done"
    assert ended == ["cleaned up"]


@simulated
async def test_two_tasks_of_a_process_share_its_inbox() -> None:
    async def read() -> object:
        return (await process.inbox().receive()).payload

    first = asyncio.create_task(read())
    second = asyncio.create_task(read())
    await asyncio.sleep(0)
    process.send(process.self_pid(), "work", 1)
    process.send(process.self_pid(), "work", 2)

    assert await asyncio.gather(first, second) == [1, 2]


@simulated
async def test_a_wait_of_the_kernel_can_be_a_task_by_itself() -> None:
    create_task: Any = asyncio.create_task  # to a type checker a wait is a mere Awaitable
    received = create_task(process.inbox().receive())
    selected = create_task(select(process.events()))
    await asyncio.sleep(0)
    process.send(process.self_pid(), "work", 1)
    process.cancel(process.self_pid())

    assert (await received).payload == 1
    assert isinstance((await selected).value, process.Cancel)


@simulated
async def test_a_task_can_spawn_link_and_monitor_for_its_process() -> None:
    async def spawn() -> Pid:
        return process.spawn_monitored(answer, 42)

    pid = await asyncio.create_task(spawn())

    assert (await exit_of(pid)).value == 42


@simulated
async def test_exit_in_a_task_ends_the_whole_process() -> None:
    async def leave() -> None:
        process.exit(Shutdown("by a task"))

    async def child() -> None:
        await asyncio.gather(leave())
        await forever()

    result = await end_of(child)

    assert isinstance(result.error, Shutdown)
    assert result.error.detail == "by a task"


# Gather, shield, wait


@simulated
async def test_gather_gives_results_and_errors_in_order() -> None:
    results = await asyncio.gather(answer(1, 3), fail(), answer(2, 1), return_exceptions=True)

    assert results[0] == 1
    assert isinstance(results[1], ValueError)
    assert results[2] == 2
    assert now() == 3


@simulated
async def test_gather_raises_the_first_error() -> None:
    with pytest.raises(ValueError, match="no"):
        await asyncio.gather(answer(1, 3), fail())

    assert now() == 1


@simulated
async def test_gather_takes_waits_of_the_kernel() -> None:
    process.send(process.self_pid(), "hello", 1)

    message, selected = await asyncio.gather(
        process.inbox().receive(), select(process.events(), default=True)
    )

    assert message.payload == 1
    assert selected.default


@simulated
async def test_a_signal_cancels_what_is_gathered() -> None:
    ended: list[int] = []

    async def inner(number: int) -> None:
        try:
            await forever()
        finally:
            ended.append(number)

    async def child() -> None:
        await asyncio.gather(inner(1), inner(2))

    pid = process.spawn_monitored(child)
    await sleep(1)
    process.exit(ValueError("enough"), pid)

    assert isinstance((await exit_of(pid)).error, ValueError)
    assert ended == [1, 2]


@simulated
async def test_what_is_shielded_outlives_a_timeout() -> None:
    inner = asyncio.create_task(answer(42, after=5))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await asyncio.shield(inner)

    assert await inner == 42
    assert now() == 5


@simulated
async def test_what_is_shielded_does_not_outlive_its_process() -> None:
    ended: list[float] = []

    async def inner() -> None:
        try:
            await forever()
        finally:
            ended.append(now())

    async def child() -> None:
        await asyncio.shield(inner())

    pid = process.spawn_monitored(child)
    await sleep(1)
    process.exit(Shutdown(), pid)
    await exit_of(pid)

    assert ended == [1]


@simulated
async def test_wait_and_as_completed_work() -> None:
    quick, slow = asyncio.create_task(answer(1, 1)), asyncio.create_task(answer(2, 9))

    done, pending = await asyncio.wait([quick, slow], return_when=asyncio.FIRST_COMPLETED)
    results = [await future for future in asyncio.as_completed([slow, answer(3, 1)])]

    assert done == {quick}
    assert pending == {slow}
    assert results == [3, 2]


# Eager tasks


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks_run_at_once_and_belong_to_the_process() -> None:
    seen: list[Pid] = []
    ended: list[str] = []

    async def inner() -> None:
        seen.append(process.self_pid())
        try:
            await forever()
        finally:
            ended.append("inner")

    async def child() -> str:
        task = asyncio.create_task(inner())
        assert seen == [process.self_pid()]
        assert not task.done()
        assert await asyncio.gather(answer(1, 0), answer(2, 0)) == [1, 2]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), asyncio.TaskGroup() as group:
                group.create_task(forever())
        return "done"

    async def main() -> None:
        pid = process.spawn_monitored(child)
        assert (await exit_of(pid)).value == "done"
        assert seen == [pid]
        assert ended == ["inner"]

    perdure.run(main, loop_factory=eager_loop)


def eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - not in 3.11
    return loop
