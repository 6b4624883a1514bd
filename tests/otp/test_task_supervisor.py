"""TaskSupervisor: tasks that belong to a supervisor."""

import asyncio
from typing import Any

import pytest

from perdure import process
from perdure.errors import (
    ChildError,
    Killed,
    LinkedProcessDown,
    MaxChildren,
    NoProcess,
    NotRegistered,
    Shutdown,
    TaskExit,
)
from perdure.otp import Exited, Ok
from perdure.otp.supervision.spec import BRUTAL_KILL
from perdure.otp.supervision.supervisor import Supervisor
from perdure.otp.task_supervisor import TaskSupervisor
from perdure.process import Info, Pid, sleep
from perdure.testing import simulated
from tests.support.children import refuse_to_stop
from tests.support.processes import crash, forever, now, others_rest
from tests.support.tasks import crash_later, end_of, exit_of, give, slowly


async def about_me() -> Info:
    return process.info(process.self_pid())


@simulated
async def test_a_supervised_task_gives_its_value() -> None:
    async with TaskSupervisor() as tasks:
        assert await tasks.create(give, 1) == 1
        assert await tasks.create_nolink(slowly, 2, delay=1.0) == 2


@simulated
async def test_a_supervised_task_has_the_supervisor_as_ancestor_and_us_as_caller() -> None:
    async with TaskSupervisor() as tasks:
        picture = await tasks.create(about_me)
        assert picture.ancestors[0] is tasks.pid
        assert picture.callers == (process.self_pid(),)
        assert picture.links == {tasks.pid, process.self_pid()}


@simulated
async def test_a_task_without_link_is_linked_to_its_supervisor_alone() -> None:
    async with TaskSupervisor() as tasks:
        picture = await tasks.create_nolink(about_me)
        assert picture.links == {tasks.pid}


@simulated
async def test_a_supervisor_takes_a_task_before_it_has_run_a_line() -> None:
    starting = asyncio.ensure_future(TaskSupervisor.start_link(name="workers"))
    await asyncio.sleep(0)
    assert process.whereis("workers") is not None
    task = TaskSupervisor.create("workers", slowly, 1, delay=1.0)
    tasks = await starting
    assert tasks.children() == [task.pid]
    assert await task == 1
    await tasks.stop()


@simulated
async def test_no_task_is_taken_while_the_supervisor_stops() -> None:
    tasks = await TaskSupervisor.start_link()
    tasks.start_child(refuse_to_stop, shutdown=3)
    await sleep(1)
    stopping = asyncio.ensure_future(tasks.stop())
    await sleep(1)
    with pytest.raises(NoProcess, match="stopping"):
        tasks.create(forever)
    await stopping
    assert [info.pid for info in process.processes()] == [process.self_pid()]


@simulated
async def test_everything_can_be_called_by_name_and_by_pid() -> None:
    async with TaskSupervisor(name="workers") as tasks:
        assert await TaskSupervisor.create("workers", give, 1) == 1
        assert await TaskSupervisor.create_nolink(tasks.pid, give, 2) == 2
        pid = TaskSupervisor.start_child("workers", forever)
        assert TaskSupervisor.children("workers") == [pid]
        await TaskSupervisor.terminate_child("workers", pid)
        assert await TaskSupervisor.async_stream("workers", [3], give).to_list() == [Ok(3)]


@simulated
async def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(NotRegistered):
        TaskSupervisor.create("nobody", give, 1)


@simulated
async def test_the_failure_of_a_linked_task_is_given_at_the_wait() -> None:
    async with TaskSupervisor() as tasks:
        with pytest.raises(TaskExit, match="boom"):
            await tasks.create(crash_later)
        assert process.alive(tasks.pid)


@simulated
async def test_the_failure_of_a_task_without_link_hurts_nobody() -> None:
    async with TaskSupervisor() as tasks:
        task = tasks.create_nolink(crash)
        await sleep(1)
        match await task.poll():
            case Exited(ValueError()):
                pass
            case other:
                pytest.fail(f"{other}")


async def owner(name: str, linked: bool) -> None:
    make = TaskSupervisor.create if linked else TaskSupervisor.create_nolink
    make(name, forever)
    await others_rest()
    raise ValueError("owner")


@simulated
@pytest.mark.parametrize("linked", [True, False])
async def test_only_a_linked_task_dies_with_its_owner(linked: bool) -> None:
    async with TaskSupervisor(name="tasks") as tasks:
        await end_of(owner, "tasks", linked)
        await others_rest()
        assert len(tasks.children()) == (0 if linked else 1)


