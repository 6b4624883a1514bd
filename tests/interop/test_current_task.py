"""What asyncio and its tools see of a process: a task like any other."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest

from perdure import process
from perdure.errors import Killed
from perdure.process import Pid, sleep
from perdure.testing import simulated
from tests.support.processes import end_of, exit_of, forever, me, now

# What tools ask


@simulated
async def test_the_current_task_stands_for_the_process() -> None:
    task = me()

    assert task.get_name() == str(process.self_pid())
    assert str(process.self_pid()) in repr(task)
    assert task.get_loop() is asyncio.get_running_loop()
    assert not task.done()
    assert not task.cancelled()
    assert task.cancelling() == 0
    assert task is me()
    assert hash(task) == hash(me())


@simulated
async def test_a_name_can_be_set_for_tools() -> None:
    me().set_name("the boss")

    assert me().get_name() == "the boss"


@simulated
async def test_the_coroutine_is_that_of_the_function() -> None:
    async def child() -> bool:
        return getattr(me().get_coro(), "__name__", None) == "child"

    assert (await end_of(child)).value is True


@simulated
async def test_the_result_is_not_there_before_the_end() -> None:
    with pytest.raises(asyncio.InvalidStateError):
        me().result()
    with pytest.raises(asyncio.InvalidStateError):
        me().exception()


@simulated
async def test_a_dead_process_gives_its_result_as_a_task_does() -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def child(error: Exception | None) -> int:
        tasks.append(me())
        if error is not None:
            raise error
        return 42

    await end_of(child, None)
    await end_of(child, ValueError("no"))

    good, bad = tasks
    assert good.done()
    assert good.result() == 42
    assert good.exception() is None
    assert isinstance(bad.exception(), ValueError)
    with pytest.raises(ValueError, match="no"):
        bad.result()
    assert not good.cancel()


@simulated
async def test_done_callbacks_are_called_at_the_end_with_the_task() -> None:
    called: list[Any] = []
    tasks: list[asyncio.Task[Any]] = []

    async def child() -> None:
        tasks.append(me())
        me().add_done_callback(called.append)
        me().add_done_callback(removed)
        assert me().remove_done_callback(removed) == 1

    def removed(_: object) -> None:
        raise AssertionError("it was removed")

    await end_of(child)
    await asyncio.sleep(0)
    assert called == tasks

    tasks[0].add_done_callback(called.append)
    await asyncio.sleep(0)
    assert called == tasks * 2


@simulated
async def test_the_stack_leads_to_the_place_where_it_waits() -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def inner_wait() -> None:
        await process.inbox().receive()

    async def child() -> None:
        tasks.append(me())
        await inner_wait()

    process.spawn_linked(child)
    await sleep(1)
    [task] = tasks
    names = [frame.f_code.co_name for frame in task.get_stack()]
    printed = io.StringIO()
    task.print_stack(file=printed)

    assert names[:2] == ["child", "inner_wait"]
    assert len(task.get_stack(limit=1)) == 1
    assert "await inner_wait()" in printed.getvalue()


@simulated
async def test_inside_a_task_of_the_process_the_current_task_is_that_task() -> None:
    async def inner() -> bool:
        return asyncio.current_task() is task

    task = asyncio.create_task(inner())

    assert await task
    assert me() is not task


@simulated
async def test_processes_that_take_turns_each_see_themselves() -> None:
    async def child() -> list[bool]:
        mine, names = me(), list[bool]()
        for _ in range(3):
            await asyncio.sleep(0)
            names.append(me() is mine and mine.get_name() == str(process.self_pid()))
        return names

    pids = [process.spawn_monitored(child) for _ in range(3)]
    ends = [await process.events().receive() for _ in pids]

    assert [end.result.value for end in ends if isinstance(end, process.Exit)] == [[True] * 3] * 3


# Cancel and uncancel


async def wait_in_asyncio() -> None:
    await forever()


async def wait_in_the_kernel() -> None:
    await process.inbox().receive()


async def wait_one_turn() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("wait", [wait_in_asyncio, wait_in_the_kernel, wait_one_turn])
@simulated
async def test_a_cancel_by_itself_strikes_at_the_next_wait(wait: Callable[[], Any]) -> None:
    me().cancel("why not")
    running_on = me().cancelling()

    with pytest.raises(asyncio.CancelledError, match="why not"):
        await wait()

    assert running_on == 1
    assert me().uncancel() == 0
    await sleep(1)  # and only at that one


@pytest.mark.parametrize("wait", [wait_in_asyncio, wait_in_the_kernel])
@simulated
async def test_a_cancel_from_outside_brings_its_message(wait: Callable[[], Any]) -> None:
    asyncio.get_running_loop().call_later(1, me().cancel, "why not")

    with pytest.raises(asyncio.CancelledError, match="why not"):
        await wait()

    assert me().cancelling() == 1
    me().uncancel()


@simulated
async def test_a_cancel_that_is_taken_back_before_a_wait_never_strikes() -> None:
    me().cancel()
    me().uncancel()
    await sleep(1)
    await asyncio.sleep(0)

    assert me().cancelling() == 0


@simulated
async def test_uncancel_never_goes_below_zero() -> None:
    assert me().uncancel() == 0
    assert me().cancelling() == 0


@simulated
async def test_two_cancels_in_one_turn_strike_once_and_count_twice() -> None:
    task = me()
    asyncio.get_running_loop().call_later(1, lambda: (task.cancel(), task.cancel()))

    with pytest.raises(asyncio.CancelledError):
        await process.inbox().receive()
    await sleep(1)

    assert task.cancelling() == 2
    assert task.uncancel() == 1
    assert task.uncancel() == 0


@simulated
async def test_a_second_cancel_interrupts_the_cleanup_of_the_first() -> None:
    steps: list[str] = []

    async def child() -> None:
        tasks.append(me())
        try:
            await forever()
        except asyncio.CancelledError:
            steps.append("first")
            try:
                await process.inbox().receive()
            except asyncio.CancelledError:
                steps.append("second")
                raise

    tasks: list[asyncio.Task[Any]] = []
    pid = process.spawn_monitored(child)
    await sleep(1)
    tasks[0].cancel()
    await sleep(1)
    tasks[0].cancel()

    result = await exit_of(pid)

    assert steps == ["first", "second"]
    assert isinstance(result.error, Killed)


@simulated
async def test_a_process_killed_before_its_first_step_never_runs() -> None:
    ran: list[str] = []

    async def child() -> None:
        ran.append("a line")

    pid = process.spawn_monitored(child)
    process.kill(pid)

    assert isinstance((await exit_of(pid)).error, Killed)
    assert ran == []


@simulated
async def test_a_cancel_while_the_awaited_future_is_done_strikes_instead_of_its_result() -> None:
    task, future = me(), asyncio.get_running_loop().create_future()

    def finish_and_cancel() -> None:
        future.set_result("too late")
        task.cancel()

    asyncio.get_running_loop().call_later(1, finish_and_cancel)
    with pytest.raises(asyncio.CancelledError):
        await future
    task.uncancel()

    assert await future == "too late"  # it is still there for another look


@simulated
async def test_a_future_that_others_cancel_is_no_cancel_of_the_process() -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1, future.cancel)

    with pytest.raises(asyncio.CancelledError):
        await future

    assert me().cancelling() == 0


@simulated
async def test_a_cancel_that_the_code_swallows_lets_it_go_on() -> None:
    async def child() -> str:
        tasks.append(me())
        try:
            await forever()
        except asyncio.CancelledError:
            me().uncancel()
        await sleep(5)
        return "went on"

    tasks: list[asyncio.Task[Any]] = []
    pid = process.spawn_monitored(child)
    await sleep(1)
    assert tasks[0].cancel()

    assert (await exit_of(pid)).value == "went on"
    assert now() == 6


@simulated
async def test_a_cancel_that_nobody_handles_is_a_kill() -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def child() -> None:
        tasks.append(me())
        await forever()

    pid = process.spawn_monitored(child)
    await sleep(1)
    tasks[0].cancel()

    assert isinstance((await exit_of(pid)).error, Killed)


@simulated
async def test_awaiting_a_task_that_was_cancelled_is_no_cancel_of_the_process() -> None:
    task = asyncio.create_task(forever())
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert me().cancelling() == 0


@simulated
async def test_a_process_may_be_cancelled_by_another_that_holds_its_task() -> None:
    async def child(parent: Pid) -> None:
        process.send(parent, "task", me())
        await process.inbox().receive()

    pid = process.spawn_monitored(child, process.self_pid())
    task = (await process.inbox().receive()).payload
    assert task.cancel("please")
    assert task.cancelling() == 1

    assert isinstance((await exit_of(pid)).error, Killed)
