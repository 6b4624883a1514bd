"""An end at every single step of every wait of the kernel loses nothing and leaves nothing.

Each test plays its scenario again and again, and interrupts the victim one step later each time.
"""

import contextlib
from collections.abc import Awaitable
from typing import Any

import pytest

from perdure import process
from perdure.errors import CallExit
from perdure.process import (
    Message,
    Pid,
    Request,
    Selected,
    after,
    call,
    run_process,
    select,
    sleep,
    ticker,
)
from perdure.process.channel import SendCase
from tests.support.processes import Interrupt, shut_down
from tests.support.stepping import Scenario, World, interrupt_everywhere


def cancel_task(pid: Pid) -> None:
    """Cancel as asyncio does: by the task."""
    pid.target.cancel()


def receive_from_a_channel(world: World) -> Pid:
    channel = world.channel()
    world.spawn(world.send, 6, channel)
    victim = world.victim(world.receive, 2, channel)
    world.spawn(world.receive, 4, channel)
    return victim


def receive_from_a_buffer(world: World) -> Pid:
    channel = world.channel(2)
    victim = world.victim(world.receive, 3, channel)
    world.spawn(world.receive, 1, channel)
    world.spawn(world.send, 6, channel)
    return victim


def send_to_a_channel(world: World) -> Pid:
    channel = world.channel()
    victim = world.victim(world.send, 4, channel)
    world.spawn(world.send, 2, channel)
    world.spawn(world.receive, 3, channel)
    world.spawn(world.receive, 3, channel)
    return victim


def send_to_a_buffer(world: World) -> Pid:
    channel = world.channel(1)
    victim = world.victim(world.send, 5, channel)
    world.spawn(world.receive, 5, channel)
    world.spawn(world.send, 1, channel)
    return victim


def select_among_several(world: World) -> Pid:
    first, second, outlet = world.channel(), world.channel(1), world.channel()

    def attempt() -> Awaitable[Selected]:
        offer = outlet.case_send(world.offer())
        return select(first, offer, second, after("1ms"), after("10h"))

    async def choose() -> None:
        for _ in range(5):
            found = await world.again(attempt)
            if found.channel is outlet:
                world.sent.append(found.value)
            elif found.channel in (first, second):
                world.got.append(found.value)

    victim = world.victim(choose)
    world.spawn(world.send, 2, first)
    world.spawn(world.send, 2, second)
    world.spawn(world.receive, 2, outlet)
    world.spawn(world.receive, 1, second)
    return victim


def select_that_sends_and_receives_on_one_channel(world: World) -> Pid:
    channel = world.channel()

    async def swap() -> None:
        own: list[int] = []

        def offer() -> SendCase[int]:
            own.append(world.offer())
            return channel.case_send(own[-1])

        for _ in range(2):
            found = await world.again(lambda: select(channel, offer(), after("1s")))
            if found.channel is channel:
                (world.sent if found.value in own else world.got).append(found.value)

    victim = world.victim(swap)
    world.spawn(swap)
    world.spawn(swap)
    return victim


def iterate_over_a_channel(world: World) -> Pid:
    channel = world.channel(1)

    async def iterate() -> None:
        async for value in channel:
            world.got.append(value)

    async def feed() -> None:
        await world.send(4, channel)
        channel.close()

    async def until_the_close() -> None:
        while not channel.closed:
            await world.once(iterate)

    victim = world.victim(until_the_close)
    world.spawn(feed)
    world.spawn(iterate)
    return victim


def sleep_and_tick(world: World) -> Pid:
    async def wait() -> None:
        await world.once(lambda: sleep("1ms"))
        source = ticker("1ms")
        for _ in range(3):
            await world.again(source.receive)
        await world.once(lambda: sleep(0))
        await world.once(lambda: select(after("1ms"), source, after("10h")))
        world.sent.append(world.offer())
        world.got.append(world.sent[-1])

    return world.victim(wait)


def call_a_server(world: World) -> Pid:
    async def server() -> None:
        while True:
            request = await process.requests().receive()
            await sleep("1ms")
            request.reply(request.body)

    async def client(dest: Pid) -> None:
        for _ in range(3):
            answer = await world.again(lambda: call(dest, world.offer()))
            world.sent.append(answer)
            world.got.append(answer)

    pid = world.spawn(server)
    world.spawn(client, pid)
    return world.victim(client, pid)


