"""Context variables, and callbacks of the loop: they belong to the process that made them."""

import asyncio
import logging
from contextvars import ContextVar, copy_context

import pytest

from perdure import process
from perdure.errors import NoProcess
from perdure.process import Pid, sleep
from perdure.testing import simulated
from tests.support.processes import end_of, exit_of, forever

request_id: ContextVar[str] = ContextVar("request_id", default="none")


async def read() -> str:
    return request_id.get()


@simulated
async def test_a_child_inherits_the_values_of_its_birth() -> None:
    request_id.set("a")
    pid = process.spawn_monitored(read)
    request_id.set("b")  # too late for the child

    assert (await exit_of(pid)).value == "a"


@simulated
async def test_what_a_process_sets_is_seen_by_nobody_else() -> None:
    async def set_and_wait() -> str:
        request_id.set("child")
        await sleep(1)
        return request_id.get()

    request_id.set("parent")
    setter, reader = process.spawn(set_and_wait), process.spawn_monitored(read)

    assert (await exit_of(reader)).value == "parent"
    await sleep(2)
    assert not process.alive(setter)
    assert request_id.get() == "parent"


@simulated
async def test_a_value_stays_over_every_kind_of_wait() -> None:
    async def child() -> list[str]:
        request_id.set("mine")
        seen: list[str] = []
        await asyncio.sleep(0)
        seen.append(request_id.get())
        await sleep(1)
        seen.append(request_id.get())
        await asyncio.create_task(read())
        seen.append(request_id.get())
        return seen

    assert (await end_of(child)).value == ["mine"] * 3


@simulated
async def test_tasks_and_callbacks_of_a_process_see_its_values() -> None:
    async def child() -> list[str]:
        request_id.set("mine")
        seen = [await asyncio.create_task(read()), *await asyncio.gather(read(), read())]
        called = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: called.set_result(request_id.get()))
        return [*seen, await called]

    assert (await end_of(child)).value == ["mine"] * 4


@simulated
async def test_a_task_changes_only_its_own_copy() -> None:
    async def change() -> None:
        request_id.set("task")

    request_id.set("process")
    await asyncio.create_task(change())
    assert request_id.get() == "process"

    await change()  # but a plain await runs in the process itself
    assert request_id.get() == "task"


@simulated
async def test_a_task_with_a_context_of_its_own_belongs_to_whom_the_context_says() -> None:
    async def child() -> Pid:
        context = copy_context()
        return await asyncio.create_task(who(), context=context)

    async def who() -> Pid:
        return process.self_pid()

    pid = process.spawn_monitored(child)

    assert (await exit_of(pid)).value is pid


@simulated
async def test_a_value_that_is_reset_by_its_token_is_reset() -> None:
    token = request_id.set("for a while")
    await sleep(1)
    request_id.reset(token)

    assert request_id.get() == "none"


# Callbacks


@pytest.mark.parametrize("later", ["call_soon", "call_later", "call_at"])
@simulated
async def test_a_callback_belongs_to_the_process_that_asked_for_it(later: str) -> None:
    async def child() -> Pid:
        loop = asyncio.get_running_loop()
        called = loop.create_future()

        def callback() -> None:
            called.set_result(process.self_pid())

        match later:
            case "call_soon":
                loop.call_soon(callback)
            case "call_later":
                loop.call_later(1, callback)
            case _:
                loop.call_at(loop.time() + 1, callback)
        return await called

    pid = process.spawn_monitored(child)

    assert (await exit_of(pid)).value is pid


@simulated
async def test_a_callback_can_send_and_spawn() -> None:
    def callback() -> None:
        process.send(process.self_pid(), "ring", process.spawn(read))

    asyncio.get_running_loop().call_later(1, callback)
    message = await process.inbox().receive()

    assert message.sender is process.self_pid()


@simulated
async def test_a_done_callback_belongs_to_the_process_that_added_it() -> None:
    future = asyncio.get_running_loop().create_future()

    async def child() -> Pid:
        seen = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: seen.set_result(process.self_pid()))
        return await seen

    pid = process.spawn_monitored(child)
    await sleep(1)
    future.set_result(None)

    assert (await exit_of(pid)).value is pid


@simulated
async def test_a_callback_after_the_death_of_its_process_is_refused() -> None:
    refused: list[NoProcess] = []

    def callback() -> None:
        try:
            process.self_pid()
        except NoProcess as error:
            refused.append(error)

    async def child() -> None:
        asyncio.get_running_loop().call_later(1, callback)

    pid = process.spawn_monitored(child)
    await exit_of(pid)
    await sleep(2)

    assert [error.pid for error in refused] == [pid]


@simulated
async def test_a_callback_that_fails_does_not_harm_its_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def callback() -> None:
        raise ValueError("in a callback")

    asyncio.get_running_loop().call_later(1, callback)
    with caplog.at_level(logging.CRITICAL, "asyncio"):
        await sleep(2)

    assert process.alive(process.self_pid())


@simulated
async def test_the_values_of_process_context_reach_tasks() -> None:
    async def inner() -> object:
        return process.context()["tenant"]

    async def child() -> object:
        return await asyncio.create_task(inner())

    pid = process.spawn_monitored(child, context={"tenant": "acme"})

    assert (await exit_of(pid)).value == "acme"


@simulated
async def test_a_killed_process_leaves_the_values_of_others_alone() -> None:
    async def child() -> None:
        request_id.set("child")
        await forever()

    request_id.set("parent")
    pid = process.spawn_monitored(child)
    await sleep(1)
    process.kill(pid)
    await exit_of(pid)

    assert request_id.get() == "parent"
