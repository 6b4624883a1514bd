"""To wait for one task: join, await, poll; who may; how often; and what a failure looks like."""

import asyncio

import pytest

from perdure import process
from perdure.errors import Killed, NotOwner, TaskExit, TaskTimeout
from perdure.otp import Exited, Ok
from perdure.otp.task import Task
from perdure.process import sleep
from perdure.testing import simulate, simulated
from tests.support.processes import crash, forever, now, others_rest
from tests.support.tasks import crash_later, end_of, give, leave, slowly


@simulated
async def test_join_waits_up_to_five_seconds() -> None:
    assert await Task.create(slowly, 1, 4.9).join() == 1


@simulated
async def test_join_gives_up_after_its_time_and_names_the_task() -> None:
    task = Task.create(forever)
    with pytest.raises(TaskTimeout) as caught:
        await task.join("200ms")
    assert str(task.pid) in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert now() == pytest.approx(0.2)
    await task.shutdown()


@simulated
async def test_a_task_whose_join_timed_out_still_runs_and_is_still_linked() -> None:
    task = Task.create(slowly, 1, 2.0)
    with pytest.raises(TaskTimeout):
        await task.join(1)
    assert task.pid in process.info(process.self_pid()).links
    assert await task.join(2) == 1


@simulated
async def test_nothing_arrives_after_a_join_that_timed_out() -> None:
    task = Task.create(slowly, 1, 2.0)
    with pytest.raises(TaskTimeout):
        await task.join(1)
    await sleep(5)
    assert process.info(process.self_pid()).mailbox == 0


@simulated
async def test_a_bare_await_has_no_limit() -> None:
    assert await Task.create(slowly, 1, 3600.0) == 1
    assert now() == 3600


@simulated
async def test_a_failure_is_raised_at_the_join_with_its_reason() -> None:
    with pytest.raises(TaskExit) as caught:
        await Task.create(crash, "lost").join()
    assert isinstance(caught.value.reason, ValueError)
    assert caught.value.__cause__ is caught.value.reason
    assert "lost" in str(caught.value)


@simulated
async def test_a_failure_is_raised_at_a_bare_await() -> None:
    with pytest.raises(TaskExit, match="boom"):
        await Task.create(crash_later)


@simulated
async def test_a_task_that_leaves_without_a_value_is_no_success() -> None:
    with pytest.raises(TaskExit) as caught:
        await Task.create(leave)
    assert caught.value.reason is None


@simulated
async def test_a_value_of_none_is_a_success() -> None:
    async def nothing() -> None: ...

    assert await Task.create(nothing).poll() == Ok(None)


@simulated
async def test_a_result_can_be_taken_once() -> None:
    task = Task.create(give, 1)
    assert await task == 1
    with pytest.raises(TaskTimeout, match="already collected"):
        await task.join()
    with pytest.raises(TaskTimeout, match="already collected"):
        await task


async def steal(task: Task[int]) -> str:
    with pytest.raises(NotOwner) as caught:
        await task.join()
    with pytest.raises(NotOwner):
        await task.poll(0)
    with pytest.raises(NotOwner):
        await task.shutdown()
    with pytest.raises(NotOwner):
        task.ignore()
    return str(caught.value)


@simulated
async def test_only_the_owner_may_ask() -> None:
    task = Task.create(slowly, 1, 1.0)
    text = (await end_of(steal, task)).value
    assert str(task.owner) in text
    assert await task == 1


@simulated
async def test_a_bad_timeout_is_refused_before_anything_happens() -> None:
    task = Task.create(give, 1)
    with pytest.raises(ValueError, match="negative"):
        await task.join(-1)
    with pytest.raises(ValueError, match="bad duration"):
        await task.poll("soon")
    assert await task == 1


# Poll


@simulated
async def test_poll_gives_the_value() -> None:
    assert await Task.create(give, 1).poll() == Ok(1)


@simulated
async def test_poll_gives_none_while_the_task_runs_and_can_be_repeated() -> None:
    task = Task.create(slowly, 5, 2.5)
    assert await task.poll(1) is None
    assert await task.poll(1) is None
    assert await task.poll(1) == Ok(5)
    assert now() == 2.5


@simulated
async def test_poll_of_zero_does_not_wait() -> None:
    task = Task.create(give, 1)
    assert await task.poll(0) is None
    await others_rest()
    assert await task.poll(0) == Ok(1)


@simulated
async def test_poll_gives_a_failure_as_a_value() -> None:
    match await Task.create(crash).poll():
        case Exited(reason):
            assert isinstance(reason, ValueError)
        case other:
            pytest.fail(f"{other}")


@simulated
async def test_poll_gives_a_normal_end_without_a_value() -> None:
    assert await Task.create(leave).poll() == Exited(None)


@simulated
async def test_poll_or_shutdown_reads_like_a_sentence() -> None:
    task = Task.create(forever)
    assert (await task.poll(1) or await task.shutdown()) is None


@simulated
async def test_poll_of_a_collected_task_waits_its_time_and_gives_none() -> None:
    task = Task.create(give, 1)
    await task
    assert await task.poll(3) is None
    assert now() == 3


@simulated
async def test_a_killed_task_gives_killed() -> None:
    task = Task.create(forever)
    assert task.pid is not None
    process.kill(task.pid)
    match await task.poll():
        case Exited(Killed()):
            pass
        case other:
            pytest.fail(f"{other}")


# Interrupted waits


@simulated
async def test_a_wait_that_was_cut_off_leaves_the_task_collectable() -> None:
    task = Task.create(slowly, 1, 2.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await task
    assert await task == 1


@simulated
async def test_a_task_can_be_awaited_by_a_task_group_of_the_owner() -> None:
    async def wait(task: Task[int]) -> int:
        return await task

    async with asyncio.TaskGroup() as group:
        one = group.create_task(wait(Task.create(slowly, 1, 1.0)))
        two = group.create_task(wait(Task.create(slowly, 2, 2.0)))
    assert one.result() + two.result() == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_result_in_the_turn_of_an_interruption_is_not_lost(seed: int) -> None:
    async def main() -> int:
        task = Task.create(slowly, 9, 1.0)
        try:
            async with asyncio.timeout(1.0):
                return await task
        except TimeoutError:
            return await task

    assert simulate(main, seed=seed) == 9


def test_a_task_has_only_what_its_owner_may_use() -> None:
    public = {name for name in vars(Task) if not name.startswith("_")}
    assert public == {
        *("create", "start", "start_link", "completed", "child"),
        *("join", "poll", "shutdown", "ignore"),
        *("pid", "ref", "owner", "callers"),
        *("await_many", "yield_many"),
    }


@pytest.mark.parametrize(
    ("name", "instead"),
    [("await_many", "join_many(tasks, timeout)"), ("yield_many", "poll_many(tasks, timeout)")],
)
def test_a_name_of_elixir_leads_to_the_one_here(name: str, instead: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(Task, name)
    assert instead in str(caught.value)
    assert not hasattr(Task, name)