def answer_calls(world: World) -> Pid:
    async def answer() -> None:
        for _ in range(4):
            request: Request[Any] = await world.again(process.requests().receive)
            await world.once(lambda: sleep("1ms"))
            if request.reply(request.body):
                world.sent.append(request.body)

    async def client(dest: Pid) -> None:
        with contextlib.suppress(CallExit):
            for _ in range(2):
                world.got.append(await call(dest, world.offer(), timeout=None))

    victim = world.victim(answer)
    world.mortals += [world.spawn(client, victim), world.spawn(client, victim)]
    return victim


def run_a_process(world: World) -> Pid:
    async def child(value: int) -> int:
        await sleep("1ms")
        world.sent.append(value)
        world.got.append(value)
        return value

    async def parent() -> None:
        for _ in range(2):
            await world.once(lambda: run_process(child, world.offer()))

    return world.victim(parent)


SCENARIOS: list[Scenario] = [
    receive_from_a_channel,
    receive_from_a_buffer,
    send_to_a_channel,
    send_to_a_buffer,
    select_among_several,
    select_that_sends_and_receives_on_one_channel,
    iterate_over_a_channel,
    sleep_and_tick,
    call_a_server,
    answer_calls,
    run_a_process,
]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("in_task", [False, True], ids=["in the process", "in a task of it"])
@pytest.mark.parametrize("interrupt", [process.kill, shut_down, cancel_task])
def test_an_end_at_any_step_loses_nothing_and_leaves_nothing(
    scenario: Scenario, interrupt: Interrupt, in_task: bool
) -> None:
    for seed in range(3):
        steps = interrupt_everywhere(scenario, interrupt, seed=seed, in_task=in_task, resumes=False)
        assert steps >= 4


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("in_task", [False, True], ids=["in the process", "in a task of it"])
def test_a_cancellation_at_any_step_that_is_caught_loses_nothing(
    scenario: Scenario, in_task: bool
) -> None:
    for seed in range(3):
        steps = interrupt_everywhere(
            scenario, cancel_task, seed=seed, in_task=in_task, resumes=True
        )
        assert steps >= 4


def read_messages(world: World) -> Pid:
    """The mailbox dies with its process; so only one that goes on is held to account."""

    async def read() -> None:
        other, inbox = process.listen("other"), process.inbox()
        for _ in range(12):
            found = await world.again(lambda: select(other, inbox, process.events()))
            value = found.value
            world.got.append(value.payload if isinstance(value, Message) else value)
        world.sent.extend(world.offered)

    victim = world.victim(read)
    world.spawn(write, world, victim, "any")
    world.spawn(write, world, victim, "other")
    return victim


def read_one_channel_after_the_other(world: World) -> Pid:
    async def read() -> None:
        other, inbox = process.listen("other"), process.inbox()
        for _ in range(6):
            message = await world.again(inbox.receive)
            world.got += [message.payload, await world.again(other.receive)]
        assert world.got[::2] == sorted(world.got[::2])
        assert world.got[1::2] == sorted(world.got[1::2])
        world.sent.extend(world.offered)

    victim = world.victim(read)
    world.spawn(write, world, victim, "any")
    world.spawn(write, world, victim, "other")
    return victim


async def write(world: World, dest: Pid, topic: str) -> None:
    for _ in range(3):
        process.send(dest, topic, world.offer())
        process.send(dest, topic, world.offer())
        await sleep("1ms")


@pytest.mark.parametrize("scenario", [read_messages, read_one_channel_after_the_other])
@pytest.mark.parametrize("in_task", [False, True], ids=["in the process", "in a task of it"])
def test_a_cancellation_of_a_reader_that_goes_on_loses_no_message(
    scenario: Scenario, in_task: bool
) -> None:
    for seed in range(5):
        steps = interrupt_everywhere(
            scenario, cancel_task, seed=seed, in_task=in_task, resumes=True
        )
        assert steps >= 4
