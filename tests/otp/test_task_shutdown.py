"""To end a task, and to give it up."""

import asyncio

import pytest

from perdure import process
from perdure.errors import Killed, NoProcess, Shutdown, TaskTimeout
from perdure.otp import Exited, Ok
from perdure.otp.supervision.spec import BRUTAL_KILL
from perdure.otp.task import Task
from perdure.process import LinkDown, sleep
from perdure.testing import simulated
from tests.support.processes import crash, forever, now, others_rest
from tests.support.tasks import crash_later, exit_of, give, slowly


async def stubborn() -> None:
    while True:
        try:
            await forever()
        except asyncio.CancelledError:
            await sleep(100)


async def cleans_up(seconds: float, notes: list[str]) -> None:
    try:
        await forever()
    finally:
        await sleep(seconds)
        notes.append("clean")


async def answers_a_shutdown() -> str:
    process.set_options(trap_links=True)
    match await process.events().receive():
        case LinkDown(error=Shutdown()):
            return "saved"
        case event:
            return repr(event)


async def fails_at_shutdown() -> None:
    process.set_options(trap_links=True)
    await process.events().receive()
    raise ValueError("cannot save")


@simulated
async def test_a_shutdown_of_a_running_task_gives_none_and_ends_it() -> None:
    task = Task.create(forever)
    assert await task.shutdown() is None
    assert task.pid is not None
    assert not process.alive(task.pid)


@simulated
async def test_a_shutdown_gives_a_result_that_is_there() -> None:
    task = Task.create(give, 1)
    await others_rest()
    assert await task.shutdown() == Ok(1)


@simulated
async def test_a_shutdown_gives_a_result_that_comes_meanwhile() -> None:
    task = Task.create(answers_a_shutdown)
    await others_rest()
    assert await task.shutdown() == Ok("saved")


@simulated
async def test_a_task_may_clean_up_within_the_grace() -> None:
    notes: list[str] = []
    task = Task.create(cleans_up, 3.0, notes)
    await others_rest()
    assert await task.shutdown(5) is None
    assert notes == ["clean"]


@simulated
async def test_a_task_that_takes_longer_than_the_grace_is_killed() -> None:
    notes: list[str] = []
    task = Task.create(cleans_up, 30.0, notes)
    await others_rest()
    match await task.shutdown(2):
        case Exited(Killed()):
            pass
        case other:
            pytest.fail(f"{other}")
    assert notes == []


@simulated
async def test_a_shutdown_without_a_limit_waits_as_long_as_it_takes() -> None:
    notes: list[str] = []
    task = Task.create(cleans_up, 3600.0, notes)
    await others_rest()
    assert await task.shutdown(None) is None
    assert notes == ["clean"]


@simulated
async def test_a_brutal_kill_gives_none_and_no_time() -> None:
    notes: list[str] = []
    task = Task.create(cleans_up, 1.0, notes)
    await others_rest()
    assert await task.shutdown(BRUTAL_KILL) is None
    assert notes == []
    assert now() < 1


@simulated
async def test_a_task_that_refuses_its_end_is_abandoned() -> None:
    task = Task.create(stubborn)
    await others_rest()
    match await task.shutdown(1):
        case Exited(Killed()):
            pass
        case other:
            pytest.fail(f"{other}")


@simulated
async def test_a_shutdown_gives_the_failure_of_a_task_that_fails_at_it() -> None:
    task = Task.create(fails_at_shutdown)
    await others_rest()
    match await task.shutdown():
        case Exited(ValueError()):
            pass
        case other:
            pytest.fail(f"{other}")


@simulated
async def test_a_shutdown_gives_the_failure_of_a_task_that_is_dead_already() -> None:
    process.set_options(trap_links=True)
    task = Task.create(crash)
    await others_rest()
    match await task.shutdown():
        case Exited(ValueError()):
            pass
        case other:
            pytest.fail(f"{other}")


async def shuts_itself_down() -> None:
    process.exit(Shutdown("by itself"))


@simulated
async def test_a_task_that_had_shut_down_gives_none_politely_and_the_reason_brutally() -> None:
    process.set_options(trap_links=True)
    one, other = Task.create(shuts_itself_down), Task.create(shuts_itself_down)
    await others_rest()
    assert await one.shutdown() is None
    match await other.shutdown(BRUTAL_KILL):
        case Exited(Shutdown()):
            pass
        case wrong:
            pytest.fail(f"{wrong}")


@simulated
async def test_a_shutdown_of_a_collected_task_says_that_there_is_no_process() -> None:
    task = Task.create(give, 1)
    await task
    match await task.shutdown():
        case Exited(NoProcess()):
            pass
        case other:
            pytest.fail(f"{other}")


@simulated
async def test_a_shutdown_leaves_no_link_and_no_event() -> None:
    process.set_options(trap_links=True)
    task = Task.create(forever)
    await task.shutdown(BRUTAL_KILL)
    picture = process.info(process.self_pid())
    assert not picture.links
    assert picture.mailbox == 0
    assert picture.pending_tasks == 0


@simulated
async def test_after_a_shutdown_the_task_cannot_be_joined() -> None:
    task = Task.create(forever)
    await task.shutdown()
    with pytest.raises(TaskTimeout):
        await task.join()


async def shut_down_a_slow_one(notes: list[str]) -> None:
    task = Task.create(cleans_up, 100.0, notes)
    process.send(process.context()["test"], "pid", task.pid)
    await others_rest()
    await task.shutdown(2)


@simulated
async def test_a_task_ends_even_if_its_owner_is_killed_during_the_shutdown() -> None:
    me = process.self_pid()
    owner = process.spawner(context={"test": me}).spawn_monitored(shut_down_a_slow_one, [])
    task = (await process.inbox().receive()).payload
    process.monitor(task)
    await sleep(1)
    process.kill(owner)
    assert (await exit_of(owner)).error
    assert isinstance((await exit_of(task)).error, Killed)
    assert now() == pytest.approx(2, abs=0.2)


# Ignore


@simulated
async def test_an_ignored_task_goes_on_alone() -> None:
    task = Task.create(slowly, 1, 2.0)
    assert task.ignore() is None
    assert task.pid is not None
    assert not process.info(task.pid).links
    await sleep(1)
    assert process.alive(task.pid)


@simulated
async def test_the_later_result_of_an_ignored_task_is_dropped() -> None:
    task = Task.create(slowly, 1, 1.0)
    task.ignore()
    await sleep(2)
    assert process.info(process.self_pid()).pending_tasks == 0
    with pytest.raises(TaskTimeout):
        await task.join()


@simulated
async def test_the_later_failure_of_an_ignored_task_hurts_nobody() -> None:
    Task.create(crash_later).ignore()
    await sleep(2)


@simulated
async def test_ignore_gives_a_result_that_is_there() -> None:
    task = Task.create(give, 1)
    await others_rest()
    assert task.ignore() == Ok(1)
