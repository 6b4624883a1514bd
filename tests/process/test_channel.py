"""Channels: hand-over in order, room, close, and values that survive their receivers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import process
from perdure.errors import ChannelClosed
from perdure.process import Channel, Pid, select, sleep
from perdure.testing import simulate, simulated
from tests.support.processes import INTERRUPTS, Interrupt, drain, others_rest

Log = list[Any]


async def put(channel: Channel[Any], value: Any, log: Log) -> None:
    await channel.send(value)
    log.append(f"sent {value}")


async def take(channel: Channel[Any], log: Log, who: str = "") -> None:
    value = await channel.receive()
    log.append((who, value) if who else value)


async def spawn_waiting(*functions: Callable[..., Any], args: tuple[Any, ...]) -> list[Pid]:
    """Start processes one after the other, each when the one before it waits."""
    pids: list[Pid] = []
    for function in functions:
        pids.append(process.spawn(function, *args))
        await others_rest()
    return pids


# Capacity


@simulated
async def test_without_capacity_a_send_waits_for_its_receiver() -> None:
    channel, log = Channel[int](), Log()
    process.spawn(put, channel, 1, log)
    await sleep("1h")
    assert log == []
    assert await channel.receive() == 1
    await others_rest()
    assert log == ["sent 1"]


@simulated
async def test_a_receive_waits_for_its_sender() -> None:
    channel, log = Channel[int](), Log()
    process.spawn(take, channel, log)
    await sleep("1h")
    assert log == []
    await channel.send(1)
    await others_rest()
    assert log == [1]


@simulated
async def test_a_buffered_channel_takes_as_many_values_as_its_capacity_without_a_receiver() -> None:
    channel, log = Channel[int](2), Log()
    for n in range(3):
        process.spawn(put, channel, n, log)
    await others_rest()
    assert log == ["sent 0", "sent 1"]
    assert len(channel) == 2


@simulated
async def test_a_freed_place_goes_at_once_to_the_sender_who_waits_longest() -> None:
    channel, log = Channel[int](1), Log()
    for n in range(3):
        process.spawn(put, channel, n, log)
    await others_rest()
    assert await channel.receive() == 0
    assert len(channel) == 1
    await others_rest()
    assert log == ["sent 0", "sent 1"]
    assert await drain(channel) == [1, 2]


@pytest.mark.parametrize("capacity", [0, 1, 3])
@simulated
async def test_a_channel_never_holds_more_than_its_capacity(capacity: int) -> None:
    channel, log = Channel[int](capacity), Log()
    process.spawn(take, channel, log)
    await others_rest()
    for n in range(9):
        process.spawn(put, channel, n, log)
    await others_rest()
    assert len(channel) <= capacity
    assert log.count(0) == 1
    assert len(log) == 1 + 1 + capacity  # received, sent to the receiver, sent into the buffer


@simulated
async def test_of_two_senders_only_the_one_whose_value_was_received_goes_on() -> None:
    channel, log = Channel[int](), Log()
    process.spawn(take, channel, log)
    await others_rest()
    process.spawn(put, channel, 1, log)
    process.spawn(put, channel, 2, log)
    await others_rest()
    assert sorted(map(str, log)) == ["1", "sent 1"]


@simulated
async def test_a_negative_capacity_means_none() -> None:
    assert Channel[int](-3).capacity == 0


@simulated
async def test_values_come_out_in_the_order_in_which_they_went_in() -> None:
    channel = Channel[int](100)
    for n in range(100):
        await channel.send(n)
    assert await drain(channel) == list(range(100))


@simulated
async def test_none_and_false_are_values_like_any_other() -> None:
    channel = Channel[Any](3)
    for value in (None, False, 0):
        await channel.send(value)
    assert await drain(channel) == [None, False, 0]


@simulated
async def test_an_empty_channel_is_no_false_thing() -> None:
    channel = Channel[int](1)
    assert channel
    assert len(channel) == 0


# First come, first served


@simulated
async def test_receivers_are_served_in_the_order_in_which_they_came() -> None:
    channel, log = Channel[int](), Log()
    for who in "abc":
        process.spawn(take, channel, log, who)
        await others_rest()
    for n in range(3):
        await channel.send(n)
    await others_rest()
    assert log == [("a", 0), ("b", 1), ("c", 2)]


@simulated
async def test_senders_are_served_in_the_order_in_which_they_came() -> None:
    channel = Channel[str]()
    for value in "abc":
        process.spawn(channel_send, channel, value)
        await others_rest()
    assert [await channel.receive() for _ in range(3)] == ["a", "b", "c"]


async def channel_send(channel: Channel[Any], value: Any) -> None:
    await channel.send(value)


@pytest.mark.parametrize("seed", range(20))
def test_who_comes_later_does_not_overtake_one_that_was_woken(seed: int) -> None:
    async def main() -> None:
        channel, log = Channel[int](4), Log()
        process.spawn(take, channel, log, "early")
        await others_rest()
        await channel.send(1)  # "early" is awake now, but has not run
        process.spawn(take, channel, log, "late")
        await channel.send(2)
        await others_rest()
        assert sorted(log) == [("early", 1), ("late", 2)]

    simulate(main, seed=seed)


@simulated
async def test_tasks_inside_one_process_share_a_channel_in_order() -> None:
    channel, log = Channel[int](), Log()
    async with asyncio.TaskGroup() as group:
        for who in "ab":
            group.create_task(take(channel, log, who))
            await others_rest()
        await channel.send(1)
        await channel.send(2)
    assert log == [("a", 1), ("b", 2)]


# Close


@simulated
async def test_a_closed_channel_refuses_a_send() -> None:
    channel = Channel[int](5)
    channel.close()
    with pytest.raises(ChannelClosed):
        await channel.send(1)
    assert len(channel) == 0


@simulated
async def test_what_is_in_a_closed_channel_comes_out_first_then_it_is_closed_for_ever() -> None:
    channel = Channel[int](2)
    await channel.send(1)
    await channel.send(2)
    channel.close()
    assert [await channel.receive(), await channel.receive()] == [1, 2]
    for _ in range(3):
        with pytest.raises(ChannelClosed):
            await channel.receive()


async def expect_closed(action: Callable[[], Any], log: Log) -> None:
    with pytest.raises(ChannelClosed):
        await action()
    log.append("closed")


@simulated
async def test_a_close_wakes_all_who_wait_to_receive() -> None:
    channel, log = Channel[int](), Log()
    for _ in range(3):
        process.spawn(expect_closed, channel.receive, log)
    await others_rest()
    channel.close()
    await others_rest()
    assert log == ["closed"] * 3


@simulated
async def test_a_sender_that_waits_at_the_close_fails_and_its_value_is_never_received() -> None:
    channel, log = Channel[str](1), Log()
    await channel.send("buffered")
    process.spawn(expect_closed, lambda: channel.send("waiting"), log)
    await others_rest()
    channel.close()
    assert await drain(channel) == ["buffered"]
    await others_rest()
    assert log == ["closed"]
    assert await drain(channel) == []


@simulated
async def test_closing_twice_does_nothing() -> None:
    channel = Channel[int](1)
    await channel.send(1)
    channel.close()
    channel.close()
    assert channel.closed
    assert await channel.receive() == 1


# Iteration


@simulated
async def test_iteration_ends_at_the_close() -> None:
    channel, log = Channel[int](), Log()

    async def read() -> None:
        log.extend([value async for value in channel])
        log.append("end")

    process.spawn(read)
    for n in range(3):
        await channel.send(n)
    channel.close()
    await others_rest()
    assert log == [0, 1, 2, "end"]


@simulated
async def test_an_iteration_that_is_left_early_leaves_the_rest_in_the_channel() -> None:
    channel = Channel[int](3)
    for n in range(3):
        await channel.send(n)
    async for value in channel:
        if value == 1:
            break
    assert await drain(channel) == [2]


# Interrupted


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("seed", range(4))
def test_a_value_goes_to_the_next_receiver_if_the_first_ends_in_the_same_turn(
    seed: int, interrupt: Interrupt
) -> None:
    async def main() -> None:
        channel, log = Channel[int](), Log()
        first, *_ = await spawn_waiting(take, take, args=(channel, log))
        await channel.send(1)
        interrupt(first)
        await others_rest()
        assert log == [1]

    simulate(main, seed=seed)


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@simulated
async def test_a_value_stays_in_the_channel_if_its_only_receiver_ends_in_the_same_turn(
    interrupt: Interrupt,
) -> None:
    channel, log = Channel[int](1), Log()
    (receiver,) = await spawn_waiting(take, args=(channel, log))
    await channel.send(1)
    interrupt(receiver)
    await others_rest()
    assert log == []
    assert await drain(channel) == [1]


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@simulated
async def test_a_sender_that_ends_while_it_waits_takes_its_value_with_it(
    interrupt: Interrupt,
) -> None:
    channel, log = Channel[int](), Log()
    sender = process.spawn(put, channel, 1, log)
    process.spawn(put, channel, 2, log)
    await others_rest()
    interrupt(sender)
    await others_rest()
    assert await drain(channel) == [2]


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@simulated
async def test_a_value_that_was_taken_is_received_once_though_its_sender_ends_in_the_same_turn(
    interrupt: Interrupt,
) -> None:
    channel, log = Channel[int](), Log()
    sender = process.spawn(put, channel, 1, log)
    await others_rest()
    assert await channel.receive() == 1
    interrupt(sender)
    await others_rest()
    assert await drain(channel) == []


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@simulated
async def test_a_receiver_that_ended_stands_in_no_line(interrupt: Interrupt) -> None:
    channel, log = Channel[int](), Log()
    (receiver,) = await spawn_waiting(take, args=(channel, log))
    interrupt(receiver)
    await others_rest()
    assert (await select(channel.case_send(1), default=True)).default


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("seed", range(4))
def test_values_of_several_receivers_that_end_in_the_same_turn_keep_their_order(
    seed: int, interrupt: Interrupt
) -> None:
    async def main() -> None:
        channel, log = Channel[int](5), Log()
        receivers = await spawn_waiting(take, take, take, args=(channel, log))
        for n in range(5):
            await channel.send(n)
        for receiver in receivers:
            interrupt(receiver)
        await others_rest()
        assert log == []
        assert await drain(channel) == [0, 1, 2, 3, 4]

    simulate(main, seed=seed)


@simulated
async def test_a_receive_that_times_out_takes_nothing() -> None:
    channel = Channel[int](1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await channel.receive()
    await channel.send(1)
    assert await channel.receive() == 1


@pytest.mark.parametrize("seed", range(20))
def test_with_many_on_both_sides_each_value_is_received_once(seed: int) -> None:
    async def main() -> None:
        channel, sent, got = Channel[int](seed % 3), Log(), Log()
        for n in range(8):
            process.spawn(put, channel, n, sent)
            process.spawn(take, channel, got)
        await others_rest()
        assert sorted(got) == list(range(8))
        assert len(sent) == 8

    simulate(main, seed=seed)