@simulated
async def test_an_ended_task_is_no_child_any_more() -> None:
    async with TaskSupervisor() as tasks:
        task = tasks.create(slowly, 1, 1.0)
        assert tasks.children() == [task.pid]
        await task
        assert tasks.children() == []


# Room


@simulated
async def test_a_full_supervisor_refuses_one_more() -> None:
    async with TaskSupervisor(max_children=2) as tasks:
        kept = [tasks.create_nolink(slowly, n, 1.0) for n in (1, 2)]
        for start in (tasks.create, tasks.create_nolink, tasks.start_child):
            refused: Any = start
            with pytest.raises(MaxChildren):
                refused(forever)
        assert [await task for task in kept] == [1, 2]
        assert await tasks.create(give, 3) == 3


@simulated
async def test_a_full_supervisor_ends_a_stream_in_order() -> None:
    async with TaskSupervisor(max_children=2) as tasks:
        with pytest.raises(MaxChildren):
            await tasks.async_stream(range(9), slowly, max_concurrency=3).to_list()
        await others_rest()
        assert tasks.children() == []


@simulated
async def test_a_stream_may_use_all_the_room_there_is() -> None:
    async with TaskSupervisor(max_children=2) as tasks:
        results = await tasks.async_stream(range(50), give, max_concurrency=2).to_list()
        assert results == [Ok(n) for n in range(50)]


# start_child


@simulated
async def test_a_started_child_is_not_restarted_by_default() -> None:
    async with TaskSupervisor() as tasks:
        tasks.start_child(crash)
        await others_rest()
        assert tasks.children() == []


@simulated
async def test_a_transient_child_is_restarted_after_a_crash_with_the_same_arguments() -> None:
    runs: list[str] = []

    async def flaky(word: str) -> None:
        runs.append(word)
        if len(runs) < 3:
            raise ValueError(word)

    async with TaskSupervisor() as tasks:
        tasks.start_child(flaky, "again", restart="transient")
        await sleep(1)
        assert runs == ["again"] * 3
        assert tasks.children() == []


@simulated
async def test_a_permanent_child_is_always_restarted() -> None:
    runs: list[float] = []

    async def ends() -> None:
        runs.append(now())
        await sleep(10)

    async with TaskSupervisor() as tasks:
        tasks.start_child(ends, restart="permanent")
        await sleep(35)
        assert runs == pytest.approx([0, 10, 20, 30])


@simulated
async def test_too_many_restarts_end_the_supervisor() -> None:
    process.set_options(trap_links=True)
    tasks = await TaskSupervisor.start_link(max_restarts=2, max_seconds=5)
    tasks.start_child(crash, restart="permanent")
    process.monitor(tasks.pid)
    assert isinstance((await exit_of(tasks.pid)).error, Shutdown)


@simulated
async def test_bad_words_are_refused_and_start_nothing() -> None:
    wrong: Any = "sometimes"
    async with TaskSupervisor() as tasks:
        with pytest.raises(ValueError, match="restart"):
            tasks.start_child(forever, restart=wrong)
        with pytest.raises(ValueError, match="shutdown"):
            tasks.start_child(forever, shutdown=-1)
        assert tasks.children() == []
        assert len(process.processes()) == 2


@simulated
async def test_a_child_can_be_terminated() -> None:
    async with TaskSupervisor() as tasks:
        pid = tasks.start_child(forever, restart="permanent")
        await tasks.terminate_child(pid)
        assert tasks.children() == []
        assert not process.alive(pid)


@simulated
async def test_an_unknown_child_cannot_be_terminated() -> None:
    async with TaskSupervisor() as tasks:
        with pytest.raises(ChildError) as caught:
            await tasks.terminate_child(process.self_pid())
        assert caught.value.reason == "not_found"


# Stopping


@simulated
async def test_a_stop_ends_all_tasks_at_once_within_their_grace() -> None:
    notes: list[float] = []

    async def cleans_up() -> None:
        try:
            await forever()
        finally:
            await sleep(2)
            notes.append(now())

    tasks = await TaskSupervisor.start_link()
    for _ in range(5):
        tasks.start_child(cleans_up)
    await others_rest()
    await tasks.stop()
    assert len(notes) == 5
    assert now() < 3


@simulated
async def test_a_child_with_brutal_kill_gets_no_time() -> None:
    notes: list[str] = []

    async def cleans_up() -> None:
        try:
            await forever()
        finally:
            await sleep(2)
            notes.append("clean")

    tasks = await TaskSupervisor.start_link()
    tasks.start_child(cleans_up, shutdown=BRUTAL_KILL)
    await others_rest()
    await tasks.stop()
    assert notes == []


