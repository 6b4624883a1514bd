"""To wait for many tasks with one limit."""

from typing import Any

import pytest

from perdure import process
from perdure.errors import NotOwner, TaskExit, TaskTimeout
from perdure.otp import Exited, Ok
from perdure.otp.task import Task, join_many, poll_many
from perdure.process import Message, sleep
from perdure.testing import simulated
from tests.support.processes import forever, now, others_rest
from tests.support.tasks import crash_later, end_of, give, slowly


@simulated
async def test_join_many_gives_the_values_in_the_order_of_the_tasks() -> None:
    tasks = [Task.create(slowly, n, delay) for n, delay in ((1, 3.0), (2, 1.0), (3, 2.0))]
    assert await join_many(tasks) == [1, 2, 3]
    assert now() == 3


@simulated
async def test_join_many_of_nothing_is_nothing_at_once() -> None:
    assert await join_many([]) == []
    assert now() == 0


@simulated
async def test_join_many_has_one_limit_for_all() -> None:
    tasks = [Task.create(slowly, n, 2.0 * n) for n in (1, 2, 3)]
    with pytest.raises(TaskTimeout) as caught:
        await join_many(tasks, timeout=5)
    assert now() == 5
    assert str(tasks[2].pid) in str(caught.value)
    await tasks[2].shutdown()


@simulated
async def test_the_first_failure_ends_a_join_of_many_at_once() -> None:
    tasks: list[Task[Any]] = [Task.create(slowly, 1, 4.0), Task.create(crash_later, 1.0)]
    with pytest.raises(TaskExit, match="boom"):
        await join_many(tasks)
    assert now() == 1
    assert tasks[0].pid is not None
    assert process.alive(tasks[0].pid)


@simulated
async def test_after_a_failed_join_of_many_no_result_is_pending() -> None:
    tasks: list[Task[Any]] = [Task.create(slowly, 1, 2.0), Task.create(crash_later, 1.0)]
    with pytest.raises(TaskExit):
        await join_many(tasks)
    await sleep(5)
    assert process.info(process.self_pid()).pending_tasks == 0


@simulated
async def test_join_many_leaves_messages_alone() -> None:
    process.send(process.self_pid(), "news", 1)
    assert await join_many([Task.create(give, 1), Task.create(give, 2)]) == [1, 2]
    assert isinstance(await process.inbox().receive(), Message)


@simulated
async def test_join_many_waits_for_ten_thousand() -> None:
    tasks = [Task.create(give, n) for n in range(10_000)]
    assert sum(await join_many(tasks)) == 49_995_000


@simulated
async def test_join_many_refuses_a_task_that_was_collected() -> None:
    task = Task.create(give, 1)
    await task
    with pytest.raises(TaskTimeout, match="already collected"):
        await join_many([task])


@simulated
async def test_the_same_task_twice_is_refused() -> None:
    task = Task.create(give, 1)
    with pytest.raises(ValueError, match="twice"):
        await join_many([task, task])
    with pytest.raises(ValueError, match="twice"):
        await poll_many([task, task])
    assert await task == 1


@simulated
async def test_only_the_owner_may_ask_for_many() -> None:
    tasks = [Task.create(slowly, 1, 1.0)]

    async def thief() -> None:
        with pytest.raises(NotOwner):
            await join_many(tasks)
        with pytest.raises(NotOwner):
            await poll_many(tasks)

    assert (await end_of(thief)).ok
    assert await join_many(tasks) == [1]


# poll_many


@simulated
async def test_poll_many_pairs_every_task_with_what_it_has() -> None:
    tasks: list[Task[Any]] = [
        Task.create(slowly, 1, 1.0),
        Task.create(forever),
        Task.create(crash_later, 2.0),
    ]
    pairs = await poll_many(tasks, timeout=3)
    assert [task for task, _ in pairs] == tasks
    assert pairs[0][1] == Ok(1)
    assert pairs[1][1] is None
    assert isinstance(pairs[2][1], Exited)
    assert now() == 3
    await tasks[1].shutdown()


@simulated
async def test_poll_many_returns_when_all_have_ended() -> None:
    tasks = [Task.create(slowly, n, float(n)) for n in (1, 2)]
    await poll_many(tasks, timeout=50)
    assert now() == 2


@simulated
async def test_poll_many_returns_when_as_many_as_its_limit_have_ended() -> None:
    tasks = [Task.create(slowly, n, float(n)) for n in (1, 2, 3)]
    pairs = await poll_many(tasks, timeout=50, limit=2, on_timeout="kill_task")
    assert [result for _, result in pairs] == [Ok(1), Ok(2), None]
    assert now() == 2
    assert await tasks[2] == 3


@simulated
async def test_a_limit_above_the_number_of_tasks_means_all() -> None:
    pairs = await poll_many([Task.create(give, 1)], limit=7)
    assert [result for _, result in pairs] == [Ok(1)]
    assert now() == 0


@simulated
async def test_poll_many_may_kill_those_that_are_late() -> None:
    task = Task.create(forever)
    assert await poll_many([task], timeout=1, on_timeout="kill_task") == [(task, None)]
    assert task.pid is not None
    assert not process.alive(task.pid)


@simulated
async def test_poll_many_may_let_those_that_are_late_go_on_alone() -> None:
    task = Task.create(slowly, 1, 5.0)
    assert await poll_many([task], timeout=1, on_timeout="ignore") == [(task, None)]
    assert task.pid is not None
    assert process.alive(task.pid)
    assert not process.info(task.pid).links


@simulated
async def test_poll_many_can_be_repeated() -> None:
    tasks = [Task.create(slowly, n, float(n)) for n in (1, 2)]
    first = await poll_many(tasks, timeout=1.5)
    assert [result for _, result in first] == [Ok(1), None]
    second = await poll_many(tasks, timeout=1)
    assert [result for _, result in second] == [None, Ok(2)]


@simulated
async def test_poll_many_collects_what_is_there_without_waiting() -> None:
    tasks = [Task.create(give, 1), Task.create(slowly, 2, 1.0)]
    await others_rest()
    pairs = await poll_many(tasks, timeout=0)
    assert [result for _, result in pairs] == [Ok(1), None]
    assert await tasks[1] == 2


@simulated
async def test_bad_options_of_poll_many_are_refused() -> None:
    wrong: Any = "explode"
    with pytest.raises(ValueError, match="on_timeout"):
        await poll_many([], on_timeout=wrong)
    with pytest.raises(ValueError, match="limit"):
        await poll_many([], limit=-1)
    with pytest.raises(ValueError, match="negative"):
        await poll_many([], timeout=-1)
