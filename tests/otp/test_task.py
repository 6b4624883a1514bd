"""Tasks: how they start, what their handle knows, and what they leave in the owner."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Settings, process
from perdure.errors import NotInProcess, SpawnError
from perdure.otp import Ok, async_stream
from perdure.otp.task import Task
from perdure.process import Info, Pid, sleep
from perdure.testing import simulated
from tests.support.processes import crash, forever, now, others_rest
from tests.support.tasks import end_of, give, slowly


@simulated
async def test_a_task_gives_the_value_that_its_function_returns() -> None:
    assert await Task.create(give, 42) == 42


@simulated
async def test_a_task_runs_beside_its_owner() -> None:
    task = Task.create(slowly, 7, 2.0)
    await sleep(2.0)
    assert await task == 7
    assert now() == 2.0


@simulated
async def test_a_task_takes_keyword_arguments() -> None:
    assert await Task.create(slowly, value=3, delay=0.5) == 3


@simulated
async def test_a_task_knows_its_process_its_owner_and_its_ref() -> None:
    one, other = Task.create(give, 1), Task.create(give, 2)
    assert one.pid is not None
    assert process.alive(one.pid)
    assert one.owner is process.self_pid()
    assert one.ref is not other.ref
    assert await one + await other == 3


@simulated
async def test_a_task_is_linked_to_its_owner() -> None:
    task = Task.create(forever)
    assert task.pid in process.info(process.self_pid()).links
    await task.shutdown()


@simulated
async def test_a_collected_task_leaves_no_link_no_message_and_no_event() -> None:
    await Task.create(give, 1)
    picture = process.info(process.self_pid())
    assert not picture.links
    assert picture.mailbox == 0
    assert picture.pending_tasks == 0


@simulated
async def test_the_result_does_not_go_through_the_mailbox() -> None:
    task = Task.create(give, 1)
    await others_rest()
    assert process.info(process.self_pid()).mailbox == 0
    assert await task == 1


@simulated
async def test_a_completed_task_has_its_value_and_no_process() -> None:
    task = Task.completed("there")
    assert task.pid is None
    assert await task == "there"


@simulated
async def test_a_completed_task_can_be_polled_shut_down_and_ignored() -> None:
    assert await Task.completed(1).poll(0) == Ok(1)
    assert await Task.completed(2).shutdown() == Ok(2)
    assert Task.completed(3).ignore() == Ok(3)


@simulated
async def test_a_started_task_has_no_link() -> None:
    pid = Task.start(forever)
    assert not process.info(pid).links
    process.kill(pid)


@simulated
async def test_the_crash_of_a_started_task_hurts_nobody() -> None:
    pid = Task.start(crash)
    await others_rest()
    assert not process.alive(pid)


async def start_linked_and_wait() -> None:
    Task.start_link(crash)
    await forever()


@simulated
async def test_the_crash_of_a_linked_started_task_ends_its_starter() -> None:
    result = await end_of(start_linked_and_wait)
    assert "boom" in str(result.error)


@simulated
async def test_a_crash_of_a_started_task_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    Task.start(crash, "the disk is full")
    await others_rest()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    text = errors[0].getMessage()
    assert "the disk is full" in text
    assert "crash(" in text
    assert str(process.self_pid()) in text


@simulated
async def test_a_function_that_is_not_async_is_refused_and_nothing_is_left() -> None:
    wrong: Any = len
    with pytest.raises(SpawnError, match="async def"):
        Task.create(wrong, "x")
    assert process.info(process.self_pid()).pending_tasks == 0
    assert len(process.processes()) == 1


@simulated
async def test_wrong_arguments_are_refused_at_once() -> None:
    make: Callable[..., Any] = Task.create
    with pytest.raises(SpawnError):
        make(give)


def test_a_task_needs_a_process() -> None:
    with pytest.raises(NotInProcess):
        Task.create(give, 1)


# On whose behalf


async def about_me() -> Info:
    return process.info(process.self_pid())


async def nested() -> tuple[Pid, Info]:
    return process.self_pid(), await Task.create(about_me)


@simulated
async def test_a_task_knows_its_callers_and_ancestors() -> None:
    me = process.self_pid()
    picture = await Task.create(about_me)
    assert picture.callers == (me,)
    assert picture.ancestors[0] is me


@simulated
async def test_the_callers_of_a_nested_task_are_its_parent_and_grandparent() -> None:
    parent, picture = await Task.create(nested)
    assert picture.callers == (parent, process.self_pid())
    assert picture.ancestors[:2] == (parent, process.self_pid())


@simulated
async def test_a_started_task_knows_its_callers_too() -> None:
    pid = Task.start(forever)
    assert process.info(pid).callers == (process.self_pid(),)
    process.kill(pid)


@simulated
async def test_a_plain_process_has_no_callers() -> None:
    pid = process.spawn(forever)
    assert process.info(pid).callers == ()
    process.kill(pid)


# Tasks that live long


@simulated(settings=Settings(long_task="10s"))
async def test_a_task_that_lives_long_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    task = Task.create(forever)
    await sleep(60)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "forever" in warnings[0]
    assert "test_task.py" in warnings[0]
    assert "10s" in warnings[0]
    await task.shutdown()


@simulated(settings=Settings(long_task=None))
async def test_the_warning_of_long_tasks_can_be_switched_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = Task.create(forever)
    await sleep("24h")
    assert not caplog.records
    await task.shutdown()


@simulated(settings=Settings(long_task="10s"))
async def test_a_task_that_ends_in_time_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    await Task.create(slowly, 1, 4.0)
    await sleep(60)
    assert not caplog.records


@simulated
async def test_a_plain_function_is_led_to_a_thread_or_a_host() -> None:
    def count_words(text: str) -> int:
        return len(text.split())

    plain: Any = count_words
    for refused in (lambda: Task.create(plain, "a b"), lambda: async_stream(["a b"], plain)):
        with pytest.raises(SpawnError, match="offload") as caught:
            refused()
        assert "host" in str(caught.value)
