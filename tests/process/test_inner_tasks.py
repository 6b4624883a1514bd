"""Tasks of asyncio that are started inside a process belong to it and end with it."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Self

import pytest

from perdure import Settings, process
from perdure.errors import Killed, Shutdown
from perdure.process import ExitResult
from perdure.testing import simulated
from tests.support.processes import (
    crash,
    end_of,
    exit_of,
    give,
    others_rest,
    records,
    wait_forever,
)

SOON = Settings(abandon_after="1s")

Body = Callable[[], Awaitable[object]]


async def note_the_end(steps: list[str], name: str = "inner") -> None:
    try:
        await wait_forever()
    finally:
        steps.append(name)


async def start_inside(inner: Body, outer: Body = give) -> object:
    """Start a task, let it begin, go on with something else and leave the task behind."""
    task = asyncio.ensure_future(inner())
    await others_rest()
    try:
        return await outer()
    finally:
        del task


# Belonging


@simulated
async def test_a_task_is_the_process_that_started_it() -> None:
    async def inner() -> process.Pid:
        return process.self_pid()

    async def child() -> bool:
        return await asyncio.create_task(inner()) is process.self_pid()

    assert (await end_of(child)).value is True


@simulated
async def test_a_task_of_a_task_belongs_to_the_process_too() -> None:
    steps: list[str] = []

    async def outer_task() -> None:
        task = asyncio.create_task(note_the_end(steps))
        await others_rest()
        del task

    await end_of(start_inside, outer_task, others_rest)
    assert steps == ["inner"]


@simulated
async def test_the_tasks_of_a_group_belong_to_the_process_too() -> None:
    steps: list[str] = []

    async def child() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(note_the_end(steps, "one"))
            group.create_task(note_the_end(steps, "two"))

    pid = process.spawn_monitored(child)
    await others_rest()
    process.kill(pid)
    assert isinstance((await exit_of(pid)).error, Killed)
    assert sorted(steps) == ["one", "two"]


@simulated
async def test_a_task_may_read_the_inbox_of_its_process() -> None:
    async def inner() -> object:
        return (await process.inbox().receive()).payload

    async def child() -> object:
        return await asyncio.create_task(inner())

    pid = process.spawn_monitored(child)
    process.send(pid, "topic", "for the task")
    assert (await exit_of(pid)).value == "for the task"


@simulated
async def test_a_message_of_a_task_is_sent_by_its_process() -> None:
    root = process.self_pid()

    async def inner() -> None:
        process.send(root, "from inside")

    async def child() -> None:
        await asyncio.create_task(inner())

    pid = process.spawn(child)
    assert (await process.inbox().receive()).sender is pid


@simulated
async def test_two_processes_do_not_stop_each_others_tasks() -> None:
    steps: list[str] = []

    async def stays() -> object:
        return await note_the_end(steps, "stays")

    async def goes() -> object:
        return await note_the_end(steps, "goes")

    process.spawn(start_inside, stays, wait_forever)
    await end_of(start_inside, goes)
    assert steps == ["goes"]


# The end


@pytest.mark.parametrize("outer", [give, crash])
def test_tasks_are_stopped_when_the_code_of_the_process_ends(outer: Body) -> None:
    @simulated
    async def main() -> None:
        steps: list[str] = []
        await end_of(start_inside, lambda: note_the_end(steps), outer)
        assert steps == ["inner"]

    main()


@simulated
async def test_tasks_are_stopped_before_the_exit_is_sent_however_long_it_takes() -> None:
    steps: list[str] = []

    async def inner() -> None:
        try:
            await wait_forever()
        finally:
            await process.sleep("4s")
            steps.append("inner")

    result = await end_of(start_inside, inner)
    assert steps == ["inner"]
    assert result.ok


@simulated
async def test_the_code_ends_first_and_then_its_tasks() -> None:
    steps: list[str] = []

    async def outer() -> None:
        try:
            await wait_forever()
        finally:
            steps.append("outer")

    pid = process.spawn_monitored(start_inside, lambda: note_the_end(steps), outer)
    await process.sleep("1s")
    process.exit(Shutdown(), pid)
    await exit_of(pid)
    assert steps == ["outer", "inner"]


@simulated
async def test_a_task_may_use_the_kernel_while_it_cleans_up() -> None:
    root = process.self_pid()

    async def inner() -> None:
        try:
            await wait_forever()
        finally:
            process.send(root, "cleaned")

    pid = process.spawn_monitored(start_inside, inner)
    await exit_of(pid)
    message = await process.inbox().receive()
    assert (message.topic, message.sender) == ("cleaned", pid)


@simulated
async def test_a_task_started_during_the_cleanup_is_waited_for_too() -> None:
    steps: list[str] = []

    async def save() -> None:
        await process.sleep("1s")
        steps.append("saved")

    async def inner() -> None:
        try:
            await wait_forever()
        finally:
            await asyncio.create_task(save())

    await end_of(start_inside, inner)
    assert steps == ["saved"]


@simulated
async def test_a_finished_task_is_forgotten_at_once() -> None:
    await asyncio.gather(*(asyncio.create_task(give()) for _ in range(100)))
    await others_rest()
    assert process.info(process.self_pid()).tasks == 0


@simulated
async def test_the_failure_of_a_task_that_is_awaited_is_the_failure_of_the_process() -> None:
    async def child() -> None:
        await asyncio.create_task(crash("inner"))

    assert str((await end_of(child)).error) == "inner"


@simulated
async def test_what_a_task_does_at_the_end_does_not_change_the_result() -> None:
    async def inner() -> None:
        try:
            await wait_forever()
        finally:
            await crash("in the cleanup of a task")

    async def outer() -> str:
        return "value"

    assert await end_of(start_inside, inner, outer) == ExitResult("value", None)


# Giving up


class Refusing:
    """A task that refuses to be cancelled until the `with` block around it is left."""

    def __init__(self) -> None:
        self.told = asyncio.Event()

    async def __call__(self) -> None:
        while not self.told.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.told.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.told.set()
        await others_rest()


@simulated(settings=SOON)
async def test_a_task_that_refuses_to_end_is_given_up() -> None:
    async with Refusing() as refusing:
        pid = process.spawn_monitored(start_inside, refusing)
        result = await exit_of(pid)
        assert result.ok  # its own code had ended well
        assert not process.alive(pid)


@simulated(settings=SOON)
async def test_the_report_of_a_task_that_is_given_up_says_where_it_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Refusing() as refusing:
        pid = process.spawn_monitored(start_inside, refusing)
        await exit_of(pid)
        [text] = records(caplog, logging.WARNING)
        assert str(pid) in text
        assert "await self.told.wait()" in text
        assert "was killed" not in text  # nobody did


@simulated(settings=SOON)
async def test_a_process_may_have_many_tasks_that_refuse() -> None:
    async def child(refusing: Refusing) -> None:
        tasks = [asyncio.create_task(refusing()) for _ in range(20)]
        await others_rest()
        del tasks

    async with Refusing() as refusing:
        assert (await end_of(child, refusing)).ok


# Noise


def complaints_of_asyncio(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [record.getMessage() for record in caplog.records if record.name == "asyncio"]


@simulated
async def test_a_task_that_fails_while_it_is_stopped_makes_no_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def inner() -> None:
        try:
            await wait_forever()
        finally:
            await crash("in the cleanup of a task")

    await end_of(start_inside, inner)
    await others_rest()
    assert complaints_of_asyncio(caplog) == []


@simulated(settings=SOON)
async def test_a_task_that_fails_after_it_was_given_up_makes_no_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Refusing() as refusing:

        async def inner() -> None:
            await refusing()
            await crash("late")

        await end_of(start_inside, inner)
    assert complaints_of_asyncio(caplog) == []


@simulated
async def test_a_task_that_was_never_begun_makes_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    async def child() -> None:
        task = asyncio.create_task(wait_forever())
        del task

    await end_of(child)
    await others_rest()
    assert complaints_of_asyncio(caplog) == []
