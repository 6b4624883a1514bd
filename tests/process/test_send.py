"""Sending: never waits, never fails for a death, and refuses what is no destination."""

import asyncio
import contextvars
from typing import Any

import pytest

from perdure import process
from perdure.errors import NoProcess, NotRegistered
from perdure.process import Message, Pid, sleep
from perdure.testing import simulated
from tests.support.processes import dead, drain, others_rest, wait_forever


async def collect(into: list[Message]) -> None:
    while True:
        into.append(await process.inbox().receive())


@simulated
async def test_send_returns_true_before_the_receiver_has_run() -> None:
    got: list[Message] = []
    pid = process.spawn(collect, got)
    assert process.send(pid, "a") is True
    assert got == []
    await others_rest()
    assert [message.topic for message in got] == ["a"]


@simulated
async def test_a_message_without_payload_carries_none() -> None:
    process.send(process.self_pid(), "a")
    assert (await process.inbox().receive()).payload is None


@simulated
async def test_one_payload_arrives_as_the_very_same_object() -> None:
    payload = {"n": [1]}
    process.send(process.self_pid(), "a", payload)
    assert (await process.inbox().receive()).payload is payload


@simulated
async def test_a_single_list_as_payload_is_not_unpacked() -> None:
    process.send(process.self_pid(), "a", [1, 2])
    assert (await process.inbox().receive()).payload == [1, 2]


@simulated
async def test_several_payloads_arrive_as_a_list() -> None:
    process.send(process.self_pid(), "a", 1, None, "x")
    assert (await process.inbox().receive()).payload == [1, None, "x"]


@simulated
async def test_a_message_names_its_sender() -> None:
    async def greet(dest: Pid) -> None:
        process.send(dest, "hello")

    pid = process.spawn(greet, process.self_pid())
    assert (await process.inbox().receive()).sender is pid


@simulated
async def test_a_task_inside_a_process_sends_in_the_name_of_the_process() -> None:
    async def inner() -> None:
        process.send(process.self_pid(), "from the task")

    await asyncio.create_task(inner())
    assert (await process.inbox().receive()).sender is process.self_pid()


@simulated
async def test_a_message_from_outside_of_any_process_has_no_sender() -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(process.send, process.self_pid(), "out", 1, context=contextvars.Context())
    assert await process.inbox().receive() == Message("out", 1, None)


@simulated
async def test_send_by_name_reaches_who_has_the_name() -> None:
    got: list[Message] = []
    process.spawn(collect, got, name="clerk")
    assert process.send("clerk", "a", 1)
    await others_rest()
    assert got == [Message("a", 1, process.self_pid())]


@simulated
async def test_send_to_a_dead_pid_gives_false() -> None:
    assert process.send(await dead(), "a") is False


@simulated
async def test_send_to_a_name_that_nobody_has_raises() -> None:
    with pytest.raises(NotRegistered):
        process.send("nobody", "a")


@simulated
async def test_send_to_the_name_of_a_dead_process_raises() -> None:
    pid = process.spawn(wait_forever, name="clerk")
    process.kill(pid)
    await others_rest()
    with pytest.raises(NotRegistered):
        process.send("clerk", "a")


@pytest.mark.parametrize("dest", [None, 7, b"clerk", wait_forever])
@simulated
async def test_what_is_neither_pid_nor_name_is_no_destination(dest: Any) -> None:
    with pytest.raises(TypeError):
        process.send(dest, "a")


@pytest.mark.parametrize("topic", ["@", "@events", "", None, 3])
@simulated
async def test_a_topic_of_the_runtime_or_none_at_all_is_refused_and_nothing_is_sent(
    topic: Any,
) -> None:
    with pytest.raises((ValueError, TypeError)):
        process.send(process.self_pid(), topic, 1)
    assert await drain(process.inbox()) == []


@simulated
async def test_a_topic_is_checked_also_if_the_receiver_is_dead() -> None:
    with pytest.raises(ValueError, match="@"):
        process.send(await dead(), "@exit")


@simulated
async def test_a_message_outlives_its_sender() -> None:
    async def last_words(dest: Pid) -> None:
        process.send(dest, "bye")
        process.kill(process.self_pid())

    process.spawn(last_words, process.self_pid())
    await sleep("1h")
    assert (await process.inbox().receive()).topic == "bye"


@simulated
async def test_a_message_to_a_process_that_has_not_run_yet_waits_for_it() -> None:
    got: list[Message] = []
    pid = process.spawn(collect, got)
    for n in range(3):
        process.send(pid, "n", n)
    await others_rest()
    assert [message.payload for message in got] == [0, 1, 2]


@simulated
async def test_code_that_a_dead_process_left_behind_cannot_send() -> None:
    caught: list[BaseException] = []

    def later(dest: Pid) -> None:
        try:
            process.send(dest, "from the grave")
        except NoProcess as error:
            caught.append(error)

    async def ghost(dest: Pid) -> None:
        asyncio.get_running_loop().call_later(1, later, dest)

    process.spawn(ghost, process.self_pid())
    await sleep(2)
    assert len(caught) == 1
    assert await drain(process.inbox()) == []