@simulated
async def test_a_task_that_is_stopped_with_its_supervisor_tells_its_owner() -> None:
    tasks = await TaskSupervisor.start_link()
    task = tasks.create_nolink(forever)
    await others_rest()
    await tasks.stop()
    match await task.poll():
        case Exited(Shutdown()):
            pass
        case other:
            pytest.fail(f"{other}")


@simulated
async def test_a_task_supervisor_lives_in_a_tree() -> None:
    async with Supervisor([TaskSupervisor.child(name="fetchers", restart="permanent")]) as root:
        assert await TaskSupervisor.create("fetchers", give, 1) == 1
        (info,) = await root.which_children()
        assert info.id == "fetchers"
        assert info.type == "supervisor"
        assert isinstance(info.pid, Pid)
        process.kill(info.pid)
        await others_rest()
        assert await TaskSupervisor.create("fetchers", give, 2) == 2


# Streams


@simulated
async def test_the_items_of_a_supervised_stream_are_its_children() -> None:
    async with TaskSupervisor() as tasks:

        async def family(_: int) -> tuple[Pid, ...]:
            return process.info(process.self_pid()).ancestors

        (result,) = await tasks.async_stream([1], family).to_list()
        assert isinstance(result, Ok)
        assert result.value[0] is tasks.pid


@simulated
async def test_a_supervised_stream_has_all_the_options() -> None:
    async with TaskSupervisor() as tasks:
        results = await tasks.async_stream_nolink(
            [3.0, 1.0, 9.0],
            sleeper,
            max_concurrency=3,
            ordered=False,
            timeout=5,
            zip_input_on_exit=True,
            shutdown=BRUTAL_KILL,
        ).to_list()
        assert results[:2] == [Ok(1.0), Ok(3.0)]
        assert isinstance(results[2], Exited)
        assert isinstance(results[2].reason[1], TimeoutError)


async def sleeper(delay: float) -> float:
    await sleep(delay)
    return delay


@simulated
async def test_bad_options_of_a_supervised_stream_are_refused_at_the_call() -> None:
    async with TaskSupervisor() as tasks:
        with pytest.raises(TypeError, match="no option"):
            tasks.async_stream([1], give, colour="red")
        with pytest.raises(TypeError, match="fail_fast"):
            tasks.async_stream_nolink([1], give, fail_fast=True)
        with pytest.raises(ValueError, match="max_concurrency"):
            tasks.async_stream([1], give, max_concurrency=0)


async def consumer(name: str, linked: bool) -> None:
    make = TaskSupervisor.async_stream if linked else TaskSupervisor.async_stream_nolink

    async def hang(_: int) -> None:
        await forever()

    async for _ in make(name, range(2), hang, max_concurrency=2, timeout=None):
        pass


@simulated
@pytest.mark.parametrize("linked", [True, False])
async def test_only_the_items_of_a_linked_stream_die_with_a_killed_consumer(linked: bool) -> None:
    async with TaskSupervisor(name="tasks") as tasks:
        pid = process.spawn_monitored(consumer, "tasks", linked)
        await sleep(1)
        process.kill(pid)
        assert isinstance((await exit_of(pid)).error, Killed)
        await sleep(1)
        assert len(tasks.children()) == (0 if linked else 2)


@simulated
@pytest.mark.parametrize("linked", [True, False])
async def test_an_early_end_ends_the_items_of_both_kinds(linked: bool) -> None:
    async with TaskSupervisor() as tasks:
        make = tasks.async_stream if linked else tasks.async_stream_nolink
        assert await make([0.0, 50.0], sleeper, max_concurrency=2, timeout=None).take(1) == [
            Ok(0.0)
        ]
        await others_rest()
        assert tasks.children() == []


@simulated
async def test_a_supervised_stream_ends_when_its_supervisor_is_stopped() -> None:
    tasks = await TaskSupervisor.start_link(name="tasks")

    async def reads() -> list[Any]:
        return await tasks.async_stream_nolink([99.0], sleeper, timeout=None).to_list()

    pid = process.spawn_monitored(reads)
    await sleep(1)
    await tasks.stop()
    match (await exit_of(pid)).value:
        case [Exited(Shutdown())]:
            pass
        case other:
            pytest.fail(f"{other}")


@simulated
async def test_a_linked_failure_of_a_busy_owner_is_its_end() -> None:
    async with TaskSupervisor(name="tasks"):

        async def busy() -> None:
            TaskSupervisor.create("tasks", crash)
            await forever()

        assert isinstance((await end_of(busy)).error, LinkedProcessDown)
