"""The failure of a linked task: at the wait, by an event, or by the link; and the owner's end."""

import asyncio

import pytest

from perdure import process
from perdure.errors import Killed, LinkedProcessDown, Shutdown, TaskExit, TaskTimeout
from perdure.otp import Exited
from perdure.otp.task import Task
from perdure.process import LinkDown, Pid, sleep
from perdure.testing import simulate, simulated
from tests.support.processes import crash, forever, others_rest
from tests.support.tasks import crash_later, end_of, exit_of, give, slowly


async def joins_and_survives() -> str:
    try:
        await Task.create(crash_later).join()
    except TaskExit as error:
        await sleep(10)
        return f"survived {error.reason}"
    return "no failure"


async def polls_and_survives() -> object:
    result = await Task.create(crash_later).poll()
    await sleep(10)
    return result


async def is_busy_elsewhere() -> str:
    task = Task.create(crash_later)
    await sleep(10)
    await task
    return "survived"


async def waits_for_another() -> str:
    Task.create(crash_later)
    await Task.create(slowly, 1, 10.0)
    return "survived"


@simulated
async def test_an_owner_that_joins_gets_the_failure_and_lives() -> None:
    assert (await end_of(joins_and_survives)).value == "survived boom"


@simulated
async def test_an_owner_that_polls_gets_the_failure_and_lives() -> None:
    result = (await end_of(polls_and_survives)).value
    assert isinstance(result, Exited)


@simulated
async def test_an_owner_that_is_busy_elsewhere_dies_of_the_link() -> None:
    result = await end_of(is_busy_elsewhere)
    assert isinstance(result.error, LinkedProcessDown)
    assert isinstance(result.error.root, ValueError)


@simulated
async def test_an_owner_that_waits_for_another_task_dies_of_the_link() -> None:
    assert isinstance((await end_of(waits_for_another)).error, LinkedProcessDown)


@simulated
async def test_a_failure_that_nobody_catches_ends_the_owner_with_it() -> None:
    async def careless() -> None:
        await Task.create(crash)

    result = await end_of(careless)
    assert isinstance(result.error, TaskExit)


@simulated
async def test_a_trapping_owner_gets_the_failure_at_the_wait_and_one_event() -> None:
    process.set_options(trap_links=True)
    task = Task.create(crash_later)
    with pytest.raises(TaskExit):
        await task
    event = await process.events().receive()
    assert isinstance(event, LinkDown)
    assert event.sender is task.pid
    assert process.info(process.self_pid()).mailbox == 0


@simulated
async def test_a_trapping_owner_that_was_busy_can_still_ask() -> None:
    process.set_options(trap_links=True)
    task = Task.create(crash)
    await others_rest()
    with pytest.raises(TaskExit):
        await task
    assert isinstance(await process.events().receive(), LinkDown)


@simulated
async def test_after_a_join_that_timed_out_a_failure_kills_by_the_link() -> None:
    async def owner() -> None:
        task = Task.create(crash_later, 2.0)
        try:
            await task.join(1)
        except TaskTimeout:
            await sleep(10)

    assert isinstance((await end_of(owner)).error, LinkedProcessDown)


@simulated
async def test_the_owner_can_wait_in_a_task_of_its_own() -> None:
    async def waits_inside() -> str:
        async def wait() -> str:
            try:
                await Task.create(crash_later)
            except TaskExit:
                return "caught"
            return "nothing"

        async with asyncio.TaskGroup() as group:
            return await group.create_task(wait())

    assert (await end_of(waits_inside)).value == "caught"


@pytest.mark.parametrize("seed", range(30))
def test_a_failure_in_the_turn_of_an_interruption_is_never_lost(seed: int) -> None:
    async def owner() -> str:
        task = Task.create(crash_later, 1.0)
        try:
            async with asyncio.timeout(1.0):
                await task
        except TimeoutError:
            await sleep(10)
            return "lost"
        except TaskExit:
            return "caught"
        return "no failure"

    async def main() -> None:
        result = await end_of(owner)
        assert result.value == "caught" or isinstance(result.error, LinkedProcessDown)

    simulate(main, seed=seed)


def test_a_failure_whose_wait_was_interrupted_goes_back_to_the_link() -> None:
    async def owner() -> str:
        task = Task.create(forever)
        me = asyncio.current_task()
        assert me is not None
        assert task.pid is not None
        # Both in one turn: the death of the task reaches the wait, then the wait is interrupted.
        process.kill(task.pid)
        pid: Pid = task.pid

        def interrupt(_: object) -> None:
            me.cancel()

        pid.target.add_done_callback(interrupt)
        try:
            await task
        except asyncio.CancelledError:
            await sleep(10)
            return "lost"
        except TaskExit:
            return "caught"
        return "no failure"

    async def main() -> None:
        result = await end_of(owner)
        assert result.value == "caught" or isinstance(result.error, LinkedProcessDown)

    simulate(main)


# The other direction


async def owns(end: str) -> None:
    task = Task.create(slowly, 1, 5.0)
    process.send(process.context()["test"], "pid", task.pid)
    await others_rest()
    if end == "crash":
        raise ValueError("owner")
    if end == "shutdown":
        process.exit(Shutdown())


async def task_of_an_owner_that(end: str) -> Pid:
    process.spawner(context={"test": process.self_pid()}).spawn(owns, end)
    pid: Pid = (await process.inbox().receive()).payload
    process.monitor(pid)
    return pid


@simulated
async def test_a_running_task_goes_on_when_its_owner_ends_normally() -> None:
    assert (await exit_of(await task_of_an_owner_that("return"))).value == 1


@simulated
async def test_a_running_task_dies_when_its_owner_crashes() -> None:
    result = await exit_of(await task_of_an_owner_that("crash"))
    assert isinstance(result.error, LinkedProcessDown)


@simulated
async def test_a_running_task_is_shut_down_with_its_owner() -> None:
    result = await exit_of(await task_of_an_owner_that("shutdown"))
    assert isinstance(result.error, Shutdown)


@simulated
async def test_a_killed_owner_takes_its_task_along() -> None:
    async def owner() -> None:
        task = Task.create(forever)
        process.send(process.context()["test"], "pid", task.pid)
        await task

    pid = process.spawner(context={"test": process.self_pid()}).spawn(owner)
    task: Pid = (await process.inbox().receive()).payload
    process.monitor(task)
    process.kill(pid)
    error = (await exit_of(task)).error
    assert isinstance(error, LinkedProcessDown)
    assert isinstance(error.root, Killed)


@simulated
async def test_a_task_that_the_owner_unlinked_fails_alone() -> None:
    task = Task.create(crash_later)
    assert task.pid is not None
    process.unlink(task.pid)
    await sleep(2)
    with pytest.raises(TaskExit):
        await task


@simulated
async def test_a_task_that_ends_well_leaves_a_busy_owner_alone() -> None:
    task = Task.create(give, 1)
    await sleep(5)
    assert await task == 1


@simulated
async def test_a_task_that_was_not_linked_fails_without_harm() -> None:
    Task.start(crash)
    await sleep(1)
